"""Slots of a fleet: whatever workers do and in whatever order, never more than the limit."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumer.core.slots import renewed, shares

LEASE = 3
"""Renewals and deaths are counted in steps of a common clock."""

members = st.lists(st.uuids().map(str), max_size=12, unique=True)
limits = st.integers(0, 40)
names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12)


@given(names, limits, members)
def test_a_split_is_even_and_gives_out_the_whole_limit(
    dependency: str, limit: int, workers: list[str]
) -> None:
    split = shares(dependency, limit, workers)
    assert set(split) == set(workers)
    assert sum(split.values()) == (limit if workers else 0)
    assert max(split.values(), default=0) - min(split.values(), default=0) <= 1


@given(names, limits, members, st.uuids().map(str))
def test_a_worker_that_comes_or_goes_moves_its_own_share_and_nothing_else(
    dependency: str, limit: int, workers: list[str], newcomer: str
) -> None:
    before = shares(dependency, limit, workers)
    after = shares(dependency, limit, [*workers, newcomer])
    if newcomer not in workers:
        assert all(after[worker] <= before[worker] for worker in workers)
        assert sum(before.values()) - sum(after[w] for w in workers) == after[newcomer] * bool(
            workers)


@dataclass
class Holder:
    """A worker's row, and its process: `in_flight` is None once that is dead."""

    held: int
    in_flight: int | None
    lease_until: int


class Fleet(RuleBasedStateMachine):
    """Workers that renew, work, leave and die around one row each, as the store keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 0
        self.clock = 0
        self.joined = 0
        self.rows: dict[str, Holder] = {}

    def alive(self) -> list[str]:
        return [name for name, row in self.rows.items() if row.in_flight is not None]

    def renew(self, name: str) -> None:
        """What the store does in one transaction."""
        for dead in [other for other, row in self.rows.items() if row.lease_until <= self.clock]:
            del self.rows[dead]
        row = self.rows.setdefault(name, Holder(0, 0, 0))
        others = sum(other.held for key, other in self.rows.items() if key != name)
        target = shares("psp", self.limit, self.rows)[name]
        row.held = renewed(self.limit, target, others, row.in_flight or 0)
        row.lease_until = self.clock + LEASE

    @initialize(limit=limits)
    def begin(self, limit: int) -> None:
        self.limit = limit

    @precondition(lambda self: self.joined < 12)
    @rule()
    def join(self) -> None:
        self.joined += 1
        self.renew(f"worker-{self.joined}")

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def renew_one(self, data: st.DataObject) -> None:
        self.renew(data.draw(st.sampled_from(self.alive())))

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        row = self.rows[data.draw(st.sampled_from(self.alive()))]
        row.in_flight = data.draw(st.integers(0, row.held))

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        del self.rows[data.draw(st.sampled_from(self.alive()))]

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """The row stays, and what it had in flight may go on at the other side till lease end."""
        self.rows[data.draw(st.sampled_from(self.alive()))].in_flight = None

    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        """The living renew before their lease ends, in any order."""
        self.clock += 1
        for name in data.draw(st.permutations(self.alive())):
            if self.rows[name].lease_until <= self.clock + 1:
                self.renew(name)

    @rule(data=st.data())
    def quiet(self, data: st.DataObject) -> None:
        """Nobody comes or goes for a lease and two rounds: everybody holds its target."""
        self.clock += LEASE - 1
        for name in self.alive():
            self.rows[name].lease_until = self.clock + LEASE  # renewed meanwhile, and kept
        self.clock += 1
        for _ in range(2):
            for name in data.draw(st.permutations(self.alive())):
                row = self.rows[name]
                target = shares("psp", self.limit, self.alive())[name]
                row.in_flight = min(row.in_flight or 0, target)
                self.renew(name)
                self.never_more_than_the_limit()
        living = self.alive()
        assert {name: self.rows[name].held for name in living} == shares(
            "psp", self.limit, living)

    @invariant()
    def never_more_than_the_limit(self) -> None:
        assert sum(row.held for row in self.rows.values()) <= self.limit
        assert all((row.in_flight or 0) <= row.held for row in self.rows.values())


TestFleet = Fleet.TestCase
