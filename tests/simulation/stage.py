"""Worker processes, relays, broker and database, stopped before every step they take.

A test opens gates one by one, says what happens there, and kills, disconnects or delays in
between. `Stage.check` and `Stage.check_at_rest` say what must hold.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from consumer import App, Context
from consumer import message as names
from consumer.claim import ClaimState, Fingerprint
from consumer.command import to_outgoing
from consumer.errors import StoreUnavailable
from consumer.message import Delivery, Message, Outgoing
from consumer.outcome import DeadReason, Delay, ParkReason
from consumer.relay.send import RowSender
from consumer.testing.memory import FakeClock, MemoryBroker, MemoryDatabase
from consumer.testing.memory.broker import Waiting
from consumer.testing.memory.database import ClaimRow, MemoryOutbox
from consumer.wire import Properties
from consumer.worker.requests import Request, RequestReader
from simulation.loop import SteppedLoop
from simulation.process import IN_TRANSACTION, Gate, GatedPublisher, Process, Worker, running_here
from simulation.shop import MAX_ATTEMPTS, PREFIX, QUEUE, SCOPE, Charge, Charged, ChargeHandler

__all__ = [
    "IN_TRANSACTION", "MAX_ATTEMPTS", "QUEUE", "SCOPE", "Gate", "Process", "Stage", "Violation",
    "Worker",
]


class Violation(AssertionError):
    """A rule of the protocol was broken."""


class WatchedReader(RequestReader):
    """Takes note of defects."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.defects = 0

    def park(self, request: Request, why: ParkReason) -> Delay:
        self.defects += why is ParkReason.DEFECT
        return super().park(request, why)


class _TicketClock(FakeClock):
    """As seldom jitter as tokens collide: waits are at their ceiling."""

    def jitter(self) -> float:
        return 0.999


