"""How many commands share a transaction: halved when a group rolls back, grown back by success."""

from consumer.handler import MAX_GROUP_SIZE


class GroupSize:
    """The present limit of one executor, between 1 and 50."""

    def __init__(self) -> None:
        self.limit = MAX_GROUP_SIZE

    def shrink(self) -> None:
        """A group was rolled back: the next ones are half as large."""
        self.limit = max(1, self.limit // 2)

    def grow(self) -> None:
        """A group committed: the next ones may be one larger."""
        self.limit = min(MAX_GROUP_SIZE, self.limit + 1)
