"""What is run: phases, rates, configurations, and the numbers that all runs share."""

from dataclasses import dataclass
from enum import StrEnum

SLOTS = 4
HEALTHY_SECONDS, SLOW_SECONDS = 0.020, 0.120
CALL_TIMEOUT_SECONDS = 0.3
DEADLINE_SECONDS = 3.0
MIN_ATTEMPT_SECONDS = 0.15
MAX_ATTEMPTS = 3
PROCESSES = 4
NAIVE_CONCURRENCY = 28
"""Of each process, where nothing limits calls: together 112, 28 times the provider's slots."""
SLOTTED_CONCURRENCY = 4

BUDGET_RATIO, BUDGET_CAPACITY, BUDGET_FLOOR_PER_MINUTE = 0.1, 20, 6


class Variant(StrEnum):
    """What the provider does with the work of a client that has hung up."""

    HONOURS = "honours"
    IGNORES = "ignores"


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of each phase: healthy, slow, healthy again."""

    before: float
    slow: float
    after: float

    @property
    def total(self) -> float:
        return self.before + self.slow + self.after

    @property
    def names(self) -> tuple[str, str, str]:
        return ("healthy", "slow", "restored")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Who does the work, and what protects the provider.

    Args:
        name: As the command line has it.
        title: As the report has it.
        celery: A Celery worker does it; the other protections do not apply.
        slows: Whether the provider becomes slow in the second phase; a control's never does.
    """

    name: str
    title: str
    celery: bool = False
    budget: bool = False
    slots: bool = False
    breaker: bool = False
    slows: bool = True

    @property
    def protected(self) -> bool:
        """Whether anything limits its calls."""
        return self.budget or self.slots or self.breaker


A = Configuration("a", "(a) naive policy")
CELERY = Configuration("celery", "(a) Celery", celery=True)
B = Configuration("b", "(b) + budget", budget=True)
C = Configuration("c", "(c) + budget + slots", budget=True, slots=True)
D = Configuration("d", "(d) all", budget=True, slots=True, breaker=True)
CONTROL_NONE = Configuration("control-a", "control: no protection, never slow", slows=False)
CONTROL_ALL = Configuration("control-d", "control: all, never slow", budget=True, slots=True,
                            breaker=True, slows=False)

CONFIGURATIONS = {c.name: c for c in (A, CELERY, B, C, D, CONTROL_NONE, CONTROL_ALL)}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run: a configuration against one kind of provider at one rate."""

    configuration: Configuration
    rate: float
    variant: Variant
    phases: Phases

    @property
    def name(self) -> str:
        return f"{self.configuration.name}-{self.rate:g}-{self.variant}"


def plans(
    only: list[str], rates: list[float], variants: list[Variant], phases: Phases
) -> list[RunPlan]:
    """All runs, in the order of the report.

    A control never makes a client hang up, so it runs with one kind of provider only.

    Args:
        only: Names of configurations; `control` stands for both controls.

    Raises:
        ValueError: A name is not known.
    """
    names = [name for word in only
             for name in (("control-a", "control-d") if word == "control" else (word,))]
    unknown = [name for name in names if name not in CONFIGURATIONS]
    if unknown:
        raise ValueError(f"no configuration is named {', '.join(unknown)}")
    return [
        RunPlan(configuration, rate, variant, phases)
        for rate in rates
        for configuration in CONFIGURATIONS.values() if configuration.name in names
        for variant in (variants if configuration.slows else variants[:1])
    ]
