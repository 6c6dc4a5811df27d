"""The figures of one run, as they are kept in JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; None where there was nothing to measure."""

    count: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What happened in one phase.

    Args:
        published: Commands published.
        originals: Commands whose first call reached the provider.
        attempts: Calls that reached the provider.
        useful: Commands that took effect before their deadline.
        excess_calls: Calls the provider worked on although the client had hung up.
        excess_seconds: How long it did.
        most_in_flight: Calls queued or executing at the provider, at most.
        success: From publishing to effect, of commands published in this phase.
        refusal: From publishing to being given up, likewise.
    """

    seconds: float
    published: int
    originals: int
    attempts: int
    useful: int
    excess_calls: int
    excess_seconds: float
    most_in_flight: int
    success: Latency
    refusal: Latency

    @property
    def amplification(self) -> float:
        """Attempts ÷ originals."""
        if not self.originals:
            return float("inf") if self.attempts else 1.0
        return self.attempts / self.originals

    @property
    def goodput(self) -> float:
        """Useful completions a second."""
        return self.useful / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a run, for the plots."""

    at: int
    published: int
    attempts: int
    useful: int
    refused: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Args:
        phases: By name, in order; `drain` is what came after publishing had ended.
        refused: Commands given up, by reason.
        parks: Deliveries parked, by reason.
        waiting: Commands neither done nor given up when the workers were stopped.
        lost: Commands of which there is no trace at all.
        unconfirmed: Commands of which the generator does not know whether the broker had them.
        recovery_seconds: From restoration until 95 % of what is published is done within its
            deadline; None if that was not reached in the run.
        lag: Of the generator, planned to actual.
    """

    name: str
    configuration: str
    rate: float
    variant: str
    finished_at: str
    phases: dict[str, PhaseResult]
    published: int
    useful: int
    late: int
    refused: dict[str, int]
    parks: dict[str, int]
    waiting: int
    lost: int
    unconfirmed: int
    recovery_seconds: float | None
    lag: Latency
    seconds: list[Second] = field(default_factory=list)

    @property
    def most_in_flight(self) -> int:
        """Calls queued or executing at the provider, at most, over the whole run."""
        return max(phase.most_in_flight for phase in self.phases.values())


def to_json(result: Result) -> dict[str, Any]:
    """The result as plain data."""
    return asdict(result)


def from_json(data: dict[str, Any]) -> Result:
    """What `to_json` was given."""
    phases = {
        name: PhaseResult(**{**phase, "success": Latency(**phase["success"]),
                             "refusal": Latency(**phase["refusal"])})
        for name, phase in data["phases"].items()
    }
    return Result(**{**data, "phases": phases, "lag": Latency(**data["lag"]),
                     "seconds": [Second(**second) for second in data["seconds"]]})
