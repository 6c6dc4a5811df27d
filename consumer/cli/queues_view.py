"""Queues as `consumer status` shows them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType

from consumer.cli.overview import QueueState
from consumer.cli.resting import sentences
from consumer.cli.tables import cell, table

_COUNTS = ("ready", "in flight", "delayed", "dead", "replay", "consumers", "workers")


def as_dict(queue: QueueState) -> dict[str, Any]:
    """What programs get."""
    paused = queue.paused and {
        "by": queue.paused.actor, "reason": queue.paused.reason,
        "since": queue.paused.paused_at.isoformat()}
    return {"queue": queue.name, "ready": queue.ready, "in_flight": queue.in_flight,
            "delayed": queue.delayed, "dead": queue.dead, "replay": queue.replay,
            "consumers": queue.consumers, "workers": queue.workers, "paused": paused,
            "resting": [{"why": each.why, "workers": each.workers} for each in queue.resting]}


def rendered(queues: Sequence[QueueState], at: datetime) -> RenderableType:
    """What people get: a table, then a line for each reason why a queue is not consumed."""
    shown = table("queue", *_COUNTS, "held up", numbers=_COUNTS)
    for queue in queues:
        resting = sum(each.workers for each in queue.resting)
        shown.add_row(
            cell(queue.name), cell(queue.ready), cell(queue.in_flight), cell(queue.delayed),
            cell(queue.dead, "bold red" if queue.dead else ""), cell(queue.replay),
            cell(queue.consumers), cell(queue.workers),
            cell("paused" if queue.paused else f"{resting}/{queue.workers}" if resting else "",
                 "yellow"))
    return Group(shown, *(cell(f"{queue.name}: {why}", "yellow")
                          for queue in queues for why in _held_up(queue, at)))


def _held_up(queue: QueueState, at: datetime) -> list[str]:
    paused = queue.paused
    if paused is None:
        return sentences(queue.resting, queue.workers)
    others = [each for each in queue.resting if each.why != "paused"]
    age = duration(max(0.0, (at - paused.paused_at).total_seconds()))
    return [f"paused by {paused.actor}, {age} ago: {paused.reason}",
            *sentences(others, queue.workers)]


def duration(seconds: float) -> str:
    """In the largest unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
