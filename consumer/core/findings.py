"""The words of an audit: what it finds, how bad that is, and what it has to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

DEFAULT_CONSUMER_TIMEOUT = timedelta(minutes=30)
"""RabbitMQ's, after which it takes back what a consumer has not acknowledged
(https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout)."""


class Code(StrEnum):
    """What a finding is about; programs may rely on these."""

    RETRIES_MULTIPLY = "retries_multiply"
    CALL_TIMEOUT = "call_timeout"
    STATEMENT_TIMEOUT = "statement_timeout"
    IDLE_IN_TRANSACTION = "idle_in_transaction"
    ATTEMPT_TIMEOUT = "attempt_timeout"
    HAND_OVER = "hand_over"
    DRAIN_GRACE = "drain_grace"
    RETENTION = "retention"
    UNLIMITED_RETRIES = "unlimited_retries"
    DELIVERY_LIMIT = "delivery_limit"
    DELAYED_RETRY = "delayed_retry"
    DEAD_LETTER_LOOP = "dead_letter_loop"
    DEAD_LETTER_POLICY = "dead_letter_policy"


class Severity(StrEnum):
    """How bad it is. Only a violation fails an audit."""

    VIOLATION = "violation"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know about one queue, handler or dependency; None where it is about more."""

    code: Code
    severity: Severity
    message: str
    remedy: str | None = None
    queue: str | None = None
    handler: str | None = None
    dependency: str | None = None


@dataclass(frozen=True, slots=True)
class NotChecked:
    """What an audit could not look at, why, and what to do so that the next one can."""

    what: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ConsumerTimeout:
    """When the broker takes back what a worker holds, and how that is known."""

    after: timedelta = DEFAULT_CONSUMER_TIMEOUT
    source: str = "RabbitMQ's default, assumed"


@dataclass(frozen=True, slots=True)
class DatabaseTimeouts:
    """When Postgres ends a statement, and a connection that idles in a transaction. 0 is never."""

    statement: timedelta
    idle_in_transaction: timedelta


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an application runs in.

    Args:
        deploy_grace: How long a message of an unknown type is parked.
        grace: How long a drain may take.
        database: None where it could not be asked.
        otherwise: The timeout of the queues that `consumer_timeouts` does not hold.
    """

    deploy_grace: timedelta
    grace: timedelta
    database: DatabaseTimeouts | None = None
    consumer_timeouts: Mapping[str, ConsumerTimeout] = field(default_factory=dict)
    otherwise: ConsumerTimeout = ConsumerTimeout()

    def consumer_timeout(self, queue: str) -> ConsumerTimeout:
        """That of one work queue."""
        return self.consumer_timeouts.get(queue, self.otherwise)
