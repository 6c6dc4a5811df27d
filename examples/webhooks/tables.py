"""The table of this example. `python -m examples.webhooks.tables` creates it."""

import asyncio
import os
from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, func, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import UserDefinedType


class JsonText(UserDefinedType[str]):
    """Postgres's `json`, as text.

    `json` keeps a document letter by letter. `jsonb` would refuse the valid JSON string
    "\\u0000", and reading the document into Python objects could change its numbers.
    """

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


class WebhooksTable(DeclarativeBase):
    """Base of this example's tables."""


class Webhook(WebhooksTable):
    """One webhook delivery.

    No constraint keeps a delivery id from being stored twice; the framework does.
    """

    __tablename__ = "webhook"

    id: Mapped[int] = mapped_column(primary_key=True)
    delivery_id: Mapped[str] = mapped_column(index=True)
    event: Mapped[str]
    payload: Mapped[str] = mapped_column(JsonText)
    stored_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.clock_timestamp())


async def create_tables() -> None:
    """The table exists; if it did before, it is left as it is."""
    url = make_url(os.environ["CONSUMER_DATABASE_URL"])
    engine = create_async_engine(url.set(drivername="postgresql+asyncpg"))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(WebhooksTable.metadata.create_all)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
