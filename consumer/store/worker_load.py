"""What a live process says about itself in its row of table `worker`, and that as JSON.

Releases overlap during a deploy: what a newer one says beyond this is passed over, and what an
older one does not say has its default.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consumer.store.text import note

_MAX_REASON_BYTES = 500  # every heartbeat carries them


@dataclass(frozen=True, slots=True)
class QueueUse:
    """What a process does with one lane of a queue.

    Args:
        lane: `live` or `replay`.
        concurrency: Transactions at once.
        in_flight: Deliveries it holds now.
        resting: Why it does not consume the lane now; empty while it does.
    """

    lane: str
    concurrency: int
    in_flight: int
    resting: str = ""


@dataclass(frozen=True, slots=True)
class DependencyUse:
    """How a process fares with one dependency.

    Args:
        breaker: `closed`, `open` or `half_open`; `none` where there is no breaker.
        why: What opened the breaker; empty unless it is open or half open.
        since_seconds: For how long the breaker had been in that state, if known.
        in_flight: Calls it makes now.
        share: Calls it may make at once; None is no limit.
        window: Counts over the last five minutes: `originals`, `attempts`, `succeeded`, `failed`,
            `retries_granted`, `retries_denied`.
    """

    breaker: str = "none"
    why: str = ""
    since_seconds: float | None = None
    in_flight: int = 0
    share: int | None = None
    window: Mapping[str, int] = field(default_factory=dict)


def queues_json(queues: Mapping[str, Sequence[QueueUse]]) -> str:
    """As `queues_of` reads it. Reasons are cut where they are long."""
    return json.dumps({name: [_queue_said(use) for use in uses] for name, uses in queues.items()})


def queues_of(stored: str) -> dict[str, tuple[QueueUse, ...]]:
    """The uses by queue name."""
    return {name: tuple(_queue_use(said) for said in uses)
            for name, uses in json.loads(stored).items()}


def dependencies_json(dependencies: Mapping[str, DependencyUse]) -> str:
    """As `dependencies_of` reads it. Reasons are cut where they are long."""
    return json.dumps({
        name: {"breaker": use.breaker, "why": _reason(use.why), "since_seconds": use.since_seconds,
               "in_flight": use.in_flight, "share": use.share, "window": dict(use.window)}
        for name, use in dependencies.items()})


def dependencies_of(stored: str) -> dict[str, DependencyUse]:
    """The uses by name of the dependency."""
    return {name: _dependency_use(said) for name, said in json.loads(stored).items()}


def _queue_said(use: QueueUse) -> dict[str, Any]:
    said = {"lane": use.lane, "concurrency": use.concurrency, "in_flight": use.in_flight}
    # Commands of releases that knew no reasons cannot read one.
    return {**said, "resting": _reason(use.resting)} if use.resting else said


def _reason(text: str) -> str:
    return note(text, _MAX_REASON_BYTES)


def _queue_use(said: Mapping[str, Any]) -> QueueUse:
    return QueueUse(said.get("lane", "live"), said.get("concurrency", 0),
                    said.get("in_flight", 0), said.get("resting", ""))


def _dependency_use(said: Mapping[str, Any]) -> DependencyUse:
    return DependencyUse(
        said.get("breaker", "none"), said.get("why", ""), said.get("since_seconds"),
        said.get("in_flight", 0), said.get("share"), said.get("window", {}))
