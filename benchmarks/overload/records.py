"""What a run leaves behind, as the programs wrote it down. Times are seconds since the epoch."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.overload.plan import DEADLINE_SECONDS
from benchmarks.overload.provider import Call


@dataclass(frozen=True, slots=True)
class Publication:
    """One command the generator published.

    Args:
        planned: When it should have been published.
        published: When it was handed to the client library.
        confirmed: When the broker had it; None if that is not known.
    """

    key: str
    planned: float
    published: float
    confirmed: float | None

    @property
    def deadline(self) -> float:
        return self.published + DEADLINE_SECONDS


@dataclass(frozen=True, slots=True)
class Refusal:
    """One command that was given up, and why."""

    key: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The provider's load at one moment."""

    at: float
    queued: int
    executing: int


@dataclass(frozen=True, slots=True)
class Times:
    """When the phases of a run began, and when publishing ended."""

    start: float
    slowed: float
    restored: float
    end: float


@dataclass(frozen=True, slots=True)
class Records:
    """Everything there is to know about one run.

    Args:
        completions: When each command took effect, by key.
        waiting: Keys of commands that are still in a queue or in the outbox.
        parks: How often a delivery was parked, by reason.
    """

    times: Times
    publications: list[Publication]
    calls: list[Call]
    samples: list[Sample]
    completions: Mapping[str, float]
    refusals: list[Refusal]
    waiting: frozenset[str]
    parks: Mapping[str, int]


def read_publications(log: Path) -> list[Publication]:
    """What the generator wrote."""
    return [Publication(**line) for line in _lines(log)]


def read_provider(log: Path) -> tuple[list[Call], list[Sample]]:
    """What the provider wrote."""
    lines = list(_lines(log))
    return ([Call(**line["call"]) for line in lines if "call" in line],
            [Sample(**line) for line in lines if "call" not in line])


def read_parks(logs: list[Path]) -> dict[str, int]:
    """How often workers parked a delivery, by reason, as they logged it."""
    parks: dict[str, int] = {}
    for log in logs:
        for line in _lines(log):
            if line.get("event") == "settled" and line.get("outcome") == "delay":
                parks[line["why"]] = parks.get(line["why"], 0) + 1
    return parks


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    with log.open() as written:
        for line in written:
            if line.startswith("{"):
                yield json.loads(line)
