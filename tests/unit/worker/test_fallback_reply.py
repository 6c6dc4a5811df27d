"""What a handler has for a requester whose command a dependency may be to blame for."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from simulation.bench import Bench, Charge, ChargeHandler, arrived, sent

from consumer import Reject, Retry
from consumer.core.deadline import epoch_ms
from consumer.errors import HandlerSignal
from consumer.message import DEADLINE_MS, Delivery
from consumer.outcome import Ack, AckReason, DeadLetter, DeadReason
from consumer.wire import HeaderValue

ASIDE = {"amount": 0}


class WithFallback(ChargeHandler):
    def fallback_reply(self, command: Charge) -> Mapping[str, Any]:
        return ASIDE


def asked(headers: Mapping[str, HeaderValue]) -> Delivery:
    """A requester waits for this one."""
    return sent(b'{"key": "a"}', headers, message_id="a",
                reply_to="amq.rabbitmq.reply-to.g1", correlation_id="c-1")


def told(outcome: object) -> dict[str, Any]:
    assert isinstance(outcome, DeadLetter | Ack)
    assert outcome.reply is not None
    return dict(json.loads(outcome.reply.body))


async def test_a_command_that_expired_before_it_began_is_answered_with_the_fallback() -> None:
    bench = Bench(WithFallback())
    outcome = await bench.process_one(asked({DEADLINE_MS: epoch_ms(bench.clock.now())}))
    assert isinstance(outcome, DeadLetter)
    assert told(outcome)["error"]["reason"] == "deadline"
    assert told(outcome)["fallback"] == ASIDE


@pytest.mark.parametrize(("error", "reason", "fallback"), [
    (Retry(), DeadReason.ATTEMPTS, ASIDE), (Reject("no"), DeadReason.REJECTED, None)])
async def test_only_a_command_that_might_have_succeeded_is_answered_with_the_fallback(
    error: HandlerSignal, reason: DeadReason, fallback: Mapping[str, Any] | None
) -> None:
    handler = WithFallback()
    handler.on("a", *[error] * handler.options.max_attempts)
    bench = Bench(handler)
    outcome = await bench.process_one(asked({}))
    while isinstance(outcome, Ack) and outcome.why is AckReason.RETRYING:
        outcome = await bench.process_one(arrived(outcome.rows[0].message))
    assert told(outcome)["error"]["dead_reason"] == reason
    assert told(outcome).get("fallback") == fallback
