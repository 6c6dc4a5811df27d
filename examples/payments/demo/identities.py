"""The sums that must come out, whatever was doubled, spoiled or killed on the way."""

from collections import Counter
from dataclasses import dataclass

from examples.payments.demo.evidence import Evidence
from examples.payments.demo.plan import Plan


@dataclass(frozen=True)
class Identity:
    """A claim about the evidence, and what it was decided by."""

    claim: str
    holds: bool
    detail: str = ""


def figures(plan: Plan, found: Evidence) -> dict[str, int]:
    """The counts, in the order of a command's life."""
    doomed = sum(1 for sending in plan.deliveries if sending.dies_of)
    letters = {letter.id: letter.reason for letter in found.letters}
    winners = set(found.ledger)
    return {
        "commands": len(plan.commands),
        "deliveries": len(plan.deliveries),
        "attempts": sum(attempts for _, _, attempts in found.claims),
        "effects": len(found.ledger),
        "duplicates": sum(1 for s in plan.deliveries if not s.dies_of
                          and (s.order_id, s.amount_cents) in winners) - len(found.ledger),
        "conflicts": sum(1 for reason in letters.values() if reason == "key_conflict"),
        "retried": found.failed.total(),
        "dead": len(letters),
        "dead deliveries": doomed + sum(
            1 for s in plan.deliveries if not s.dies_of
            and (s.order_id, s.amount_cents) not in winners),
        "outbox sent": len(found.receipts),
    }


def check(plan: Plan, found: Evidence, exit_codes: list[int]) -> list[Identity]:
    """Each identity, and whether it holds."""
    count = figures(plan, found)
    return [*_effects(plan, found, count), *_failures(plan, found, count),
            *_leftovers(found, count, exit_codes)]


def _effects(plan: Plan, found: Evidence, count: dict[str, int]) -> list[Identity]:
    booked = Counter(order for order, _ in found.ledger)
    wrong = [row for row in found.ledger if row[1] not in plan.amounts.get(row[0], ())]
    lost, double = set(plan.amounts) - set(booked), [o for o, n in booked.items() if n > 1]
    done = [key for key, state, _ in found.claims if state == "done"]
    return [
        Identity("effects = distinct good commands", len(found.ledger) == len(plan.good),
                 f"{len(found.ledger)} = {len(plan.good)}"),
        Identity("every good command is in the ledger once, with its amount",
                 not (lost or double or wrong),
                 f"{len(lost)} lost, {len(double)} double, {len(wrong)} wrong"),
        Identity("claims are the good commands' alone, and all done",
                 sorted(done) == sorted(booked) and len(done) == len(found.claims),
                 f"{len(done)} done of {len(found.claims)}"),
        Identity("attempts = effects + retried",
                 count["attempts"] == count["effects"] + count["retried"],
                 f"{count['attempts']} = {count['effects']} + {count['retried']}"),
    ]


def _failures(plan: Plan, found: Evidence, count: dict[str, int]) -> list[Identity]:
    """Two copies may fail side by side as first attempts, so a command may fail once more than
    planned, but none may fail less, and no other may fail at all.
    """
    planned = {c.order_id: c.failures for c in plan.commands if c.failures}
    unplanned = [key for key in found.failed if key not in planned]
    spared = [key for key, least in planned.items() if found.failed[key] < least]
    died = Counter({letter.id: letter.reason for letter in found.letters}.values())
    return [
        Identity("retried: every command that was to fail did, and no other",
                 not (unplanned or spared), f"{len(unplanned)} others, {len(spared)} spared"),
        Identity("dead letters = poison + conflicts, reason by reason",
                 died == plan.deaths, f"{dict(sorted(died.items()))}"),
        Identity("no dead delivery without its letter",
                 len(found.letters) >= count["dead deliveries"],
                 f"{len(found.letters)} letters of {count['dead deliveries']} deliveries"),
        Identity("no letter's payment is in the ledger", not _paid_and_dead(plan, found)),
    ]


def _paid_and_dead(plan: Plan, found: Evidence) -> list[bytes]:
    """Bodies that are both: of two rivals, one must be paid and the other dead."""
    paid = set(found.ledger)
    bodies = {c.body for c in plan.commands if (c.order_id, c.amount_cents) in paid
              and c.dies_of is None}
    return [letter.body for letter in found.letters
            if letter.reason == "key_conflict" and letter.body in bodies]


def _leftovers(found: Evidence, count: dict[str, int], exit_codes: list[int]) -> list[Identity]:
    waiting = {name: depth for name, depth in found.depths.items() if depth}
    return [
        Identity("outbox sent = effects, receipt by receipt",
                 sorted(found.receipts) == sorted(found.ledger),
                 f"{count['outbox sent']} = {count['effects']}"),
        Identity("outbox empty", found.outbox == 0, f"{found.outbox} rows"),
        Identity("queues empty: work, replay, delays, unroutable", not waiting, f"{waiting}"),
        Identity("workers drained and ended with 0", set(exit_codes) == {0}, f"{exit_codes}"),
    ]
