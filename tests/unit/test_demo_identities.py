"""The demonstration finds out when something is wrong."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from examples.payments.demo.evidence import Evidence, Letter
from examples.payments.demo.identities import Identity, check
from examples.payments.demo.plan import KINDS, Plan, draw

PLAN = draw(400, seed=7)


def as_planned(plan: Plan) -> Evidence:
    """What is found when all goes well; of two rivals, the first was paid."""
    ledger = [(c.order_id, c.amount_cents) for c in plan.good]
    failed = Counter({c.order_id: c.failures for c in plan.good if c.failures})
    letters = [Letter(d.message_id or d.order_id, d.dies_of or "key_conflict", d.body)
               for d in plan.deliveries if d.dies_of or d.rival]
    claims = [(order, "done", 1 + failed[order]) for order, _ in ledger]
    return Evidence(ledger, list(ledger), claims, failed, 0, letters, {"payments": 0})


FOUND = as_planned(PLAN)
STEADY = next(c.order_id for c in PLAN.good if not c.failures)
RIVAL = next(c for c in PLAN.commands if c.rival)
DEAD = next(c for c in PLAN.commands if c.dies_of)

WRONG: dict[str, Callable[[], Evidence]] = {
    "a lost effect": lambda: replace(FOUND, ledger=FOUND.ledger[1:]),
    "an effect for another": lambda: replace(FOUND, ledger=[*FOUND.ledger[1:], FOUND.ledger[-1]]),
    "a wrong amount": lambda: replace(
        FOUND, ledger=[(FOUND.ledger[0][0], 0), *FOUND.ledger[1:]]),
    "both rivals paid": lambda: replace(
        FOUND, ledger=[*FOUND.ledger, (RIVAL.order_id, RIVAL.amount_cents)]),
    "a claim of poison": lambda: replace(
        FOUND, claims=[*FOUND.claims, (DEAD.order_id, "dead", 1)]),
    "an uncounted attempt": lambda: replace(
        FOUND, claims=[(FOUND.claims[0][0], "done", 9), *FOUND.claims[1:]]),
    "a failure nobody planned": lambda: replace(
        FOUND, failed=FOUND.failed + Counter({STEADY: 1})),
    "a lost letter": lambda: replace(FOUND, letters=FOUND.letters[1:]),
    "a letter of a good command": lambda: replace(
        FOUND, letters=[*FOUND.letters, Letter("x", "attempts", b"{}")]),
    "a letter with another reason": lambda: replace(
        FOUND, letters=[replace(letter, reason="permanent") for letter in FOUND.letters]),
    "a lost receipt": lambda: replace(FOUND, receipts=FOUND.receipts[1:]),
    "a message in the outbox": lambda: replace(FOUND, outbox=1),
    "a message in a queue": lambda: replace(FOUND, depths={"payments": 1}),
}


def broken(identities: list[Identity]) -> list[str]:
    return [identity.claim for identity in identities if not identity.holds]


def test_all_identities_hold_when_all_goes_well() -> None:
    """Doubled letters of one message are no fault: a crash may leave them."""
    assert not broken(check(PLAN, FOUND, [0, 0]))
    doubled = replace(FOUND, letters=FOUND.letters + FOUND.letters[:3])
    assert not broken(check(PLAN, doubled, [0, 0]))


@pytest.mark.parametrize("wrong", WRONG)
def test_some_identity_breaks_when_something_is_wrong(wrong: str) -> None:
    """Each kind of loss, doubling or leftover is seen."""
    assert broken(check(PLAN, WRONG[wrong](), [0, 0]))


def test_a_worker_that_did_not_drain_is_seen() -> None:
    """Every exit code must be 0."""
    assert broken(check(PLAN, FOUND, [0, 6]))


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    """Equal seeds, equal plans; each kind of trouble occurs in each."""
    assert draw(400, seed=7) == PLAN != draw(400, seed=8)
    poison = [c for c in PLAN.commands if c.dies_of]
    assert len(poison) == round(400 * 0.02) >= len(KINDS)
    assert any(c.failures for c in PLAN.commands)
    assert {PLAN.deliveries.count(c) for c in PLAN.commands} == {1, 2, 3}
