"""The table of this example. `python -m examples.exchange_rates.tables` creates it."""

import asyncio
import os

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class InvoicesTable(DeclarativeBase):
    """Base of this example's tables."""


class PricedInvoice(InvoicesTable):
    """The amount of an invoice in its customer's currency."""

    __tablename__ = "priced_invoice"

    id: Mapped[int] = mapped_column(primary_key=True)
    invoice_id: Mapped[str]
    currency: Mapped[str]
    cents: Mapped[int]


async def create_tables() -> None:
    """The table exists; if it did before, it is left as it is."""
    url = make_url(os.environ["CONSUMER_DATABASE_URL"])
    engine = create_async_engine(url.set(drivername="postgresql+asyncpg"))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(InvoicesTable.metadata.create_all)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
