"""Everything this package raises on purpose.

    ConsumerError
    ├── ConfigurationError        a setting, an option or an argument is wrong
    │   └── RegistrationError     a handler, command or queue is declared wrongly
    ├── SchemaError               the database schema is missing, too old or too new
    ├── TopologyError             the broker does not hold what the app declares
    ├── ServicesError             development services cannot be started
    ├── InfrastructureError       never the message's fault; consuming pauses
    │   ├── StoreUnavailable      Postgres does not answer
    │   └── BrokerUnavailable     RabbitMQ does not answer
    ├── SerializationConflict     Postgres asks to run the transaction again
    ├── CommitFailed              Postgres refused a COMMIT; nothing of it stands
    ├── TransactionOwned          a handler tried to end the framework's transaction
    ├── HandlerAborted            a handler cancelled itself or called sys.exit
    ├── DependencyUnavailable     a call was not begun: breaker open, or no slot came free
    ├── UnsendableMessage         a message no broker could carry, refused when it is written
    └── HandlerSignal             raised by handlers, on purpose
        ├── Retry                 try again later
        └── Reject                give up now
"""

from datetime import timedelta


class ConsumerError(Exception):
    """Root of all errors of this package.

    Args:
        message: One line that says what is wrong, without secrets.
        remedy: One line that says what to do about it, if there is such a thing.
    """

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.remedy})" if self.remedy else message


class ConfigurationError(ConsumerError):
    """A setting, an option or an argument is wrong; the message names it."""


class RegistrationError(ConfigurationError):
    """A handler, command or queue is declared wrongly; raised before anything is consumed."""


class SchemaError(ConsumerError):
    """The database schema is missing, older or newer than this code can work with."""


class TopologyError(ConsumerError):
    """The broker lacks an object the app needs, or holds it with other arguments."""


class ServicesError(ConsumerError):
    """The development services cannot be started or found."""


class InfrastructureError(ConsumerError):
    """The database or the broker failed; the message at hand is innocent."""


class StoreUnavailable(InfrastructureError):
    """Postgres cannot be reached, or ended our connection."""


class BrokerUnavailable(InfrastructureError):
    """RabbitMQ cannot be reached, or ended our connection."""


class SerializationConflict(ConsumerError):
    """Postgres asks for the transaction to be run again (40001, 40P01, 55P03)."""


class CommitFailed(ConsumerError):
    """Postgres refused the COMMIT, for a deferred constraint, say. Its cause says which."""


class TransactionOwned(ConsumerError):
    """`commit`, `rollback` or `close` was called on the session of a context."""


class HandlerAborted(ConsumerError):
    """A handler ended in a cancellation nobody else asked for, or tried to end the process."""


class DependencyUnavailable(ConsumerError):
    """A call was not begun: the dependency's breaker is open, or no slot of it came free in time.

    An attempt that ends with it before it called anything is no attempt: the command is parked.

    Args:
        dependency: Which one.
        why: Why, for people.
        no_slot: It is a slot that was missing.
    """

    def __init__(self, dependency: str, why: str, *, no_slot: bool = False) -> None:
        super().__init__(f"{dependency}: {why}")
        self.dependency, self.no_slot = dependency, no_slot


class UnsendableMessage(ConsumerError):
    """The message is too large, or a name or property does not fit AMQP 0-9-1."""


class HandlerSignal(ConsumerError):
    """A handler tells the framework what became of its attempt."""


class Retry(HandlerSignal):
    """Raise it in a handler: the attempt failed for now, try again later.

    Args:
        message: What went wrong; it is stored with the attempt.
        after: Shortest time until the next attempt; jitter and backoff only add to it.
    """

    def __init__(self, message: str = "the handler asked for a retry", *,
                 after: timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after


class Reject(HandlerSignal):
    """Raise it in a handler: this command can never succeed; dead-letter it now.

    Args:
        reason: Why; it is stored with the dead letter and shown to operators.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
