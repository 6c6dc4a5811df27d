"""How commands of operators reach the broker and the database, and who the operator is."""

import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from consumer.errors import BrokerUnavailable
from consumer.settings import Settings
from consumer.store import schema
from consumer.store.engine import create_engine
from consumer.store.sql import Schema
from consumer.store.statements import Statements

T = TypeVar("T")


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[tuple[Statements, Schema]]:
    """The database, whose schema fits this version, as long as the block.

    Raises:
        ConfigurationError: No database is set, or its URL is not valid.
        StoreUnavailable: It does not answer.
        SchemaError: Its schema does not fit.
    """
    engine = create_engine(settings.database(), pooler=settings.pooler, pool_size=1,
                           application_name="consumer: operator")
    statements, name = Statements(engine), Schema(settings.schema_name)
    try:
        async with statements.driver() as driver:
            await schema.verify(driver, name)
        yield statements, name
    finally:
        await statements.close()
        await engine.dispose()


async def at_first_broker(settings: Settings, action: Callable[[str], Awaitable[T]]) -> T:
    """What `action` returns for the first of the broker's addresses that answers.

    Raises:
        ConfigurationError: No address is set.
        BrokerUnavailable: None answers; it is the error of the last.
    """
    *others, last = settings.amqp_urls()
    for url in others:
        try:
            return await action(url)
        except BrokerUnavailable:
            continue
    try:
        return await action(last)
    except BrokerUnavailable as error:
        raise BrokerUnavailable(f"RabbitMQ does not answer: {error}",
                                remedy="check CONSUMER_AMQP_URL, and that it runs") from error


def operator() -> str:
    """Who runs this command: user and host, as the operating system tells them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
