"""Where the services are: the three URLs a program needs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumer.testing.services import urls
from consumer.testing.services.errors import SET_BOTH, ServicesError

AMQP_URL = "CONSUMER_AMQP_URL"
DATABASE_URL = "CONSUMER_DATABASE_URL"
MANAGEMENT_URL = "CONSUMER_MANAGEMENT_URL"


@dataclass(frozen=True)
class Endpoints:
    """The URLs of one RabbitMQ and one Postgres. Its `repr` shows none of them."""

    amqp_url: str = field(repr=False)
    database_url: str = field(repr=False)
    management_url: str = field(repr=False)

    def variables(self) -> dict[str, str]:
        """The environment variables that lead a program to these services."""
        return {
            AMQP_URL: self.amqp_url,
            DATABASE_URL: self.database_url,
            MANAGEMENT_URL: self.management_url,
        }


def from_environment(environment: Mapping[str, str] = os.environ) -> Endpoints | None:
    """The services the environment names, if it names both.

    The management URL may be left out; it is then the broker's host on the standard port.

    Returns:
        None when neither variable is set (an empty one counts as not set).

    Raises:
        ServicesError: Only one of the two is set, or a URL is not valid.
    """
    amqp, database = environment.get(AMQP_URL), environment.get(DATABASE_URL)
    if not amqp and not database:
        return None
    if not amqp or not database:
        there, missing = (AMQP_URL, DATABASE_URL) if amqp else (DATABASE_URL, AMQP_URL)
        raise ServicesError(f"{there} is set but {missing} is not", remedy=SET_BOTH)
    urls.parse(amqp, source=AMQP_URL)
    urls.parse(database, source=DATABASE_URL)
    management = environment.get(MANAGEMENT_URL) or urls.management_of(amqp)
    urls.parse(management, source=MANAGEMENT_URL)
    return Endpoints(amqp, _with_driver(database), management)


def _with_driver(database_url: str) -> str:
    """The database URL with the driver the project uses, where it names no driver."""
    scheme, separator, rest = database_url.partition("://")
    plain = scheme in ("postgresql", "postgres")
    return f"postgresql+asyncpg{separator}{rest}" if plain else database_url
