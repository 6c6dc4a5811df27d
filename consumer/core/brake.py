"""A brake for a queue: when most messages of a handler die at once, the handler is at fault."""


class Brake:
    """Counts how many of the last messages of one handler died of permanent errors.

    Args:
        of: How many of the last messages count, at least 1. It takes more than half of so many
            deaths, also when fewer messages have ended yet.
    """

    __slots__ = ("_at", "_died", "_of", "_ring")

    def __init__(self, of: int = 100) -> None:
        self._of = of
        self._ring = bytearray(of)  # 1 for a permanent death
        self._at = 0
        self._died = 0

    def ended(self, permanent: bool) -> bool:
        """A message came to its end, by a permanent error or otherwise.

        Returns:
            Whether the brake must be pulled now. It stays so until enough others have ended
            otherwise, or until `release`.
        """
        at = self._at
        self._died += permanent - self._ring[at]
        self._ring[at] = permanent
        self._at = (at + 1) % self._of
        return self._died * 2 > self._of

    def release(self) -> None:
        """All that was counted is forgotten. Idempotent."""
        self._ring = bytearray(self._of)
        self._at = 0
        self._died = 0
