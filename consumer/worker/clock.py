"""Time and chance as the machine has them."""

import time
from datetime import UTC, datetime
from random import SystemRandom
from uuid import UUID, uuid4


class SystemClock:
    """The machine's clock and randomness."""

    def __init__(self) -> None:
        self._random = SystemRandom()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def jitter(self) -> float:
        return self._random.random()

    def token(self) -> UUID:
        return uuid4()
