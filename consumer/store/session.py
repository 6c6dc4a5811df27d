"""The session handlers write with: it cannot end the transaction, which the framework owns."""

from typing import Any, NoReturn

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, AsyncSessionTransaction
from sqlalchemy.orm import Session

from consumer.errors import TransactionOwned


def _refuse(call: str) -> NoReturn:
    raise TransactionOwned(
        f"session.{call}() is the framework's business: it commits after the handler returns, and "
        "rolls back when it raises",
        remedy="return, raise, or use `async with session.begin_nested():` for a savepoint")


class _OwnedSession(Session):
    """What `AsyncSession.run_sync` hands out."""

    def commit(self) -> None:
        _refuse("commit")

    def rollback(self) -> None:
        _refuse("rollback")

    def close(self) -> None:
        _refuse("close")

    def reset(self) -> None:
        _refuse("reset")

    def invalidate(self) -> None:
        _refuse("invalidate")

    def begin(self, nested: bool = False) -> Any:
        if not nested:
            _refuse("begin")
        return super().begin(nested=True)


class ContextSession(AsyncSession):
    """An `AsyncSession` in the claim's transaction; `begin_nested` works, ending it does not.

    Raises:
        TransactionOwned: By commit, rollback, close, begin, reset and invalidate.
    """

    sync_session_class = _OwnedSession

    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection, expire_on_commit=False,
                         join_transaction_mode="rollback_only")

    async def commit(self) -> None:
        _refuse("commit")

    async def rollback(self) -> None:
        _refuse("rollback")

    async def close(self) -> None:
        _refuse("close")

    async def aclose(self) -> None:
        _refuse("aclose")

    async def reset(self) -> None:
        _refuse("reset")

    async def invalidate(self) -> None:
        _refuse("invalidate")

    def begin(self) -> AsyncSessionTransaction:
        _refuse("begin")

    def release(self) -> None:
        """The transaction is over: detach all objects. Sends nothing."""
        Session.close(self.sync_session)
