"""A failed attempt, written down in one transaction together with what follows from it."""

from datetime import datetime

import structlog

from consumer.app import App
from consumer.claim import Claim, ClaimState, FailureRecord
from consumer.core import copies
from consumer.core.admit import counts
from consumer.core.classify import classify
from consumer.core.decide import GiveUp, RetryIn, decide
from consumer.message import OutboxRow
from consumer.outcome import Ack, AckReason
from consumer.ports import Clock, Transaction
from consumer.worker.describe import describe, where
from consumer.worker.requests import Request

log = structlog.get_logger("consumer.worker")


class FailureRecorder:
    """Records failures of one app's handlers."""

    def __init__(self, app: App, clock: Clock) -> None:
        self._app, self._clock = app, clock

    async def record(self, transaction: Transaction, request: Request, error: Exception,
                     started: datetime) -> Ack | None:
        """Write the failed attempt and what follows from it; it holds once `transaction` commits.

        The rollback freed the key, so this waits for its lock and reads the claim again: only
        where the command still is ours to count is the attempt counted.

        Args:
            started: When the attempt began.

        Returns:
            What to settle with; None where nothing was written, because somebody else ended or
            took the command meanwhile.
        """
        claim = await transaction.lock(request.registration.scope, request.key)
        if not counts(claim, same=request.same(claim), lane=request.delivery.lane):
            return None
        fresh = claim is None or claim.state is ClaimState.DEAD
        attempts = 1 if fresh or claim is None else claim.attempts + 1
        failure = classify(error)
        decision = decide(failure, attempts, request.registration.options.policy,
                          self._clock.jitter())
        record = self._failure(request, claim, decision, error, attempts, started)
        row = await transaction.record(record)
        log.info("attempt_failed", handler=request.registration.scope, key=request.key,
                 attempt=attempts, decision=record.decision, error=record.error[:500])
        return Ack(AckReason.DIED if isinstance(decision, GiveUp) else AckReason.RETRYING, (row,))

    def _failure(
        self, request: Request, claim: Claim | None, decision: RetryIn | GiveUp, error: Exception,
        attempts: int, started: datetime,
    ) -> FailureRecord:
        delivery, registration = request.delivery, request.registration
        item = claim.replay_item if claim is not None else None
        text, now, type_ = describe(error), self._clock.now(), registration.command.command_type
        if isinstance(decision, RetryIn):
            ticket = self._clock.token()
            copy = copies.next_copy(self._app.prefix, delivery, request.key, type_, ticket, item)
            row = OutboxRow(copy, type_, delay=decision.delay,
                            owner=(registration.scope, request.key))
            return FailureRecord(request.claim, attempts, ClaimState.RETRYING, ticket,
                                 decision.delay, started, now, text,
                                 f"retry in {decision.delay.total_seconds():.3f} s: "
                                 f"{decision.reason}", item, row)
        death = copies.Death(decision.why, text, now, attempts, where(error),
                             registration.scope, item)
        letter = copies.dead_letter(self._app.prefix, delivery, request.key, death)
        return FailureRecord(request.claim, attempts, ClaimState.DEAD, None, None, started, now,
                             text, f"dead letter ({decision.why}): {decision.reason}", item,
                             OutboxRow(letter, type_))
