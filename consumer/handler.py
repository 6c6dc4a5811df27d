"""Handlers: what runs when a command arrives."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Generic, Literal, get_args, get_origin

from consumer.command import C, Command
from consumer.context import Context
from consumer.core.classify import Verdict
from consumer.core.decide import RetryPolicy
from consumer.core.fingerprint import algorithm
from consumer.errors import RegistrationError

MAX_GROUP_SIZE = 50
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class Options:
    """How a handler is run. Durations are timedeltas.

    Args:
        max_attempts: Attempts in all, the first included; 1 never retries.
        backoff_base: Ceiling of the wait after the first failure; it doubles with each.
        backoff_cap: Highest ceiling of the wait.
        attempt_timeout: An attempt that runs longer is cancelled, rolled back and has failed.
        group_size: Most commands in one transaction, 1 to 50. Only what already waits is taken.
        retention: How long a key is remembered after its command ended. A duplicate that comes
            later is refused if its timestamp tells, and otherwise runs again.
        fingerprint_exclude: Top-level fields that do not make a payload another one.
        max_age: A command is given up once it is older, counted from its timestamp or from its
            first delivery, whichever is earlier; None never. A producer can shorten it with the
            header `x-deadline-ms`.
        min_attempt: No attempt begins with less time than this left before the deadline.
        retry_after_cap: Longest wait that a dependency's `Retry-After` can ask for.
        unknown_errors: What an exception that no classifier knows means: `retry`, bounded by
            attempts and budget, or `dead`.
        hold_slots: Whether slots of dependencies are held for a whole `attempt`, or, of handlers
            that use `context.call`, around each `call` only.

    Raises:
        RegistrationError: A value makes no sense; the message names it and the remedy.
    """

    max_attempts: int = 5
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_cap: timedelta = timedelta(minutes=5)
    attempt_timeout: timedelta = timedelta(seconds=30)
    group_size: int = MAX_GROUP_SIZE
    retention: timedelta = timedelta(days=30)
    fingerprint_exclude: frozenset[str] = frozenset()
    max_age: timedelta | None = None
    min_attempt: timedelta = timedelta(0)
    retry_after_cap: timedelta = timedelta(hours=1)
    unknown_errors: Literal["retry", "dead"] = "retry"
    hold_slots: Literal["attempt", "call"] = "attempt"

    def __post_init__(self) -> None:
        self._check_types()
        if self.max_attempts < 1:
            raise RegistrationError(f"max_attempts is {self.max_attempts}, but must be at least 1")
        if not 1 <= self.group_size <= MAX_GROUP_SIZE:
            raise RegistrationError(f"group_size is {self.group_size}, but must be 1 to 50")
        if self.backoff_base < timedelta(0):
            raise RegistrationError("backoff_base is negative")
        if self.backoff_cap < self.backoff_base:
            raise RegistrationError(
                f"backoff_cap ({self.backoff_cap}) is below backoff_base ({self.backoff_base})",
                remedy="raise backoff_cap or lower backoff_base")
        if self.backoff_cap > timedelta(days=10):
            raise RegistrationError(
                f"backoff_cap ({self.backoff_cap}) is more than 10 days, which the delay queues "
                "cannot hold", remedy="lower backoff_cap")
        if self.attempt_timeout <= timedelta(0):
            raise RegistrationError("attempt_timeout must be positive")
        self._check_deadlines()
        if self.retention <= self.longest_way_back:
            raise RegistrationError(
                f"retention ({self.retention}) is shorter than the longest way back of a message "
                f"({self.longest_way_back.total_seconds():.0f} s)",
                remedy="raise retention, or lower backoff_cap, retry_after_cap or max_attempts")
        if self.retention > timedelta(days=36_525):
            raise RegistrationError(f"retention ({self.retention}) is more than a hundred years",
                                    remedy="lower retention")

    def _check_deadlines(self) -> None:
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise RegistrationError("max_age must be positive", remedy="or None for no limit")
        if self.min_attempt < timedelta(0):
            raise RegistrationError("min_attempt is negative")
        if self.retry_after_cap < timedelta(0):
            raise RegistrationError("retry_after_cap is negative")
        if self.retry_after_cap > timedelta(days=10):
            raise RegistrationError(
                f"retry_after_cap ({self.retry_after_cap}) is more than 10 days, which the delay "
                "queues cannot hold", remedy="lower retry_after_cap")
        for bound in ("attempt_timeout", "max_age"):
            longest = getattr(self, bound)
            if longest is not None and self.min_attempt > longest:
                raise RegistrationError(
                    f"min_attempt ({self.min_attempt}) is longer than {bound} ({longest}): no "
                    "attempt could begin", remedy=f"lower min_attempt or raise {bound}")
        for name, allowed in (("unknown_errors", ("retry", "dead")),
                              ("hold_slots", ("attempt", "call"))):
            if getattr(self, name) not in allowed:
                raise RegistrationError(f"{name} is {getattr(self, name)!r}, but must be one of "
                                        f"{', '.join(map(repr, allowed))}")

    def _check_types(self) -> None:
        for name in ("max_attempts", "group_size"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise RegistrationError(f"{name} is {value!r}, but must be a whole number")
        for name in ("backoff_base", "backoff_cap", "attempt_timeout", "retention", "max_age",
                     "min_attempt", "retry_after_cap"):
            value = getattr(self, name)
            if value is None and name == "max_age":
                continue
            if not isinstance(value, timedelta):
                raise RegistrationError(f"{name} is {value!r}, but must be a timedelta",
                                        remedy=f"write {name}=timedelta(seconds=…)")
        if isinstance(self.fingerprint_exclude, str):
            raise RegistrationError("fingerprint_exclude is one string, but must be a set of names",
                                    remedy='write frozenset({"…"})')

    @property
    def longest_way_back(self) -> timedelta:
        """Time that can pass between a command's first attempt and its last, parks left aside."""
        try:
            return (self.backoff_cap + self.retry_after_cap) * (self.max_attempts - 1) \
                + self.attempt_timeout * self.max_attempts
        except OverflowError:
            return timedelta.max

    @property
    def policy(self) -> RetryPolicy:
        """The part that `core.decide` needs."""
        return RetryPolicy(self.max_attempts, self.backoff_base, self.backoff_cap,
                           self.retry_after_cap, self.min_attempt)


