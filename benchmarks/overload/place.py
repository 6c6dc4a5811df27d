"""Where a run takes place: a virtual host and a database of its own."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from consumer.testing.services import Endpoints, urls
from consumer.testing.services.management import Management
from consumer.testing.services.postgres_admin import create_database, drop_database


@dataclass(frozen=True)
class Place:
    """Services with nothing in them."""

    amqp_url: str = field(repr=False)
    database_url: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)


@contextmanager
def place(services: Endpoints) -> Iterator[Place]:
    """A virtual host and a database, both gone when the block ends."""
    name = f"overload_{secrets.token_hex(4)}"
    management = Management(services.management_url)
    management.create_vhost(name)
    try:
        create_database(services.database_url, name)
        own = Endpoints(urls.with_path(services.amqp_url, name),
                        urls.with_path(services.database_url, name), services.management_url)
        yield Place(own.amqp_url, own.database_url.replace("+asyncpg", "", 1),
                    {**os.environ, **own.variables()})
    finally:
        management.delete_vhost(name)
        drop_database(services.database_url, name)
