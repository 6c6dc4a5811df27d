"""How the whole fleet fares with each dependency, by the heartbeats of its workers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from consumer.store.dependency_view import BudgetLevel
from consumer.store.workers import DependencyUse, LiveWorker


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Breakers of one dependency that are in one state.

    Args:
        state: `closed`, `open`, `half_open`; `none` where there is no breaker.
        workers: How many.
        why: What the first of them saw; empty unless they are open or half open.
        since_seconds: For how long the first of them has been in this state, if known.
    """

    state: str
    workers: int
    why: str
    since_seconds: float | None


@dataclass(frozen=True, slots=True)
class DependencyState:
    """A dependency, summed over the live workers that call it.

    Args:
        workers: How many they are.
        window: Counts of the last five minutes, as in `DependencyUse`.
        budget: Its account; None where nothing was ever paid in.
        breakers: One for each state that a worker's is in.
        in_flight: Calls that are made now.
        slots: Calls that may be made at once; None is no limit.
    """

    name: str
    workers: int
    window: Mapping[str, int]
    budget: BudgetLevel | None
    breakers: Sequence[BreakerState]
    in_flight: int
    slots: int | None

    @property
    def amplification(self) -> float | None:
        """Attempts for each original; None without originals."""
        originals = self.window.get("originals", 0)
        return self.window.get("attempts", 0) / originals if originals else None


_Seen = tuple[DependencyUse, float]  # and how many seconds ago


def dependency_states(
    alive: Sequence[LiveWorker], budgets: Mapping[str, BudgetLevel],
    names: Collection[str] | None = None,
) -> list[DependencyState]:
    """The dependencies of these names, by name; None stands for those that live workers call."""
    uses: dict[str, list[_Seen]] = {}
    for worker in alive:
        for name, use in worker.info.dependencies.items():
            uses.setdefault(name, []).append((use, worker.silent_seconds))
    return [_state(name, uses.get(name, []), budgets.get(name))
            for name in sorted(uses if names is None else names)]


def _state(name: str, seen: Sequence[_Seen], budget: BudgetLevel | None) -> DependencyState:
    window: Counter[str] = Counter()
    for use, _ in seen:
        window.update(use.window)
    shares = [use.share for use, _ in seen]
    limits = [share for share in shares if share is not None]
    return DependencyState(
        name, len(seen), window, budget, _breakers(seen), sum(use.in_flight for use, _ in seen),
        sum(limits) if limits and len(limits) == len(shares) else None)


def _breakers(seen: Sequence[_Seen]) -> list[BreakerState]:
    found = []
    for state in sorted({use.breaker for use, _ in seen}):
        ages = [(None if use.since_seconds is None else use.since_seconds + ago, use.why)
                for use, ago in seen if use.breaker == state]
        since_s, why = max(ages, key=lambda age: -1.0 if age[0] is None else age[0])
        found.append(BreakerState(state, len(ages), why, since_s))
    return found
