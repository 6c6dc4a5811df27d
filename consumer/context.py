"""What a handler is given besides its command."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from consumer.command import Command, to_row
from consumer.message import Lane, Message, OutboxRow
from consumer.wire import HeaderValue

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from structlog.typing import FilteringBoundLogger


class ContextOutbox:
    """Messages that leave if, and only if, the handler's transaction commits."""

    __slots__ = ("_prefix", "rows")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.rows: list[OutboxRow] = []

    async def send(
        self, command: Command, *, key: str | None = None, at: datetime | None = None,
        ordering_key: str | None = None, headers: Mapping[str, HeaderValue] | None = None,
    ) -> str:
        """The command will be sent to the handlers of its type once the transaction commits.

        Args:
            key: Idempotency key; None makes one of its own for this send.
            at: Not before this time (aware). Cancel it with `consumer.Outbox(session).cancel`.
            ordering_key: Commands sent under one key are published in the order of commits.
            headers: Further headers.

        Returns:
            The message id.

        Raises:
            UnsendableMessage: It cannot be a message; the attempt should fail of it.
        """
        row = to_row(command, prefix=self._prefix, key=key, at=at, ordering_key=ordering_key,
                     headers=headers)
        self.rows.append(row)
        return row.message.message_id


class Context:
    """One attempt of one command.

    Attributes:
        outbox: Sends messages with the transaction.
        attempt: Number of this attempt, from 1; the first is an original, the others are retries.
        lane: `live` or `replay`.
        key: The idempotency key, as claimed.
        idempotency_key: Scope and key in one; stable over attempts, safe to hand to providers.
        message: The message as it came, body and properties; untrusted.
        resources: What the app's lifespan opened.
    """

    __slots__ = ("_logger", "_session", "attempt", "key", "lane", "message", "outbox", "resources",
                 "scope")

    def __init__(  # noqa: PLR0913 - one for each thing a handler may ask
        self, *, session: Callable[[], Any], outbox: ContextOutbox, scope: str, key: str,
        attempt: int, lane: Lane, message: Message, resources: Any, logger: Callable[[], Any],
    ) -> None:
        self._session, self.outbox, self.message = session, outbox, message
        self.scope, self.key, self.attempt, self.lane = scope, key, attempt, lane
        self.resources, self._logger = resources, logger

    @property
    def headers(self) -> Mapping[str, HeaderValue]:
        """What the producer sent along, decoded; untrusted."""
        return self.message.properties.headers.decoded()

    @property
    def session(self) -> "AsyncSession":
        """The SQLAlchemy session in the claim's transaction, made when first asked for.

        What is written with it takes effect together with the claim, or not at all. The framework
        commits: `commit`, `rollback` and `close` raise TransactionOwned.
        """
        session: AsyncSession = self._session()
        return session

    @property
    def logger(self) -> "FilteringBoundLogger":
        """Logs with handler, key and attempt bound."""
        logger: FilteringBoundLogger = self._logger().bind(
            handler=self.scope, key=self.key, attempt=self.attempt)
        return logger

    @property
    def idempotency_key(self) -> str:
        """Scope and key in one: the same for every attempt of this command."""
        return f"{self.scope}:{self.key}"
