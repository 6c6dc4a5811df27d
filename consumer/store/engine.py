"""The SQLAlchemy engine: pool, driver and what a pooler in front of Postgres needs."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal

import asyncpg
from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from consumer.errors import ConfigurationError
from consumer.store.address import address_of
from consumer.store.failures import record_error

Pooler = Literal["none", "transaction"]
POOLED = "consumer_behind_transaction_pooler"  # execution option of such engines
_CONNECT_TIMEOUT = timedelta(seconds=10)


def create_engine(
    database_url: str, *, pooler: Pooler = "none", pool_size: int = 5,
    statement_timeout: timedelta | None = None, lock_timeout: timedelta | None = None,
    idle_in_transaction_timeout: timedelta | None = None, application_name: str = "consumer",
) -> AsyncEngine:
    """An engine on asyncpg, READ COMMITTED. Nothing is connected yet.

    Args:
        database_url: postgresql://, postgres:// or postgresql+asyncpg://, with the parameters
            libpq knows (`sslmode`, for one).
        pooler: `transaction` if a transaction-mode pooler stands in front: no statement outlives
            its transaction.
        pool_size: Connections at most. Each store and each outbox keeps one.
        statement_timeout: Postgres ends statements that take longer (57014).
        lock_timeout: Postgres ends statements that wait longer for a lock (55P03).
        idle_in_transaction_timeout: Postgres ends connections idle in a transaction for longer.

    Raises:
        ConfigurationError: The URL is not one; or a timeout was given with a pooler, which does
            not pass them on.
    """
    address = address_of(database_url)
    timeouts = _timeouts(statement_timeout=statement_timeout, lock_timeout=lock_timeout,
                         idle_in_transaction_session_timeout=idle_in_transaction_timeout)
    if timeouts and pooler == "transaction":
        raise ConfigurationError(
            f"{', '.join(timeouts)} cannot be set through a transaction-mode pooler",
            remedy="set it for the role instead: ALTER ROLE … SET statement_timeout = …")
    connect = _connector(address.dsn, pooler, {"application_name": application_name, **timeouts})
    engine = create_async_engine(
        # The address goes to the driver below: whoever prints the engine prints no secret.
        URL.create("postgresql+asyncpg", host=address.shown),
        connect_args={"async_creator_fn": connect, **_statement_caching(pooler)},
        execution_options={POOLED: pooler == "transaction"},
        isolation_level="READ COMMITTED", pool_size=pool_size, max_overflow=0, pool_pre_ping=True,
        hide_parameters=True,
    )
    # Here and not where it is used: `event.contains` goes by the engine's id, which a new engine
    # can have in common with one that is gone.
    event.listen(engine.sync_engine, "handle_error", record_error)
    return engine


def is_pooled(engine: AsyncEngine) -> bool:
    """Whether a transaction-mode pooler stands in front, as told to `create_engine`."""
    return bool(engine.sync_engine.get_execution_options().get(POOLED, False))


def _connector(dsn: str, pooler: Pooler, settings: dict[str, str]) -> Callable[..., Awaitable[Any]]:
    cached = 0 if pooler == "transaction" else 100

    async def connect(**_: Any) -> Any:
        return await asyncpg.connect(dsn, timeout=_CONNECT_TIMEOUT.total_seconds(),
                                     server_settings=settings, statement_cache_size=cached)

    return connect


def _statement_caching(pooler: Pooler) -> dict[str, Any]:
    """Behind a pooler no statement gets a name: names clash there, and unique ones pile up on the
    servers, because closing one can reach another server than preparing it did.
    """
    if pooler == "none":
        return {}
    return {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str}


def _timeouts(**given: timedelta | None) -> dict[str, str]:
    return {name: str(max(1, round(value.total_seconds() * 1000)))
            for name, value in given.items() if value is not None}
