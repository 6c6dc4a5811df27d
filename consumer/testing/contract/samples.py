"""Requests, failures and rows as the suites use them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from consumer.claim import ClaimRequest, ClaimState, Completion, FailureRecord, Fingerprint
from consumer.message import Lane, OutboxRow, Outgoing
from consumer.wire import Properties

SCOPE = "payments.capture"
RETENTION = timedelta(days=7)
FINGERPRINT = Fingerprint("jcs-sha256", b"\x00\xff fingerprint")
NOW = datetime(2024, 2, 29, 12, tzinfo=UTC)


def request(
    key: str, *, scope: str = SCOPE, fingerprint: Fingerprint = FINGERPRINT,
    may_create: bool = True, message_id: str | None = None,
) -> ClaimRequest:
    """A wish to run the command of that key."""
    return ClaimRequest(scope, key, fingerprint, "worker-1", Lane.LIVE, message_id or key,
                        RETENTION, may_create)


def completion(key: str, attempts: int = 2) -> Completion:
    """The retry of that key succeeded."""
    return Completion(SCOPE, key, attempts, RETENTION, "worker-2")


def row(
    name: str, *, ordering_key: str | None = None, available_at: datetime | None = None,
    delay: timedelta | None = None, owner: str | None = None,
) -> OutboxRow:
    """A message to send; `owner` is the key of the claim whose next copy it is."""
    properties = Properties(message_id=name, type="payments.captured").to_wire()
    message = Outgoing("consumer.commands", "payments.captured", name.encode(), properties, name)
    return OutboxRow(message, "payments.captured", ordering_key=ordering_key,
                     available_at=available_at, delay=delay,
                     owner=None if owner is None else (SCOPE, owner))


def retry(
    key: str, *, attempts: int = 1, delay: timedelta = timedelta(hours=1),
    ticket: UUID | None = None, error: str = "the provider is away",
) -> FailureRecord:
    """A failed attempt with a next copy, named `<key>-copy-<attempts>`."""
    copy = row(f"{key}-copy-{attempts}", delay=delay, owner=key)
    return FailureRecord(request(key), attempts, ClaimState.RETRYING, ticket or uuid4(), delay,
                         NOW, NOW + timedelta(seconds=1), error, "retry: transient", None, copy)


def death(key: str, *, attempts: int = 1, error: str = "no such order") -> FailureRecord:
    """A failed attempt that was the last."""
    return FailureRecord(request(key), attempts, ClaimState.DEAD, None, None, NOW,
                         NOW + timedelta(seconds=1), error, "dead: permanent", None,
                         row(f"{key}-letter"))
