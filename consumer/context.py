"""What a handler is given besides its command."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from consumer.call import Call
from consumer.command import Command, to_row
from consumer.core.deadline import grpc_timeout, timeout_headers
from consumer.message import Lane, Message, OutboxRow
from consumer.wire import HeaderValue

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from structlog.typing import FilteringBoundLogger


def _wall_clock() -> datetime:
    return datetime.now(UTC)


class ContextOutbox:
    """Messages that leave if, and only if, the handler's transaction commits.

    Args:
        deadline: Of the command being handled, for messages that inherit it.
        now: Wall clock, aware.
    """

    __slots__ = ("_deadline", "_now", "_prefix", "rows")

    def __init__(self, prefix: str, deadline: datetime | None = None,
                 now: Callable[[], datetime] = _wall_clock) -> None:
        self._prefix, self._deadline, self._now = prefix, deadline, now
        self.rows: list[OutboxRow] = []

    async def send(
        self, command: Command, *, key: str | None = None, at: datetime | None = None,
        ordering_key: str | None = None, headers: Mapping[str, HeaderValue] | None = None,
        inherit_deadline: bool = False,
    ) -> str:
        """The command will be sent to the handlers of its type once the transaction commits.

        Args:
            key: Idempotency key; None makes one of its own for this send.
            at: Not before this time (aware). Cancel it with `consumer.Outbox(session).cancel`.
            ordering_key: Commands sent under one key are published in the order of commits.
            headers: Further headers.
            inherit_deadline: It is too late when this command is: it carries this deadline as
                `x-deadline-ms`, and as `x-timeout-ms` what is left of it. A command without a
                deadline has none to give.

        Returns:
            The message id.

        Raises:
            UnsendableMessage: It cannot be a message, or `at` is not before the deadline it
                inherits; the attempt should fail of it.
        """
        row = to_row(command, prefix=self._prefix, key=key, at=at, ordering_key=ordering_key,
                     headers=headers, deadline=self._deadline if inherit_deadline else None,
                     now=self._now())
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
        deadline: When the command is too late, by its producer or by `max_age`; None is never.
        message: The message as it came, body and properties; untrusted.
        resources: What the app's lifespan opened.
    """

    __slots__ = ("_calls", "_logger", "_now", "_remaining", "_session", "attempt", "deadline",
                 "key", "lane", "message", "outbox", "resources", "scope")

    def __init__(  # noqa: PLR0913 - one for each thing a handler may ask
        self, *, session: Callable[[], Any], outbox: ContextOutbox, scope: str, key: str,
        attempt: int, lane: Lane, message: Message, resources: Any, logger: Callable[[], Any],
        deadline: datetime | None, remaining: Callable[[], timedelta],
        calls: Callable[[tuple[str, ...]], AbstractAsyncContextManager[Call]],
        now: Callable[[], datetime] = _wall_clock,
    ) -> None:
        self._session, self.outbox, self.message = session, outbox, message
        self.scope, self.key, self.attempt, self.lane = scope, key, attempt, lane
        self.resources, self._logger = resources, logger
        self.deadline, self._remaining, self._calls, self._now = deadline, remaining, calls, now

    def remaining(self) -> timedelta:
        """Time until this attempt must end: the shorter of attempt timeout and deadline.

        Never negative. By a monotonic clock: a step of the wall clock does not change it.
        """
        return max(timedelta(0), self._remaining())

    def timeout_headers(self) -> dict[str, str]:
        """`x-deadline-ms` and `x-timeout-ms` by which this attempt must end, for an HTTP call."""
        return timeout_headers(self.remaining(), self._now())

    def grpc_timeout(self) -> str:
        """What remains, as the value of the header `grpc-timeout`; `1n` if nothing does."""
        return grpc_timeout(self.remaining())

    def call(self, *dependencies: str) -> AbstractAsyncContextManager[Call]:
        """A call to one or several dependencies the handler names.

            async with context.call("psp") as call:
                await client.post("/captures", timeout=call.timeout_s, headers=call.headers)

        Their slots are held and their breakers watched inside the block; it must end within the
        dependency's timeout and the time left, else TimeoutError. With none given: all the handler
        names. Several at once are taken together or not at all, and a call inside a call is
        refused, so that handlers cannot wait for each other.

        Leaving the block without an exception is a success, an exception classified as transient
        is a failure of the dependency, any other is neither.
        """
        return self._calls(dependencies)

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
