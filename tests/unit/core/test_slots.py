"""Slot arithmetic: an even split that everybody computes alike, and what a renewal may take."""

from collections import Counter
from hashlib import sha256
from itertools import permutations

import pytest

from consumer.core.slots import rank, renewed, shares

FOUR = ["w1", "w2", "w3", "w4"]


@pytest.mark.parametrize(("limit", "members", "held"), [
    (8, 4, [2, 2, 2, 2]), (10, 4, [3, 3, 2, 2]), (4, 4, [1, 1, 1, 1]), (3, 4, [1, 1, 1, 0]),
    (1, 4, [1, 0, 0, 0]), (0, 4, [0, 0, 0, 0]), (7, 1, [7]), (7, 0, []), (20, 3, [7, 7, 6]),
])
def test_the_split_is_even_and_the_first_by_rank_get_what_is_left(
    limit: int, members: int, held: list[int]
) -> None:
    split = shares("psp", limit, FOUR[:members])
    assert [split[member] for member in sorted(split, key=lambda m: rank("psp", m))] == held


def test_the_order_of_the_members_does_not_matter_nor_does_one_named_twice() -> None:
    split = shares("psp", 6, FOUR)
    for order in permutations(FOUR):
        assert shares("psp", 6, [*order, order[0]]) == split


def test_the_rank_is_sha256_of_both_names_with_nul_between() -> None:
    """Postgres computes the same: sha256(dependency || '\\x00' || member), compared as bytea."""
    assert rank("psp", "w1") == sha256(b"psp\x00w1").digest()
    assert rank("zahlung-ü", "w1") == sha256("zahlung-ü".encode() + b"\x00w1").digest()
    assert rank("ab", "c") != rank("a", "bc")


WORKERS = ["0b0e8a3c-5f6d-4c58-9f0e-6a4f6f6c1d11", "7d9f1f5e-2a34-4b0e-8c55-0f1f2e3d4c22",
           "c3a1b2d4-9e8f-4a6b-b7c8-1d2e3f4a5b33"]


@pytest.mark.parametrize(("dependency", "limit", "held"), [
    ("psp", 1, [0, 0, 1]), ("psp", 2, [0, 1, 1]), ("psp", 5, [1, 2, 2]),
    ("mail", 1, [0, 1, 0]), ("mail", 2, [0, 1, 1]), ("mail", 4, [1, 2, 1]),
])
def test_known_workers_get_known_shares(dependency: str, limit: int, held: list[int]) -> None:
    """Pins the rank: processes of two releases must agree, and so must the database."""
    assert shares(dependency, limit, WORKERS) == dict(zip(WORKERS, held, strict=True))


def test_single_slots_of_many_dependencies_do_not_all_land_on_one_worker() -> None:
    holders: Counter[str] = Counter()
    for number in range(400):
        holders += Counter(shares(f"dependency-{number}", 1, FOUR))
    assert sum(holders.values()) == 400
    assert min(holders[member] for member in FOUR) >= 75


@pytest.mark.parametrize(("limit", "target", "others_held", "in_flight", "held"), [
    (10, 5, 5, 0, 5),    # what it should have is free
    (10, 5, 10, 0, 0),   # others have not let go yet
    (10, 5, 8, 0, 2),    # or only in part
    (10, 5, 0, 0, 5),    # never more than its target
    (10, 3, 5, 5, 5),    # it shrinks, but not below what is in flight
    (10, 3, 5, 4, 4),
    (10, 0, 10, 0, 0),
    (10, 5, 12, 0, 0),   # others hold too much: after a lower limit, say
    (10, 5, 12, 2, 2),
    (0, 0, 0, 3, 3),
])
def test_a_renewal_takes_what_is_free_and_keeps_what_is_in_flight(
    limit: int, target: int, others_held: int, in_flight: int, held: int
) -> None:
    assert renewed(limit, target, others_held, in_flight) == held