class Stage:
    """The world in which one handler lives."""

    queue = QUEUE

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.clock = _TicketClock()
        self.database = MemoryDatabase(self.clock)
        self.database.at = self._at
        self.outbox = MemoryOutbox(self.database)
        self.app = App("shop", handlers=[ChargeHandler(self)], prefix=PREFIX, retry_budget=None)
        self.broker = MemoryBroker(
            PREFIX, {QUEUE: [Charge.command_type], "notices": [Charged.command_type]}, self.clock)
        self.reader = WatchedReader(self.app, self.clock, "worker")
        self.orphans: list[tuple[Worker, Gate]] = []
        self.sent: list[tuple[str, Outgoing]] = []
        self.runs: Counter[str] = Counter()
        self.broken: list[str] = []
        self.first_fingerprint: dict[str, Fingerprint] = {}
        self._fingerprints: dict[bytes, Fingerprint] = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.end()

    @staticmethod
    async def _at(point: str) -> None:
        process = running_here()
        if process is not None:
            await process.reach(point)

    def settle(self) -> None:
        """Everybody is at a gate, or waits for somebody who is."""
        self.loop.settle()

    def has_begun(self, context: Context) -> None:
        """A handler begins. It must not be a retry before its time."""
        self.runs[context.key] += 1
        row = self.claim(context.key)
        if context.attempt > MAX_ATTEMPTS:
            self.broken.append(f"I3: attempt {context.attempt} of {context.key}")
        if row is None:
            return
        if row.state is not ClaimState.RETRYING:
            self.broken.append(f"I1: {context.key} runs although it is {row.state}")
            return
        ticket = context.message.properties.headers.get(names.TICKET)
        assert row.due_at is not None
        overdue = self.clock.now() - row.due_at > timedelta(minutes=10)
        if ticket != str(row.ticket) and not overdue:
            self.broken.append(f"I3: {context.key} runs before its time, without its ticket")

    # --- what a test does -----------------------------------------------------------------

    def worker(self) -> Worker:
        return Worker(self, f"worker {next(self._numbers)}")

    def publish(self, key: str = "a", amount: int = 1, message_id: str | None = None) -> Outgoing:
        """A producer sends a command."""
        outgoing = to_outgoing(
            Charge(key=key, amount=amount), prefix=PREFIX, key=key,
            message_id=message_id or f"{key}-{amount}-{next(self._numbers)}",
            dated=self.clock.now())
        self.publish_again(key, outgoing)
        return outgoing

    def publish_again(self, key: str, outgoing: Outgoing) -> None:
        """A producer sends the very same message once more."""
        self.sent.append((key, outgoing))
        self.broker.queues[QUEUE].append(self.waiting(outgoing))

    @staticmethod
    def waiting(outgoing: Outgoing) -> Waiting:
        return Waiting(Message(outgoing.body, Properties.from_wire(outgoing.properties),
                               outgoing.properties), outgoing.routing_key)

    def relay(self) -> Process:
        """A relay begins a sweep."""
        process = Process(self, f"relay {next(self._numbers)}")
        sender = RowSender(PREFIX, GatedPublisher(process), self.outbox, self.clock)

        async def sweep() -> None:
            try:
                rows = await self.outbox.due(200)
                if rows:
                    await sender.send(rows)
            except StoreUnavailable:
                pass

        process.spawn(sweep())
        return process

    def pass_time(self, **by: float) -> None:
        """The clocks go on, delayed messages arrive, backoffs end."""
        step = timedelta(**by)
        self.clock.advance(step)
        self.loop.pass_time(step.total_seconds())
        self.broker.release_due()
        self.settle()

    def end_orphan(self, index: int = 0, *, commits: bool) -> None:
        """The database notices, or the COMMIT that was under way arrives."""
        worker, gate = self.orphans.pop(index)
        if commits and not gate.opened.done():
            gate.open()
        worker.kill()

    def copies(self) -> list[tuple[Any, int]]:
        """Where each copy is that is at the broker and in nobody's hands."""
        places = [(self.broker.queues[QUEUE], index)
                  for index in range(len(self.broker.queues[QUEUE]))]
        return [*places, *((self.broker.delayed, index)
                           for index in range(len(self.broker.delayed)))]

    @staticmethod
    def copy_at(place: tuple[Any, int]) -> Waiting:
        found = place[0][place[1]]
        return found if isinstance(found, Waiting) else found[2]

    def has_current_ticket(self, copy: Waiting) -> bool:
        """Whether this is the one copy that may run next, which an outbox row stands behind."""
        ticket = copy.message.properties.headers.get(names.TICKET)
        return any(row.ticket is not None and str(row.ticket) == ticket
                   for row in self.database.tables.claims.values())

    # --- what is the case -----------------------------------------------------------------

    def claim(self, key: str = "a") -> ClaimRow | None:
        return self.database.tables.claims.get((SCOPE, key))

    def effects(self, key: str = "a") -> list[Any]:
        return [effect for effect in self.database.tables.effects if effect[0] == key]

    def letters(self) -> dict[str, tuple[bytes, str]]:
        """(body, reason) of each dead letter, by its id."""
        found: dict[str, tuple[bytes, str]] = {}
        for waiting in self.broker.queues[f"{QUEUE}.dead"]:
            headers = waiting.message.properties.headers
            found[str(headers.get(names.DEAD_ID))] = (
                waiting.message.body, str(headers.get(names.DEAD_REASON)))
        return found

    def notices(self, key: str = "a") -> int:
        """Messages of the handler for that key which are at the broker or in the outbox."""
        body = Charged(key=key).model_dump_json().encode()
        bodies = [w.message.body for w in self.broker.queues["notices"]]
        bodies += [s.row.message.body for s in self.database.tables.outbox.values()]
        return bodies.count(body)

    def placed(self, body: bytes) -> bool:
        """Whether a payload has a durable place to go on from, or its end is recorded."""
        broker = self.broker
        if any(w.message.body == body for name, queue in broker.queues.items() for w in queue
               if name != "notices"):
            return True
        return (any(entry[2].message.body == body for entry in broker.delayed)
                or any(s.waiting.message.body == body for s in broker.unacked.values())
                or any(s.row.message.body == body for s in self.database.tables.outbox.values()))

    def is_claims(self, key: str, outgoing: Outgoing) -> bool:
        """Whether the claim of `key` is of this payload."""
        row = self.claim(key)
        if outgoing.body not in self._fingerprints:
            read = self.reader.read(Delivery(self.waiting(outgoing).message, QUEUE))
            assert isinstance(read, Request)
            self._fingerprints[outgoing.body] = read.fingerprint
        return row is not None and row.fingerprint == self._fingerprints[outgoing.body]

    def check(self) -> None:
        """What must hold at every moment.

        Raises:
            Violation: Something does not.
        """
        if self.broken:
            raise Violation(self.broken[0])
        for key in dict.fromkeys(key for key, _ in self.sent):
            self._check_key(key)
        for key, outgoing in self.sent:
            row = self.claim(key)
            done = row is not None and row.state is ClaimState.DONE
            if not (done and self.is_claims(key, outgoing)) and not self.placed(outgoing.body):
                raise Violation(f"I5: {outgoing.message_id} has no place any more")
        if self.reader.defects:
            raise Violation("the processor raised")

    def _check_key(self, key: str) -> None:
        row, effects = self.claim(key), len(self.effects(key))
        if effects > 1:
            raise Violation(f"I1: {effects} effects of {key}")
        done = row is not None and row.state is ClaimState.DONE
        if done != bool(effects):
            raise Violation(f"I1: {effects} effects of {key}, whose claim is {row}")
        if done != bool(self.notices(key)):
            raise Violation(f"I7: {key} is {'' if done else 'not '}done, notices disagree")
        deaths = [f for f in self.database.tables.attempts if f.request.key == key]
        if row is not None:
            self.first_fingerprint.setdefault(key, row.fingerprint)
            if row.attempts > MAX_ATTEMPTS:
                raise Violation(f"I3: {row.attempts} attempts of {key}")
            if row.attempts != len(deaths) + done:
                raise Violation(f"I3: {row.attempts} attempts of {key}, {len(deaths)} recorded")
        first = self.first_fingerprint.get(key)
        if first is not None and (row is None or row.fingerprint != first):
            raise Violation(f"I8: the claim of {key} changed its payload")
        if len(self._command_letters(key)) > 1:
            raise Violation(f"I4: several dead letters of {key}")

    def _command_letters(self, key: str) -> list[str]:
        bodies = {outgoing.body for sent, outgoing in self.sent if sent == key}
        return [id_ for id_, (body, why) in self.letters().items()
                if body in bodies and why != DeadReason.KEY_CONFLICT]

    def check_at_rest(self) -> None:
        """What must hold once everything has come to its end.

        Raises:
            Violation: Something does not.
        """
        self.check()
        letters = self.letters()
        for key in dict.fromkeys(key for key, _ in self.sent):
            row = self.claim(key)
            if row is None or row.state not in (ClaimState.DONE, ClaimState.DEAD):
                raise Violation(f"I2: {key} has come to no end: {row}")
            dead = row.state is ClaimState.DEAD
            if len(self._command_letters(key)) != dead:
                raise Violation(f"I2: {key} is {row.state}; its letters: {letters}")
            if self.notices(key) < (not dead):
                raise Violation(f"I7: what {key} sent is nowhere")
        conflicts = Counter(body for body, why in letters.values()
                            if why == DeadReason.KEY_CONFLICT)
        wanted = Counter(body for _, body in {
            (outgoing.message_id, outgoing.body) for key, outgoing in self.sent
            if not self.is_claims(key, outgoing)})
        if conflicts != wanted:
            raise Violation(f"I2: conflicts {wanted}, their letters {conflicts}")

    # --- to the end -----------------------------------------------------------------------

    def finish(self, process: Process, what: Callable[[str], str] = lambda point: "") -> None:
        """Open all gates of a process until it is idle; `what` says what happens at each.

        Raises:
            Violation: It goes on and on.
        """
        for _ in range(1000):
            if not process.gates:
                return
            gate = process.gates[0]
            gate.open(what(gate.point))
        raise Violation(f"L2: {process.name} goes round and round")

    def drain(self, workers: Sequence[Worker] = (), *, succeed: bool = True) -> None:
        """Faults are over: everything comes to its end.

        Raises:
            Violation: It does not, or not to a right one.
        """
        self.database.down = False
        happens = "" if succeed else "transient"

        def what(point: str) -> str:
            return happens if point == "handle" else ""

        while self.orphans:
            self.end_orphan(commits=False)
        crew = [worker for worker in workers if worker.alive] or [self.worker()]
        for _ in range(60):
            for worker in crew:
                self.finish(worker, what)
            self.check()
            if self.at_rest() and all(worker.idle for worker in crew):
                break
            crew[0].deliver(10)
            self.finish(crew[0], what)
            self.finish(self.relay())
            self.pass_time(minutes=11)
        else:
            raise Violation(f"L1: no end is in sight: {self.database.tables.claims}")
        self.check_at_rest()

    def at_rest(self) -> bool:
        broker = self.broker
        return not (broker.queues[QUEUE] or broker.delayed or broker.unacked
                    or self.database.tables.outbox)

    def break_down(self, copy: tuple[Any, int]) -> None:
        """The broker loses this copy."""
        del copy[0][copy[1]]

    def double(self, copy: tuple[Any, int]) -> None:
        """The broker delivers this copy twice."""
        copy[0].insert(copy[1], copy[0][copy[1]])

