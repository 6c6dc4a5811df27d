"""How often one command can call what its handler depends on, and for how long: the numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import prod

from consumer.core.backoff import ceiling
from consumer.core.decide import RetryPolicy
from consumer.core.ladder import round_up_delay

FRAMEWORK = "framework"
"""The layer of attempts this framework makes."""

TIMES = "\u00d7"
"""The sign between layers that multiply."""

_DOUBLINGS = 63  # after so many, the ceiling of a wait has reached any cap


@dataclass(frozen=True, slots=True)
class Called:
    """A dependency, as one handler uses it.

    Args:
        layers: Attempts by the layer inside one call that makes them, outermost first.
        calls: Calls of one attempt of the handler, where the dependency is declared.
        timeout: Of one call, all of its attempts included.
        declared: The application declares it; else nothing is known of what the handler calls.
        budgeted: A budget limits the handler's retries.
        named: The handler names it; else it is the one named after its queue.
    """

    name: str
    layers: tuple[tuple[str, int], ...]
    calls: int
    timeout: timedelta
    declared: bool
    budgeted: bool
    named: bool


@dataclass(frozen=True, slots=True)
class Path:
    """The attempts on the way from a command to one dependency.

    Args:
        layers: Attempts by layer, the framework's first.
    """

    to: Called
    layers: tuple[tuple[str, int], ...]

    @property
    def attempts(self) -> int:
        """How often what one call asks for can be tried for one command: layers multiply."""
        return prod(attempts for _, attempts in self.layers)

    @property
    def calls(self) -> int | None:
        """How often the dependency can be called for one command; None where it is not known."""
        return self.attempts * self.to.calls if self.to.declared else None


@dataclass(frozen=True, slots=True)
class AuditedHandler:
    """What matters of a handler.

    Args:
        longest_way_back: Between a command's first attempt and its last, parks left aside.
        group_size: Most commands in one transaction.
        names_dependencies: It calls other systems, which no rollback undoes.
        dependencies: What it calls; for one that names nothing, the one named after its queue.
    """

    name: str
    policy: RetryPolicy
    attempt_timeout: timedelta
    max_age: timedelta | None
    retention: timedelta
    longest_way_back: timedelta
    group_size: int
    names_dependencies: bool
    dependencies: tuple[Called, ...]

    @property
    def paths(self) -> Iterator[Path]:
        """One for each dependency."""
        for called in self.dependencies:
            yield Path(called, ((FRAMEWORK, self.policy.max_attempts), *called.layers))

    @property
    def named(self) -> tuple[Called, ...]:
        """The dependencies it names itself."""
        return tuple(called for called in self.dependencies if called.named)

    @property
    def calls(self) -> int | None:
        """Calls for one command to all dependencies together; None where none are declared."""
        known = [path.calls for path in self.paths if path.calls is not None]
        return sum(known) if known else None

    @property
    def calls_timeout(self) -> timedelta:
        """How long the calls of one attempt may take, one after the other."""
        return sum((called.timeout * called.calls for called in self.named), timedelta(0))

    @property
    def running(self) -> timedelta:
        """Longest time that all attempts of one command run."""
        return self.attempt_timeout * self.policy.max_attempts

    @property
    def backoffs(self) -> timedelta:
        """Longest sum of the waits between its attempts, by backoff alone."""
        waits, policy = self.policy.max_attempts - 1, self.policy
        growing = sum(
            (round_up_delay(ceiling(failed, policy.backoff_base, policy.backoff_cap))
             for failed in range(1, min(waits, _DOUBLINGS) + 1)), timedelta(0))
        flat = round_up_delay(ceiling(_DOUBLINGS, policy.backoff_base, policy.backoff_cap))
        return growing + flat * max(0, waits - _DOUBLINGS)

    @property
    def retry_afters(self) -> timedelta:
        """What dependencies can add to the waits by asking for it."""
        return self.policy.retry_after_cap * (self.policy.max_attempts - 1)

    @property
    def longest(self) -> timedelta:
        """From a command's first delivery to its end, parks left aside; max_age may cut it."""
        whole = self.running + self.backoffs + self.retry_afters
        return whole if self.max_age is None else min(whole, self.max_age)


@dataclass(frozen=True, slots=True)
class AuditedQueue:
    """A work queue and its handlers.

    Args:
        concurrency: Transactions at once in a process.
        prefetch: Deliveries of the live lane that a process holds.
        replay_prefetch: Those of the replay lane, which the same executors run.
    """

    name: str
    concurrency: int
    prefetch: int
    replay_prefetch: int
    handlers: tuple[AuditedHandler, ...]

    def handed_over_after(self, handler: AuditedHandler) -> timedelta:
        """How long the last delivery in hand is held, where a transaction, group or not, takes at
        most one attempt timeout.
        """
        return handler.attempt_timeout * self._rounds(handler.group_size)

    def one_by_one_after(self, handler: AuditedHandler) -> timedelta:
        """How long it is held where every command takes a whole attempt timeout."""
        return handler.attempt_timeout * self._rounds(1)

    def longest_command_within(self, bound: timedelta) -> timedelta:
        """How long commands may take, on average, for the last one in hand to be held for no more
        than `bound`.
        """
        return bound / self._rounds(1)

    def prefetch_within(self, handler: AuditedHandler, bound: timedelta) -> int:
        """Largest prefetch of the live lane with which `handed_over_after` is below `bound`.

        It may be 0 or less: then no prefetch will do.
        """
        rounds = -(-bound // handler.attempt_timeout) - 1
        return rounds * self.concurrency * handler.group_size - self.replay_prefetch

    def _rounds(self, group_size: int) -> int:
        held = self.prefetch + self.replay_prefetch
        return -(-held // (self.concurrency * group_size))
