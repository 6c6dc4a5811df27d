"""pytest plugin: a real broker and database for tests, a fresh corner of both for each test.

Fixtures:
    consumer_services (session): `.amqp_url`, `.database_url`, `.management_url`.
    consumer_vhost: a virtual host of its own for the test: `.url`, `.name`.
    consumer_database: a database of its own with the framework's tables: `.url`, `.name`.
    consumer_empty_database: a database of its own with nothing in it.
    consumer_template_database (session): what `consumer_database` is a copy of.
    consumer_create_schema (session): fills the template; override it to add your own tables.

A service that is missing is an error, never a skip: a suite that runs nothing must not pass.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from consumer.testing.services import Endpoints, urls
from consumer.testing.services.management import Management
from consumer.testing.services.postgres_admin import create_database, drop_database
from consumer.testing.services.provision import SOURCES, TEST_SERVICES, Source, chosen_source
from consumer.testing.services.provision import provision as provision_services


@dataclass(frozen=True)
class Vhost:
    """A virtual host; `url` leads to it."""

    name: str
    url: str = field(repr=False)


@dataclass(frozen=True)
class Database:
    """A database; `url` leads to it."""

    name: str
    url: str = field(repr=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--consumer-services`."""
    parser.getgroup("consumer").addoption(
        "--consumer-services",
        choices=SOURCES,
        default=None,
        help="where tests get RabbitMQ and Postgres from; auto takes the URLs of the environment, "
        f"else Docker, else this machine's programs (default: {TEST_SERVICES} or auto)",
    )


@pytest.fixture(scope="session")
def consumer_services(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoints]:
    """A RabbitMQ and a Postgres that answer; stopped at the end if they were started here."""
    source: Source = chosen_source(request.config.getoption("--consumer-services"))
    with provision_services(source, lambda: tmp_path_factory.mktemp("services")) as endpoints:
        yield endpoints


@pytest.fixture
def consumer_vhost(consumer_services: Endpoints) -> Iterator[Vhost]:
    """A fresh virtual host in which the user of the URL may do everything."""
    management = Management(consumer_services.management_url)
    name = f"test-{secrets.token_hex(6)}"
    management.create_vhost(name)
    try:
        yield Vhost(name, urls.with_path(consumer_services.amqp_url, name))
    finally:
        management.delete_vhost(name)


@pytest.fixture(scope="session")
def consumer_create_schema() -> Callable[[str], None]:
    """Creates the framework's tables in the database of a URL.

    Override it in a conftest.py, with the same scope, to create your own tables as well.
    """

    def create_schema(url: str) -> None:
        # Imported when it is needed: the plugin is loaded into every pytest run of whoever has
        # this package installed, and need not bring the migration machinery along.
        from consumer.store.schema import upgrade  # noqa: PLC0415

        asyncio.run(upgrade(url))

    return create_schema


@pytest.fixture(scope="session")
def consumer_template_database(
    consumer_services: Endpoints, consumer_create_schema: Callable[[str], None]
) -> Iterator[Database]:
    """A database with the tables of a release and no rows; nobody is connected to it."""
    with _database(consumer_services, "template") as database:
        consumer_create_schema(database.url)
        yield database


@pytest.fixture
def consumer_database(
    consumer_services: Endpoints, consumer_template_database: Database
) -> Iterator[Database]:
    """A fresh copy of the template database."""
    template = consumer_template_database.name
    with _database(consumer_services, "test", template=template) as database:
        yield database


@pytest.fixture
def consumer_empty_database(consumer_services: Endpoints) -> Iterator[Database]:
    """A fresh database without tables."""
    with _database(consumer_services, "test") as database:
        yield database


@contextmanager
def _database(
    services: Endpoints, purpose: str, *, template: str | None = None
) -> Iterator[Database]:
    name = f"consumer_{purpose}_{secrets.token_hex(6)}"
    try:
        create_database(services.database_url, name, template=template)
        yield Database(name, urls.with_path(services.database_url, name))
    finally:
        drop_database(services.database_url, name)
