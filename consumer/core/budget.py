"""The retry budget of a dependency: integer credits that originals earn and retries cost."""

from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction

from consumer.errors import RegistrationError

MOST_COUNTED = 1_000_000_000
"""Counts of a wish beyond it are taken for it, and those below 0 for 0."""

_FINEST_RATIO = 10_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How many retries a dependency can be asked to bear, over the whole fleet.

    In any window of time, retries are at most `ratio` times originals, plus `capacity`, plus the
    floor. An account starts empty.

    Args:
        ratio: Retries that one original earns; 0.1 allows one retry for ten originals.
        capacity: Retries that can be saved up.
        floor_per_minute: Retries allowed all the same, evenly spread, so that work is always
            probed; 0 is none.

    Raises:
        RegistrationError: A value makes no sense; the message names it.
    """

    ratio: float = 0.1
    capacity: int = 20
    floor_per_minute: int = 6

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, int | float) \
                or not 0 <= self.ratio <= 100:
            raise RegistrationError(f"Budget: ratio is {self.ratio!r}, but must be 0 to 100")
        for name in ("capacity", "floor_per_minute"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
                raise RegistrationError(
                    f"Budget: {name} is {value!r}, but must be a whole number, 0 to 1,000,000")

    @property
    def _fraction(self) -> Fraction:
        return Fraction(str(self.ratio)).limit_denominator(_FINEST_RATIO)

    @property
    def earned(self) -> int:
        """Credits an original earns."""
        return self._fraction.numerator

    @property
    def cost(self) -> int:
        """Credits a retry costs."""
        return self._fraction.denominator

    @property
    def most_credits(self) -> int:
        """Credits an account can hold; none where originals earn none."""
        return self.capacity * self.cost if self.earned else 0

    @property
    def floor_interval(self) -> timedelta | None:
        """Time between two retries of the floor; None where there is none."""
        return timedelta(minutes=1) / self.floor_per_minute if self.floor_per_minute else None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a process wants of the account of one dependency, and what it brings.

    Args:
        originals: Originals that began since the last exchange.
        returned: Granted retries that were not begun.
        wanted: Retries that wait to begin.
    """

    dependency: str
    budget: Budget
    originals: int = 0
    returned: int = 0
    wanted: int = 0

    def clamped(self) -> "Wish":
        """The same with counts from 0 to `MOST_COUNTED`."""
        return replace(self, originals=_count(self.originals), returned=_count(self.returned),
                       wanted=_count(self.wanted))


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one dependency. A new one is empty.

    Args:
        credits: What is saved up.
        floor_at: When the floor allows another retry, in seconds; None is at once.
        cost: Credits a retry cost when they were saved; a deploy may have changed it since.
        outstanding: Retries granted and not returned. More than these cannot come back.
    """

    credits: int = 0
    floor_at: float | None = None
    cost: int = 1
    outstanding: int = 0


def exchange(account: Account, wish: Wish, now_s: float) -> tuple[Account, int]:
    """The account after the wish, and how many retries it grants.

    Credits are paid in first, then spent; what does not fit is lost. If they do not pay for all
    that is wanted, the floor may allow one more, at most one in each of its intervals.

    So the retries granted within any window, less those returned within it, are at most the ratio
    times the originals paid in within it, plus the capacity, plus 1 and the window divided by the
    interval where there is a floor. Credits stay within 0 and `most_credits`.

    Credits saved under another cost buy as many retries as before, rounded down.
    """
    wish, budget = wish.clamped(), wish.budget
    returned = min(wish.returned, account.outstanding)
    paid_in = wish.originals * budget.earned + returned * budget.cost
    saved = account.credits * budget.cost // account.cost
    credits = max(0, min(budget.most_credits, saved + paid_in))
    granted = min(wish.wanted, credits // budget.cost)
    credits -= granted * budget.cost
    floor_at = _not_beyond(account.floor_at, budget, now_s)
    if granted < wish.wanted and budget.floor_interval is not None \
            and (floor_at is None or floor_at <= now_s):
        granted += 1
        floor_at = now_s + budget.floor_interval.total_seconds()
    outstanding = account.outstanding - returned + granted
    return Account(credits, floor_at, budget.cost, outstanding), granted


def _not_beyond(floor_at: float | None, budget: Budget, now_s: float) -> float | None:
    """Never further off than an interval, though the clock was set back or the floor raised."""
    if floor_at is None or budget.floor_interval is None:
        return floor_at
    return min(floor_at, now_s + budget.floor_interval.total_seconds())


def _count(value: int) -> int:
    return min(max(value, 0), MOST_COUNTED)
