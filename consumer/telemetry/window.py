"""What happened lately: counts over the last five minutes, in steps of ten seconds."""

from collections import deque
from typing import Literal, get_args

Count = Literal[
    "originals", "attempts", "succeeded", "failed", "retries_granted", "retries_denied"]
COUNTS: tuple[Count, ...] = get_args(Count)

STEP_S = 10
STEPS = 30


class Window:
    """Counts of one dependency, whose memory does not grow with what is counted.

    `now` is always monotonic time in seconds. It should not go back; where it does, counting goes
    on in the newest step, and from the start if it went back by more than the window.
    """

    def __init__(self) -> None:
        # The step that is being filled, and the full ones it needs beside it.
        self._steps: deque[tuple[int, dict[Count, int]]] = deque(maxlen=STEPS + 1)

    def add(self, name: Count, n: int = 1, *, now: float) -> None:
        """`n` more are counted."""
        self._step(int(now // STEP_S))[name] += n

    def totals(self, now: float) -> dict[str, int]:
        """All counts, of the last five minutes and of up to a step before them."""
        oldest = int(now // STEP_S) - STEPS
        totals: dict[str, int] = dict.fromkeys(COUNTS, 0)
        for number, counts in self._steps:
            if number >= oldest:
                for name, n in counts.items():
                    totals[name] += n
        return totals

    def _step(self, number: int) -> dict[Count, int]:
        """The counts to add to at step `number`."""
        if self._steps:
            newest, counts = self._steps[-1]
            if newest - STEPS <= number <= newest:
                return counts
            if number < newest:
                self._steps.clear()
        counts = dict.fromkeys(COUNTS, 0)
        self._steps.append((number, counts))
        return counts