class Handler(Generic[C]):
    """Base of handlers whose effects are in this database.

        class Capture(Handler[CapturePayment]):
            name = "payments.capture"
            queue = "payments"

            async def handle(self, command: CapturePayment, context: Context) -> None:
                context.session.add(LedgerEntry(order_id=command.order_id))

    Attributes:
        name: Registered name: the scope of idempotency keys. Keep it when the class is renamed.
        queue: The work queue it takes commands from.
        options: How it is run.
        command: The command model; taken from `Handler[...]`.
        dependencies: Names of the dependencies it calls, declared in `App(dependencies=…)`. A
            handler that names any runs each command in a transaction of its own.
    """

    name: ClassVar[str] = ""
    queue: ClassVar[str] = ""
    options: ClassVar[Options] = Options()
    dependencies: ClassVar[tuple[str, ...]] = ()
    command: ClassVar[type[Command]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "command" in cls.__dict__:
            return
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, arguments = get_origin(base), get_args(base)
            ours = isinstance(origin, type) and issubclass(origin, Handler)
            if ours and arguments and isinstance(arguments[0], type):
                cls.command = arguments[0]

    async def handle(self, command: C, context: Context) -> None:
        """Do what the command asks for, with `context.session`. It commits when this returns.

        Raise `Retry` or `Reject` to say what failed; other exceptions are classified.
        """
        await self.handle_group([command], [context])

    async def handle_group(self, commands: Sequence[C], contexts: Sequence[Context]) -> None:
        """Do the work of several commands, of distinct keys, in one statement or few.

        They share one transaction. If this raises, they are run again one by one, each behind a
        savepoint, so that only the culprit fails.
        """
        for command, context in zip(commands, contexts, strict=True):
            await self.handle(command, context)

    def key(self, command: C) -> object:
        """The idempotency key of a command whose message names none; None means it has none."""
        return None

    def classify(self, error: Exception) -> Verdict | None:
        """What `error`, which an attempt failed of, means: `Transient(…)`, `Permanent(…)`, or None
        for what the app's classifier and then the defaults say. It must not block.
        """
        return None

    def fallback_reply(self, command: C) -> Mapping[str, Any] | None:
        """What a waiting requester (`reply_to`) is told when the command was given up because a
        dependency is unavailable: members of the reply's JSON, beside the reason. None adds none.
        """
        return None


@dataclass(frozen=True, slots=True)
class Registration:
    """A handler, checked.

    Args:
        handler: The instance that runs.
        groups: It does the work of a group itself.
    """

    handler: Handler[Any]
    groups: bool
    fingerprint_algorithm: str

    @property
    def scope(self) -> str:
        return self.handler.name

    @property
    def queue(self) -> str:
        return self.handler.queue

    @property
    def command(self) -> type[Command]:
        return self.handler.command

    @property
    def options(self) -> Options:
        return self.handler.options

    @property
    def dependencies(self) -> tuple[str, ...]:
        """The dependencies it names, in the order in which several are taken."""
        return tuple(sorted(self.handler.dependencies))

    @property
    def group_size(self) -> int:
        """Most commands in one transaction."""
        return 1 if self.handler.dependencies else self.handler.options.group_size


def registered(handler: Handler[Any]) -> Registration:
    """`handler`, if it can be run.

    Raises:
        RegistrationError: Name, queue, command or methods are not as they must be.
    """
    kind = type(handler)
    where = f"handler {kind.__name__}"
    if not handler.name or not handler.name.isprintable():
        raise RegistrationError(f"{where} has no name", remedy='set name = "…", the scope of keys')
    if len(handler.name.encode()) > MAX_NAME_BYTES:
        raise RegistrationError(f"{where}: its name is longer than {MAX_NAME_BYTES} bytes")
    if not handler.queue:
        raise RegistrationError(f"{where} has no queue", remedy='set queue = "…"')
    command = getattr(kind, "command", None)
    if command is None or not command.command_type:
        raise RegistrationError(
            f"{where} has no command with a type",
            remedy='declare it: class X(Command, type="…"), then Handler[X]')
    named = handler.dependencies
    if isinstance(named, str) or not all(isinstance(name, str) for name in named):
        raise RegistrationError(f"{where}: dependencies is {named!r}, but must be a tuple of names",
                                remedy='write dependencies = ("…",)')
    if len(set(named)) != len(tuple(named)):
        raise RegistrationError(f"{where} names a dependency twice")
    if handler.options.hold_slots == "call" and not named:
        raise RegistrationError(f"{where}: hold_slots is 'call', but it names no dependency",
                                remedy='set dependencies = ("…",), or leave hold_slots alone')
    own = {name: getattr(kind, name) is not getattr(Handler, name)
           for name in ("handle", "handle_group")}
    if not any(own.values()):
        raise RegistrationError(f"{where} has neither handle nor handle_group")
    for name, overridden in own.items():
        if overridden and not inspect.iscoroutinefunction(getattr(kind, name)):
            raise RegistrationError(
                f"{where}: {name} is not an async function, it would block the event loop",
                remedy=f"write async def {name}, and run blocking code in a thread")
    if named and own["handle_group"]:
        raise RegistrationError(f"{where} names dependencies and has handle_group",
                                remedy="calls to a dependency are made one by one: write handle")
    return Registration(handler, own["handle_group"],
                        algorithm(handler.options.fingerprint_exclude))
