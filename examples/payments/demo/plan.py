"""What is sent, drawn from a seed, and what must come of it."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from examples.payments.demo.app import FAILURES_HEADER

CAPTURE = "payments.capture"
POISON_SHARE, TRANSIENT_SHARE, CONFLICT_SHARE = 0.02, 0.05, 0.004
IMPOSSIBLE_TIME = 1_700_000_000_000_000  # microseconds where AMQP means seconds


@dataclass(frozen=True)
class Sending:
    """One command as a message.

    Args:
        order_id: Its order, which no other good command shares.
        dies_of: Reason of the dead letter it must become; None if it takes effect.
        failures: Attempts that must fail before one succeeds.
        rival: It uses the key of another command; one of the two takes effect.
    """

    order_id: str
    amount_cents: int
    body: bytes
    message_id: str | None
    type: str = CAPTURE
    headers: Mapping[str, str | int] = field(default_factory=dict)
    timestamp: int | None = None
    dies_of: str | None = None
    failures: int = 0
    rival: bool = False


@dataclass(frozen=True)
class Plan:
    """All commands, and the order in which their copies are sent."""

    commands: list[Sending]
    deliveries: list[Sending]

    @property
    def good(self) -> list[Sending]:
        """Those that take effect. (Of two rivals the later one may take the place of the first.)"""
        return [c for c in self.commands if c.dies_of is None and not c.rival]

    @property
    def amounts(self) -> dict[str, set[int]]:
        """What an order may have been charged: one amount, or for rivals one of two."""
        amounts: dict[str, set[int]] = {c.order_id: {c.amount_cents} for c in self.good}
        for command in self.commands:
            if command.rival:
                amounts[command.order_id].add(command.amount_cents)
        return amounts

    @property
    def deaths(self) -> Counter[str]:
        """Commands that must die, by reason."""
        deaths = Counter(c.dies_of for c in self.commands if c.dies_of is not None)
        deaths["key_conflict"] += sum(command.rival for command in self.commands)
        return Counter({reason: count for reason, count in deaths.items() if count})


def draw(commands: int, seed: int) -> Plan:
    """A plan of that many commands, each sent one to three times. Equal seeds, equal plans."""
    rng = random.Random(seed)  # noqa: S311 - the draw must be repeatable, not secret
    poison, rivals = round(commands * POISON_SHARE), max(1, round(commands * CONFLICT_SHARE))
    good = [capture(index, rng) for index in range(commands - poison - rivals)]
    for index in rng.sample(range(len(good)), round(commands * TRANSIENT_SHARE)):
        good[index] = failing(good[index], rng.randint(1, 2))
    steady = [command for command in good if not command.failures]
    mixed = good + [rival_of(command) for command in rng.sample(steady, rivals)]
    for index in range(poison):
        spoil = KINDS[index % len(KINDS)]
        mixed.append(spoil(replace(capture(len(good) + index, rng), headers={})))
    deliveries = [command for command in mixed for _ in range(rng.randint(1, 3))]
    rng.shuffle(deliveries)
    return Plan(mixed, deliveries)


def capture(index: int, rng: random.Random) -> Sending:
    """A good command. Half of them are known by their message id, half by a header."""
    order_id, amount = f"order-{index:06}", rng.randint(1, 100_000)
    headers = {"idempotency-key": order_id} if index % 2 else {}
    message_id = f"message-{index:06}" if index % 2 else order_id
    return Sending(order_id, amount, capture_body(order_id, amount), message_id, headers=headers)


def capture_body(order_id: str, amount_cents: int) -> bytes:
    """The command as JSON."""
    return json.dumps({"order_id": order_id, "amount_cents": amount_cents}).encode()


def failing(command: Sending, failures: int) -> Sending:
    """The same command, whose first attempts fail."""
    return replace(command, failures=failures,
                   headers={**command.headers, FAILURES_HEADER: failures})


def rival_of(command: Sending) -> Sending:
    """A command with the same key and another amount."""
    amount = command.amount_cents + 1
    return replace(command, amount_cents=amount, body=capture_body(command.order_id, amount),
                   message_id=f"rival-of-{command.message_id}", rival=True,
                   headers={"idempotency-key": command.order_id})


def truncated(command: Sending) -> Sending:
    return replace(command, body=command.body[:-2], dies_of="malformed")


def doubled_name(command: Sending) -> Sending:
    body = command.body.replace(b"{", b'{"amount_cents": 1, ')
    return replace(command, body=body, dies_of="malformed")


def not_a_number(command: Sending) -> Sending:
    body = b'{"order_id": "%s", "amount_cents": NaN}' % command.order_id.encode()
    return replace(command, body=body, dies_of="malformed")


def impossible_time(command: Sending) -> Sending:
    """Legal to the broker; many clients lose their connection over it, again and again."""
    return replace(command, timestamp=IMPOSSIBLE_TIME, dies_of="malformed")


def negative_amount(command: Sending) -> Sending:
    return replace(command, body=capture_body(command.order_id, -1), dies_of="invalid")


def unknown_type(command: Sending) -> Sending:
    return replace(command, type="payments.capture.v9", dies_of="unknown_type")


def without_key(command: Sending) -> Sending:
    return replace(command, message_id=None, dies_of="no_key")


KINDS: tuple[Callable[[Sending], Sending], ...] = (
    truncated, doubled_name, not_a_number, impossible_time, negative_amount, unknown_type,
    without_key,
)
