"""How the dependencies are: budget, breaker, slots."""

import math
from collections.abc import Collection

from consumer.core.breaker import State
from consumer.telemetry.labels import RetryDecision
from consumer.telemetry.series import Catalogue
from consumer.telemetry.work import LATENCIES_S


class DependencyMetrics:
    """Recording is cheap, never blocks and is allowed in any thread.

    `dependency` is always the name of a `Dependency`, or of the queue that stands for one.
    """

    def __init__(self, make: Catalogue, dependencies: Collection[str]) -> None:
        self._retries = make.counter(
            "retries", "Retries begun, and those that were not.", "dependency", "decision")
        self._granted = make.counter(
            "budget_granted", "Retries that the budget granted this process.", "dependency")
        self._denied = make.counter(
            "budget_denied", "Wishes for a retry that the budget did not grant.", "dependency")
        self._level = make.gauge(
            "budget_level", "Retries that the fleet's budget could pay for.", "dependency")
        self._leased = make.gauge(
            "budget_leased", "Granted retries that this process has not begun.", "dependency")
        self._breaker = make.gauge(
            "breaker_state", "1 for the state the breaker is in, else 0.", "dependency", "state")
        self._calls_in_flight = make.gauge(
            "dependency_in_flight", "Calls in flight.", "dependency")
        self._share = make.gauge(
            "slot_share", "Slots that this process may use; +Inf without a limit.", "dependency")
        self._slot_wait = make.histogram(
            "slot_wait_seconds", "Time waited for a slot.", "dependency", buckets=LATENCIES_S)
        self._retries.make(dependencies, RetryDecision)
        self._granted.make(dependencies)
        self._denied.make(dependencies)

    def retry(self, dependency: str, decision: RetryDecision) -> None:
        """A retry begins, or it was decided that none does."""
        self._retries[dependency, decision].inc()

    def budget(self, dependency: str, granted: int, denied: int) -> None:
        """The budget granted so many of the retries wished for, and denied so many."""
        self._granted[dependency,].inc(granted)
        self._denied[dependency,].inc(denied)

    def budget_level(self, dependency: str, left: int) -> None:
        """The fleet's budget can pay for so many retries now."""
        self._level[dependency,].set(left)

    def budget_leased(self, dependency: str, n: int) -> None:
        """This process holds so many granted retries now."""
        self._leased[dependency,].set(n)

    def breaker(self, dependency: str, state: State) -> None:
        """The breaker is in this state now, and in no other."""
        for known in State:
            self._breaker[dependency, known].set(state == known)

    def dependency_in_flight(self, dependency: str, n: int) -> None:
        """So many calls are in flight now."""
        self._calls_in_flight[dependency,].set(n)

    def slots(self, dependency: str, share: int | None) -> None:
        """This process may have so many calls in flight now; None is no limit."""
        self._share[dependency,].set(math.inf if share is None else share)

    def slot_waited(self, dependency: str, seconds: float) -> None:
        """A call has waited so long for its slot, 0 included."""
        self._slot_wait[dependency,].observe(max(0.0, seconds))
