"""What the experiment must show. Pure functions of the results; each bar can be missed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.overload.plan import (
    BUDGET_CAPACITY,
    BUDGET_FLOOR_PER_MINUTE,
    BUDGET_RATIO,
    SLOTS,
    SLOW_SECONDS,
    Variant,
)
from benchmarks.overload.results import Result

HARD_RATE = 70.0
MOST_AMPLIFICATION = 1.10
LEAST_SHARE_OF_CAPACITY = 0.95
LONGEST_RECOVERY_SECONDS = 5.0
LEAST_SHARE_OF_UNPROTECTED = 0.97
LONGEST_LAG_MS = 100.0
SLOW_CAPACITY = SLOTS / SLOW_SECONDS
"""Commands a second that the slow provider can do."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that must hold, and whether it did.

    Args:
        detail: The figures it was decided by.
    """

    run: str
    claim: str
    holds: bool
    detail: str


def check(results: Mapping[str, Result]) -> list[Bar]:
    """Every bar that the results allow to decide, by the name of the run."""
    bars: list[Bar] = []
    for result in results.values():
        bars += [open_loop(result), nothing_lost(result)]
        if result.configuration in ("b", "c", "d"):
            bars += within_budget(result)
        if result.configuration == "d" and result.rate == HARD_RATE:
            bars += survives(result)
        if result.configuration in ("a", "celery") and result.rate == HARD_RATE \
                and result.variant == Variant.IGNORES:
            bars.append(never_recovers(result))
        if result.configuration == "control-d":
            bars += costs_nothing(result, _unprotected(result, results.values()))
    return bars


def _unprotected(control: Result, results: Iterable[Result]) -> Result | None:
    return next((other for other in results if other.configuration == "control-a"
                 and (other.rate, other.variant) == (control.rate, control.variant)), None)


def open_loop(result: Result) -> Bar:
    """The generator published on time, or the run says nothing about an open loop."""
    late = result.lag.p99_ms
    return Bar(result.name, f"the generator's lag is at most {LONGEST_LAG_MS:g} ms (p99)",
               late is not None and late <= LONGEST_LAG_MS,
               "nothing was published" if late is None else f"{late:g} ms")


def nothing_lost(result: Result) -> Bar:
    """Every command the broker confirmed took effect, was given up with a reason, or waits."""
    return Bar(result.name, "no command is lost", result.lost == 0, f"{result.lost} lost")


def within_budget(result: Result) -> list[Bar]:
    """In every phase, attempts stay within what the budget allows."""
    bars = []
    for name, phase in result.phases.items():
        floor = BUDGET_FLOOR_PER_MINUTE * phase.seconds / 60
        most = phase.originals * (1 + BUDGET_RATIO) + BUDGET_CAPACITY + floor
        bars.append(Bar(
            result.name, f"{name}: attempts ≤ {1 + BUDGET_RATIO:g} · originals + capacity + floor",
            phase.attempts <= most, f"{phase.attempts} ≤ {most:.1f}"))
    return bars


def survives(result: Result) -> list[Bar]:
    """With all protections, the slow phase is used to the full and over soon."""
    slow = result.phases["slow"]
    least = LEAST_SHARE_OF_CAPACITY * SLOW_CAPACITY
    recovery = result.recovery_seconds
    bars = [
        Bar(result.name, f"slow: amplification ≤ {MOST_AMPLIFICATION:.2f}",
            slow.amplification <= MOST_AMPLIFICATION, f"{slow.amplification:.3f}"),
        Bar(result.name, f"slow: at least {least:.1f} useful completions a second",
            slow.goodput >= least, f"{slow.goodput:.1f}"),
        Bar(result.name, f"recovery within {LONGEST_RECOVERY_SECONDS:g} s",
            recovery is not None and recovery <= LONGEST_RECOVERY_SECONDS,
            "never" if recovery is None else f"{recovery:.1f} s"),
    ]
    if result.variant == Variant.HONOURS:
        # Where the provider goes on after a client has hung up, the excess is reported instead.
        most = result.most_in_flight
        bars.append(Bar(result.name, f"never more than {SLOTS} calls in flight", most <= SLOTS,
                        f"{most}"))
    return bars


def never_recovers(result: Result) -> Bar:
    """Plain retries keep the provider overloaded after the cause is gone."""
    recovery = result.recovery_seconds
    return Bar(result.name, "does not recover within the run", recovery is None,
               "never" if recovery is None else f"{recovery:.1f} s")


def costs_nothing(protected: Result, plain: Result | None) -> list[Bar]:
    """While all is well, protections refuse nothing and slow nothing down."""
    refused = sum(protected.refused.values())
    bars = [Bar(protected.name, "nothing is refused", refused == 0, f"{refused} refused")]
    if plain is not None:
        least = LEAST_SHARE_OF_UNPROTECTED * plain.useful
        bars.append(Bar(protected.name, "throughput within 3 % of no protection",
                        protected.useful >= least, f"{protected.useful} ≥ {least:.1f}"))
    return bars
