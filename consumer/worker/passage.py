"""What one delivery holds on its way: slots, and retries that were granted and have not begun."""

from consumer.core.admit import Barrier


class Passage:
    """Belongs to one delivery; requests made of it share it.

    Attributes:
        slots: Dependencies whose slots it holds for the whole attempt.
        waits_since_s: When it first found no free slot, in monotonic seconds.
        barred: What stood before it when it was let through without slots, so that it must not run.
        paid: Dependencies whose budgets granted its retry.
        tolled: Its retry was granted, or `denied`.
        begun: Its handler may have begun, so what was granted is spent.
        counted: It has been counted as an original or a retry.
    """

    __slots__ = ("barred", "begun", "counted", "denied", "paid", "slots", "tolled",
                 "waits_since_s")

    def __init__(self) -> None:
        self.slots: tuple[str, ...] = ()
        self.paid: tuple[str, ...] = ()
        self.barred: Barrier | None = None
        self.waits_since_s: float | None = None
        self.tolled = self.denied = self.begun = self.counted = False
