"""A failed attempt, written down in one transaction together with what follows from it."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import structlog

from consumer.app import App
from consumer.claim import Claim, ClaimState, FailureRecord
from consumer.core import copies, replies
from consumer.core.admit import counts
from consumer.core.classify import Failure, FailureKind, classify
from consumer.core.decide import GiveUp, RetryIn, decide
from consumer.errors import HandlerAborted
from consumer.message import OutboxRow, Outgoing
from consumer.outcome import Ack, AckReason, DeadReason
from consumer.ports import Clock, Transaction
from consumer.telemetry.labels import AttemptOutcome, RetryDecision
from consumer.telemetry.metrics import Metrics
from consumer.worker.describe import describe, where
from consumer.worker.requests import Request, RequestReader

log = structlog.get_logger("consumer.worker")

_DENIED = {DeadReason.ATTEMPTS: RetryDecision.DENIED_ATTEMPTS,
           DeadReason.DEADLINE: RetryDecision.DENIED_DEADLINE}


class FailureRecorder:
    """Records failures of one app's handlers."""

    def __init__(self, app: App, clock: Clock, metrics: Metrics, reader: RequestReader) -> None:
        self._app, self._clock, self._metrics, self._reader = app, clock, metrics, reader

    def classify(self, request: Request, error: BaseException) -> Failure:
        """What an exception of that request's handler means."""
        registration = request.registration
        unknown = FailureKind.TRANSIENT if registration.options.unknown_errors == "retry" \
            else FailureKind.PERMANENT
        return classify(error, (registration.handler.classify, self._app.classify),
                        unknown=unknown, now=self._clock.now())

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
        options = request.registration.options
        failure, left_s = self.classify(request, error), request.left_s(self._clock.monotonic())
        decision = decide(failure, attempts, options.policy, self._clock.jitter(),
                          None if left_s is None else timedelta(seconds=left_s))
        self._count(request, error, decision)
        record = self._failure(request, claim, decision, error, attempts, started)
        row = await transaction.record(record)
        log.info("attempt_failed", handler=request.registration.scope, key=request.key,
                 attempt=attempts, decision=record.decision, error=record.error[:500])
        if isinstance(decision, RetryIn):
            return Ack(AckReason.RETRYING, (row,), attempts)
        return Ack(AckReason.DIED, (row,), attempts, decision.why,
                   self._told(request, decision.why))

    def _count(self, request: Request, error: Exception, decision: RetryIn | GiveUp) -> None:
        outcome = (AttemptOutcome.TIMED_OUT if isinstance(error, TimeoutError) else
                   AttemptOutcome.CANCELLED if isinstance(error, HandlerAborted) else
                   AttemptOutcome.FAILED)
        self._metrics.attempt(request.registration.scope, outcome)
        if isinstance(decision, GiveUp):
            denied = _DENIED.get(decision.why, RetryDecision.DENIED_PERMANENT)
            for dependency in self._app.dependencies_of(request.registration):
                self._metrics.retry(dependency.name, denied)

    async def expire(self, transaction: Transaction, request: Request, claim: Claim) -> Ack:
        """The claim dies of its deadline, before another attempt; it holds once `transaction`
        commits, which has its key's lock.
        """
        now = self._clock.now()
        text = "the deadline passed before the next attempt could begin"
        record = FailureRecord(
            request.claim, claim.attempts, ClaimState.DEAD, None, None, now, now, text,
            f"dead letter ({DeadReason.DEADLINE}): {text}", claim.replay_item,
            self._letter(request, DeadReason.DEADLINE, text, claim.attempts, "", claim),
            outcome="not_run")
        row = await transaction.record(record)
        log.info("command_expired", handler=request.registration.scope, key=request.key,
                 attempts=claim.attempts)
        return Ack(AckReason.DIED, (row,), 0, DeadReason.DEADLINE,
                   self._told(request, DeadReason.DEADLINE))

    def _failure(
        self, request: Request, claim: Claim | None, decision: RetryIn | GiveUp, error: Exception,
        attempts: int, started: datetime,
    ) -> FailureRecord:
        delivery, registration = request.delivery, request.registration
        item = claim.replay_item if claim is not None else None
        text, now, type_ = describe(error), self._clock.now(), registration.command.command_type
        if isinstance(decision, RetryIn):
            ticket = self._clock.token()
            copy = copies.next_copy(self._app.prefix, delivery, request.key, type_, ticket, item,
                                    request.seen)
            row = OutboxRow(copy, type_, delay=decision.delay,
                            owner=(registration.scope, request.key))
            return FailureRecord(request.claim, attempts, ClaimState.RETRYING, ticket,
                                 decision.delay, started, now, text,
                                 f"retry in {decision.delay.total_seconds():.3f} s: "
                                 f"{decision.reason}", item, row)
        return FailureRecord(request.claim, attempts, ClaimState.DEAD, None, None, started, now,
                             text, f"dead letter ({decision.why}): {decision.reason}", item,
                             self._letter(request, decision.why, text, attempts, where(error),
                                          claim))

    def _letter(
        self, request: Request, why: DeadReason, text: str, attempts: int, traceback: str,
        claim: Claim | None,
    ) -> OutboxRow:
        registration = request.registration
        death = copies.Death(why, text, self._clock.now(), attempts, traceback,
                             registration.scope, claim.replay_item if claim is not None else None)
        letter = copies.dead_letter(self._app.prefix, request.delivery, request.key, death)
        return OutboxRow(letter, registration.command.command_type)

    def _told(self, request: Request, why: DeadReason) -> Outgoing | None:
        """The reply to a requester whose command is given up; errors are not for it to see."""
        return self._reader.refusal(request.delivery, request.key, why,
                                    f"the command was given up: {why}", self.fallback(request, why))

    def fallback(self, request: Request, why: DeadReason) -> Mapping[str, Any] | None:
        """What the handler tells a requester instead of a result, if one waits; None is nothing."""
        if why not in replies.UNAVAILABLE or not request.delivery.message.properties.reply_to:
            return None
        try:
            fallback = request.registration.handler.fallback_reply(request.command)
            json.dumps(fallback, allow_nan=False)
        except Exception as error:
            log.error("no_fallback_reply", handler=request.registration.scope,
                      error=describe(error))
            return None
        return fallback
