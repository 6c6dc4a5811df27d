"""A clock that moves only when told to."""

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID


class FakeClock:
    """Time and chance under the control of a test.

    Args:
        seed: The same seed gives the same jitter and tokens.
    """

    def __init__(self, seed: int = 0, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now, self._random = start, random.Random(seed)  # noqa: S311 - not for secrets
        self._passed_s = 0.0

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        """Time passes; a negative value is a clock set back."""
        self._now += by
        self._passed_s += max(0.0, by.total_seconds())

    def monotonic(self) -> float:
        return self._passed_s

    def jitter(self) -> float:
        return self._random.random()

    def token(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)
