"""The path of a message: claim, admit, handle, COMMIT; or roll back, classify, decide, record.

This module follows the checked protocol rule by rule. It returns what is to be done with each
delivery and never touches the broker.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, assert_never

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from consumer.app import App
from consumer.claim import Completion, Meeting
from consumer.context import Context, ContextOutbox
from consumer.core.admit import Admission, Drop, Park, Refuse, Run, admit
from consumer.errors import (
    CommitFailed,
    HandlerAborted,
    InfrastructureError,
    SerializationConflict,
)
from consumer.message import OutboxRow
from consumer.outcome import Ack, AckReason, Outcome, ParkReason, Requeue, RequeueReason
from consumer.ports import Clock, Store, Transaction
from consumer.worker.describe import describe
from consumer.worker.failures import FailureRecorder
from consumer.worker.groups import GroupSize
from consumer.worker.requests import Request, RequestReader

_CONFLICT_RERUNS = 3

log = structlog.get_logger("consumer.worker")


class Processor:
    """Turns requests into outcomes, one group at a time. Each executor has its own.

    Args:
        store: Its own, for it keeps one transaction open at a time.
        resources: What the app's lifespan yielded.
    """

    def __init__(self, app: App, store: Store, clock: Clock, reader: RequestReader,
                 resources: Any = None) -> None:
        self._app, self._store, self._clock = app, store, clock
        self._reader, self._resources = reader, resources
        self._failures = FailureRecorder(app, clock)
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
                        return await self._once(self._reader.again(request))
            except InfrastructureError as error:
                return self._requeue(error)
            except Exception as error:
                failure = error
        return await self._after_failure(request, failure, started)

    async def _once(self, request: Request) -> Outcome:
        async with self._store.transaction() as transaction:
            [outcome] = await self._run(transaction, [request])
        return outcome

    async def _run(self, transaction: Transaction, batch: Sequence[Request]) -> list[Outcome]:
        """Claim, admit and handle `batch` in `transaction`; the outcomes hold once it commits."""
        meetings = await transaction.claim([request.claim for request in batch])
        admissions = [self._admission(r, m) for r, m in zip(batch, meetings, strict=True)]
        runs = [(r, a) for r, a in zip(batch, admissions, strict=True) if isinstance(a, Run)]
        contexts = [self._context(transaction, request, run) for request, run in runs]
        rows: list[OutboxRow] = []
        if runs:
            try:
                await self._handle([request for request, _ in runs], contexts)
                rows = [row for context in contexts for row in context.outbox.rows]
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
                outcomes.append(Ack(AckReason.DONE, dispatch))
                dispatch = ()  # once for the group
            else:
                outcomes.append(self._not_run(request, admission, meeting))
        return outcomes

    def _admission(self, request: Request, meeting: Meeting) -> Admission:
        try:
            same = request.same(meeting.claim)
        except ValueError as error:  # a newer version made that claim, and runs beside this one
            log.warning("claim_not_understood", handler=request.registration.scope,
                        key=request.key, error=str(error))
            return Park(ParkReason.DEFECT)
        return admit(meeting, same=same, ticket=request.ticket, lane=request.delivery.lane)

    async def _handle(self, batch: Sequence[Request], contexts: Sequence[Context]) -> None:
        """Run the handler, in a task of its own: what it cancels there is not ours.

        Whatever it raises is an Exception that is its failure, unless we are cancelled ourselves.
        """
        task = asyncio.create_task(self._guarded(batch, contexts))
        try:
            await task
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if ours is not None and ours.cancelling():
                raise
            raise HandlerAborted("the handler ended in a cancellation of its own") from None

    async def _guarded(self, batch: Sequence[Request], contexts: Sequence[Context]) -> None:
        try:
            await self._call(batch, contexts)
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

    async def _call(self, batch: Sequence[Request], contexts: Sequence[Context]) -> None:
        registration = batch[0].registration
        limit = registration.options.attempt_timeout.total_seconds()
        if registration.groups:
            async with asyncio.timeout(limit):
                await registration.handler.handle_group([r.command for r in batch], contexts)
            return
        for request, context in zip(batch, contexts, strict=True):
            async with asyncio.timeout(limit):
                await registration.handler.handle(request.command, context)

    def _context(self, transaction: Transaction, request: Request, run: Run) -> Context:
        return Context(
            session=lambda: transaction.session, outbox=ContextOutbox(self._app.prefix),
            scope=request.registration.scope, key=request.key, attempt=run.attempt,
            lane=request.delivery.lane, message=request.delivery.message,
            resources=self._resources, logger=lambda: log,
        )

    def _not_run(self, request: Request, admission: Admission, meeting: Meeting) -> Outcome:
        match admission:
            case Drop(why):
                return Ack(why)
            case Park(why):
                return self._reader.park(request, why)
            case Refuse(why, detail):
                prints = {"fingerprint": request.fingerprint.digest}
                if meeting.claim is not None:
                    prints["claimed-fingerprint"] = meeting.claim.fingerprint.digest
                return self._reader.die(request.delivery, request.key, why, detail,
                                        handler=request.registration.scope, fingerprints=prints)
            case Run():
                raise AssertionError("a run is not one of these")
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


def _completion(request: Request, run: Run) -> Completion:
    return Completion(request.registration.scope, request.key, run.attempt,
                      request.claim.retention, request.claim.worker)


def _conflict_reruns() -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(SerializationConflict), reraise=True,
        stop=stop_after_attempt(_CONFLICT_RERUNS), wait=wait_random_exponential(0.02, 0.5))
