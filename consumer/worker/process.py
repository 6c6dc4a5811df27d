"""The path of a message: claim, admit, handle, COMMIT; or roll back, classify, decide, record.

This module follows the checked protocol rule by rule. It returns what is to be done with each
delivery and never touches the broker.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, assert_never

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from consumer.app import App
from consumer.claim import Completion, Meeting
from consumer.context import Context, ContextOutbox
from consumer.core.admit import Admission, Barrier, Drop, Expire, Park, Refuse, Run, admit
from consumer.errors import (
    CommitFailed,
    DependencyUnavailable,
    HandlerAborted,
    InfrastructureError,
    SerializationConflict,
)
from consumer.message import OutboxRow
from consumer.outcome import Ack, AckReason, Outcome, ParkReason, Requeue, RequeueReason
from consumer.ports import Clock, Store, Transaction
from consumer.telemetry.labels import Met
from consumer.telemetry.metrics import Metrics
from consumer.worker.calls import AttemptCalls, Calls
from consumer.worker.describe import describe
from consumer.worker.failures import FailureRecorder
from consumer.worker.gate import Gate
from consumer.worker.groups import GroupSize
from consumer.worker.requests import Request, RequestReader

_CONFLICT_RERUNS = 3
_CAN_COME_TOO_LATE = (ParkReason.BUDGET, ParkReason.BREAKER, ParkReason.NO_SLOT)

log = structlog.get_logger("consumer.worker")


class Processor:
    """Turns requests into outcomes, one group at a time. Each executor has its own.

    Args:
        store: Its own, for it keeps one transaction open at a time.
        resources: What the app's lifespan yielded.
    """

    def __init__(
        self, app: App, store: Store, clock: Clock, reader: RequestReader, gate: Gate,
        metrics: Metrics, resources: Any = None,
    ) -> None:
        self._app, self._store, self._clock = app, store, clock
        self._reader, self._gate, self._metrics = reader, gate, metrics
        self._resources = resources
        self._failures = FailureRecorder(app, clock, metrics, reader)
        self._calls = Calls(app, gate, metrics, clock, self._failures.classify)
        self.group_size = GroupSize()

    async def process(self, batch: Sequence[Request]) -> list[Outcome]:
        """What becomes of each request; when this returns, it is durable.

        Args:
            batch: Requests of one handler and one lane, of distinct keys.

        Returns:
            One outcome per request, in order. An infrastructure fault gives `Requeue`.
        """
        if len(batch) == 1:
            outcome = await self._alone(batch[0])
            if isinstance(outcome, Ack) and outcome.why is AckReason.DONE:
                self.group_size.grow()
            return [outcome]
        try:
            async with self._store.transaction() as transaction:
                outcomes = await self._run(transaction, batch)
        except InfrastructureError as error:
            return [self._requeue(error)] * len(batch)
        except Exception as error:
            log.debug("group_rolled_back", size=len(batch), error=describe(error))
        else:
            self.group_size.grow()
            return outcomes
        self.group_size.shrink()
        return await self._behind_savepoints([self._reader.again(r) for r in batch])

    async def _behind_savepoints(self, batch: Sequence[Request]) -> list[Outcome]:
        """One transaction, a savepoint per member: only the culprits fail."""
        outcomes: list[Outcome | None] = [None] * len(batch)
        failures: dict[int, tuple[Exception, datetime]] = {}
        committed = True
        try:
            async with self._store.transaction() as transaction:
                for index, request in enumerate(batch):
                    started = self._clock.now()
                    try:
                        async with transaction.savepoint():
                            [outcomes[index]] = await self._run(transaction, [request])
                    except InfrastructureError:
                        raise
                    except Exception as error:
                        failures[index] = (error, started)
        except InfrastructureError as error:
            return [self._requeue(error)] * len(batch)
        except (CommitFailed, SerializationConflict) as error:
            log.debug("group_rolled_back", size=len(batch), error=describe(error))
            committed = False
        if not committed:
            return [await self._alone(self._reader.again(request)) for request in batch]
        for index, (failure, started) in failures.items():
            if isinstance(failure, SerializationConflict):
                outcomes[index] = await self._alone(self._reader.again(batch[index]))
            else:
                outcomes[index] = await self._after_failure(batch[index], failure, started)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _alone(self, request: Request) -> Outcome:
        """One request in a transaction of its own, run again at once if Postgres asks for it."""
        started = self._clock.now()
        try:
            return await self._once(request)
        except InfrastructureError as error:
            return self._requeue(error)
        except Exception as error:
            failure = error
        if isinstance(failure, SerializationConflict):
            try:
                async for attempt in _conflict_reruns():
                    with attempt:
                        if not self._gate.may_rerun(request):
                            break
                        return await self._once(self._reader.again(request))
            except InfrastructureError as error:
                return self._requeue(error)
            except Exception as error:
                failure = error
        if isinstance(failure, DependencyUnavailable) and not request.passage.counted:
            return await self._not_begun(request, failure)
        return await self._after_failure(request, failure, started)

    async def _not_begun(self, request: Request, error: DependencyUnavailable) -> Outcome:
        """Its handler called nothing before it met a closed door: that was no attempt."""
        self._gate.undo(request)
        if not self._reader.can_wait(request):
            request.passage.barred = Barrier.DEADLINE
            return await self._alone(self._reader.again(request))
        return self._postponed(
            request, ParkReason.NO_SLOT if error.no_slot else ParkReason.BREAKER)

    def _postponed(self, request: Request, why: ParkReason) -> Outcome:
        """It is parked; but where its whole queue is to be left alone, it goes back there."""
        closed = why in (ParkReason.BREAKER, ParkReason.NO_SLOT)
        if closed and self._gate.held_back(request.delivery.queue) is not None:
            return Requeue(RequeueReason.PAUSE)
        return self._reader.park(request, why)

    async def _once(self, request: Request) -> Outcome:
        async with self._store.transaction() as transaction:
            [outcome] = await self._run(transaction, [request])
        return outcome

    async def _run(self, transaction: Transaction, batch: Sequence[Request]) -> list[Outcome]:
        """Claim, admit and handle `batch` in `transaction`; the outcomes hold once it commits."""
        barriers = [self._gate.barrier(request) for request in batch]
        meetings = await transaction.claim([
            request.claim if barrier is None else replace(request.claim, may_create=False)
            for request, barrier in zip(batch, barriers, strict=True)])
        admissions = [self._admission(*one) for one in zip(batch, meetings, barriers, strict=True)]
        runs = [(r, a) for r, a in zip(batch, admissions, strict=True) if isinstance(a, Run)]
        rows: list[OutboxRow] = []
        if runs:
            try:
                rows = await self._handle(transaction, runs)
                done = [_completion(request, run) for request, run in runs if run.retry]
                sent = await transaction.finish(done, rows)
            except Exception as error:
                translated = transaction.translate(error)
                if translated is error:
                    raise
                raise translated from error
        dispatch = tuple(row for row in sent if not row.relay_only) if rows else ()
        outcomes: list[Outcome] = []
        for request, admission, meeting in zip(batch, admissions, meetings, strict=True):
            if isinstance(admission, Run):
                outcomes.append(Ack(AckReason.DONE, dispatch, admission.attempt))
                dispatch = ()  # once for the group
            elif isinstance(admission, Expire):
                assert meeting.claim is not None
                outcomes.append(
                    await self._failures.expire(transaction, request, meeting.claim))
            else:
                outcomes.append(self._not_run(request, admission, meeting))
        return outcomes

    def _admission(self, request: Request, meeting: Meeting, barrier: Barrier | None
                   ) -> Admission:
        try:
            same = request.same(meeting.claim)
        except ValueError as error:  # a newer version made that claim, and runs beside this one
            log.warning("claim_not_understood", handler=request.registration.scope,
                        key=request.key, error=str(error))
            return Park(ParkReason.DEFECT)
        admission = admit(meeting, same=same, ticket=request.ticket, lane=request.delivery.lane,
                          barrier=barrier, too_old=not request.claim.may_create)
        if isinstance(admission, Run):
            if admission.takeover:
                log.warning("retry_taken_over", handler=request.registration.scope,
                            key=request.key, attempt=admission.attempt)
                self._metrics.met(request.registration.scope, Met.TAKEOVER)
            if not self._gate.begin(request, admission):
                admission = Park(ParkReason.BUDGET)
        waits = isinstance(admission, Park) and admission.why in _CAN_COME_TOO_LATE
        if waits and not self._reader.can_wait(request):
            return admit(meeting, same=same, ticket=request.ticket, lane=request.delivery.lane,
                         barrier=Barrier.DEADLINE, too_old=not request.claim.may_create)
        return admission

    async def _handle(self, transaction: Transaction, runs: Sequence[tuple[Request, Run]]
                      ) -> list[OutboxRow]:
        """Run the handler; returns what it sends.

        Whatever it raises is an Exception that is its failure, unless we are cancelled ourselves.
        """
        starts_s = self._clock.monotonic()
        calls = [self._calls.of(request, run, request.ends_s(starts_s)) for request, run in runs]
        contexts = [self._context(transaction, *one) for one in zip(runs, calls, strict=True)]
        await _in_own_task(self._guarded([request for request, _ in runs], contexts, calls))
        return [row for context in contexts for row in context.outbox.rows]

    async def _guarded(self, batch: Sequence[Request], contexts: Sequence[Context],
                       calls: Sequence[AttemptCalls]) -> None:
        try:
            await self._call(batch, contexts, calls)
        except (InfrastructureError, SerializationConflict, CommitFailed) as error:
            # Of another store or broker, which the handler uses: our connection reports drivers'
            # errors, and those are translated later.
            raise HandlerAborted(f"the handler raised {type(error).__name__}: {error}") from error
        except SystemExit as error:
            raise HandlerAborted(f"the handler called sys.exit({error.code!r})") from None
        except (Exception, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise HandlerAborted(f"the handler raised {type(error).__name__}") from error

    async def _call(self, batch: Sequence[Request], contexts: Sequence[Context],
                    calls: Sequence[AttemptCalls]) -> None:
        registration = batch[0].registration
        if registration.groups:
            with ExitStack() as attempts:
                for own in calls:
                    attempts.enter_context(own.attempt())
                async with asyncio.timeout(min(own.remaining_s() for own in calls)):
                    await registration.handler.handle_group([r.command for r in batch], contexts)
            return
        for request, context, own in zip(batch, contexts, calls, strict=True):
            with own.attempt():
                async with asyncio.timeout(own.remaining_s()):
                    await registration.handler.handle(request.command, context)

    def _context(self, transaction: Transaction, one: tuple[Request, Run], calls: AttemptCalls
                 ) -> Context:
        request, run = one
        deadline = request.deadline

        def left() -> timedelta:
            return timedelta(seconds=calls.remaining_s())

        return Context(
            session=lambda: transaction.session,
            outbox=ContextOutbox(self._app.prefix, deadline, self._clock.now),
            scope=request.registration.scope, key=request.key, attempt=run.attempt,
            lane=request.delivery.lane, message=request.delivery.message,
            resources=self._resources, logger=lambda: log, deadline=deadline, remaining=left,
            calls=calls.call, now=self._clock.now,
        )

    def _not_run(self, request: Request, admission: Admission, meeting: Meeting) -> Outcome:
        match admission:
            case Drop(why):
                return Ack(why, reply=self._reader.reply_to_drop(request, why))
            case Park(why):
                return self._postponed(request, why)
            case Refuse(why, detail):
                prints = {"fingerprint": request.fingerprint.digest}
                if meeting.claim is not None:
                    prints["claimed-fingerprint"] = meeting.claim.fingerprint.digest
                return self._reader.die(request.delivery, request.key, why, detail,
                                        handler=request.registration.scope, fingerprints=prints,
                                        fallback=self._failures.fallback(request, why))
            case Run() | Expire():
                raise AssertionError("these are not left undone")
        assert_never(admission)

    async def _after_failure(self, request: Request, error: Exception, started: datetime
                             ) -> Outcome:
        """Record an attempt that was rolled back. Where that is not ours to do any more, the
        delivery meets the table like a new one.
        """
        try:
            async for attempt in _conflict_reruns():
                with attempt:
                    async with self._store.transaction() as transaction:
                        recorded = await self._failures.record(
                            transaction, request, error, started)
        except InfrastructureError as fault:
            return self._requeue(fault)
        except SerializationConflict as conflict:
            return self._requeue(conflict)
        return recorded or await self._alone(self._reader.again(request))

    def _requeue(self, error: Exception) -> Requeue:
        log.warning("infrastructure_fault", error=describe(error))
        return Requeue(RequeueReason.INFRASTRUCTURE)


async def _in_own_task(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` in a task of its own: what a handler cancels there is not ours."""
    task = asyncio.create_task(work)
    try:
        await task
    except asyncio.CancelledError:
        ours = asyncio.current_task()
        if ours is not None and ours.cancelling():
            raise
        raise HandlerAborted("the handler ended in a cancellation of its own") from None


def _completion(request: Request, run: Run) -> Completion:
    return Completion(request.registration.scope, request.key, run.attempt,
                      request.claim.retention, request.claim.worker)


def _conflict_reruns() -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(SerializationConflict), reraise=True,
        stop=stop_after_attempt(_CONFLICT_RERUNS), wait=wait_random_exponential(0.02, 0.5))
