"""The tables of this example. `python -m examples.payments.tables` creates them.

Nothing in them makes a command take effect once: no constraint would stop a second ledger entry
for the same order. That is left to the framework.
"""

import asyncio
import os
from datetime import datetime

from sqlalchemy import BigInteger, DateTime, Identity, func, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class PaymentsTable(DeclarativeBase):
    """Base of this example's tables."""


class Payment(PaymentsTable):
    """What an order has brought in so far."""

    __tablename__ = "payment"

    order_id: Mapped[str] = mapped_column(primary_key=True)
    captured_cents: Mapped[int] = mapped_column(BigInteger)
    refunded_cents: Mapped[int] = mapped_column(BigInteger, default=0)


class LedgerEntry(PaymentsTable):
    """One movement of money. Refunds are negative."""

    __tablename__ = "ledger_entry"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    order_id: Mapped[str] = mapped_column(index=True)
    amount_cents: Mapped[int] = mapped_column(BigInteger)
    idempotency_key: Mapped[str]
    booked_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.clock_timestamp())


class Receipt(PaymentsTable):
    """One receipt that was sent."""

    __tablename__ = "receipt"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    order_id: Mapped[str] = mapped_column(index=True)
    amount_cents: Mapped[int] = mapped_column(BigInteger)
    sent_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.clock_timestamp())


class PaymentRequest(PaymentsTable):
    """One payment the HTTP endpoint accepted."""

    __tablename__ = "payment_request"

    idempotency_key: Mapped[str] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    amount_cents: Mapped[int] = mapped_column(BigInteger)
    accepted_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.clock_timestamp())


def database_engine() -> AsyncEngine:
    """An engine on the database that CONSUMER_DATABASE_URL names. Nothing is connected yet."""
    url = make_url(os.environ["CONSUMER_DATABASE_URL"])
    return create_async_engine(url.set(drivername="postgresql+asyncpg"))


async def create_tables() -> None:
    """The tables exist; those that did before are left as they are."""
    engine = database_engine()
    try:
        async with engine.begin() as connection:
            await connection.run_sync(PaymentsTable.metadata.create_all)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
