"""Why workers do not consume a queue at the moment, over all that could."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from consumer.store.workers import LiveWorker


@dataclass(frozen=True, slots=True)
class Resting:
    """A reason, and how many workers give it."""

    why: str
    workers: int


def resting(alive: Sequence[LiveWorker], queue: str) -> list[Resting]:
    """The reasons, those of most workers first. Each worker counts once."""
    reasons = Counter(
        why for worker in alive
        if (why := next((use.resting for use in worker.info.queues.get(queue, ()) if use.resting),
                        "")))
    return [Resting(why, workers) for why, workers in _most_first(reasons)]


def sentences(reasons: Sequence[Resting], workers: int) -> list[str]:
    """The reasons for people: those that differ in nothing but what follows the last colon are one.

    Breakers of several workers have seen different calls fail, which they state there.
    """
    example: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for reason in reasons:
        gist = reason.why.rpartition(": ")[0] or reason.why
        example.setdefault(gist, reason.why)
        counts[gist] += reason.workers
    return [f"{of_workers(count, workers)} {'rests' if count == 1 else 'rest'}: {example[gist]}"
            for gist, count in _most_first(counts)]


def of_workers(count: int, workers: int) -> str:
    """`2 of 4 workers`."""
    return f"{count} of {workers} worker{'' if workers == 1 else 's'}"


def _most_first(counts: Counter[str]) -> list[tuple[str, int]]:
    """In an order that does not change from one look to the next."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
