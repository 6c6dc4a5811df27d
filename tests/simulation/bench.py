"""One worker's parts on memory ports, without gates: for tests of what each of them does."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from pydantic import Field

from consumer import App, Command, Context, Handler, Options
from consumer.command import to_outgoing
from consumer.guards import Guards, guards
from consumer.message import Delivery, Lane, Message, Outgoing
from consumer.outcome import Outcome
from consumer.settings import Settings
from consumer.telemetry.metrics import Metrics
from consumer.testing.memory import (
    FakeClock,
    MemoryBroker,
    MemoryDatabase,
    MemoryOutbox,
    MemoryStore,
)
from consumer.testing.memory.database import ClaimRow
from consumer.testing.memory.dependencies import MemoryBudgets, MemorySlots
from consumer.wire import Headers, HeaderValue, Properties
from consumer.worker.process import Processor
from consumer.worker.requests import Request, RequestReader

PREFIX, QUEUE, SCOPE = "shop", "orders", "orders.charge"

Happening = BaseException | Callable[[Any, Context], Any] | None


class Charge(Command, type="orders.charge"):
    key: str
    amount: int = 1
    lines: list[str] = Field(default_factory=list)


class ChargeHandler(Handler[Charge]):
    """Writes one effect per command; then does what the script says for that key, run by run."""

    name, queue = SCOPE, QUEUE

    def __init__(self, options: Options | None = None) -> None:
        if options is not None:
            self.options = options  # type: ignore[misc]
        self.script: dict[str, deque[Happening]] = defaultdict(deque)
        self.runs: Counter[str] = Counter()
        self.seen: list[tuple[str, int, Charge]] = []

    def on(self, key: str, *happens: Happening) -> None:
        self.script[key].extend(happens)

    async def handle(self, command: Charge, context: Context) -> None:
        self.runs[context.key] += 1
        self.seen.append((context.key, context.attempt, command.model_copy(deep=True)))
        session: Any = context.session
        session.add((context.key, command.amount))
        happens = self.script[context.key].popleft() if self.script[context.key] else None
        if callable(happens):
            happens = happens(command, context)
            if hasattr(happens, "__await__"):
                happens = await happens
        if isinstance(happens, BaseException):
            raise happens


def guards_of(app: App, database: MemoryDatabase, clock: FakeClock, metrics: Metrics) -> Guards:
    """What stands between the handlers and their dependencies, on the memory ports."""
    return guards(app, Settings(), MemoryBudgets(database), MemorySlots(database),
                  metrics=metrics, clock=clock, worker=uuid4(), changed=lambda: None)


class Bench:
    """An app with one handler, and what surrounds a processor."""

    def __init__(self, handler: Handler[Any] | None = None, options: Options | None = None,
                 **app: Any) -> None:
        self.handler = ChargeHandler(options)
        self.clock = FakeClock()
        self.database = MemoryDatabase(self.clock)
        self.app = App("shop", handlers=[handler or self.handler], prefix=PREFIX,
                       **{"retry_budget": None, **app})
        self.broker = MemoryBroker(PREFIX, self.app.bindings(), self.clock)
        self.outbox = MemoryOutbox(self.database)
        self.reader = RequestReader(self.app, self.clock, "worker")
        self._open()

    def _open(self) -> None:
        self.metrics = Metrics()
        self.guards = guards_of(self.app, self.database, self.clock, self.metrics)
        self.gate = self.guards.gate
        self.processor = self.new_processor()

    def register(self, handler: type[Handler[Any]]) -> None:
        """The app has one more handler, before anything has happened."""
        self.app.register(handler)
        self._open()

    def new_processor(self) -> Processor:
        """One more."""
        return Processor(self.app, MemoryStore(self.database), self.clock, self.reader, self.gate,
                         self.metrics)

    def delivery(self, key: str = "a", amount: int = 1, *, message_id: str | None = None,
                 lane: Lane = Lane.LIVE, **headers: HeaderValue) -> Delivery:
        outgoing = to_outgoing(Charge(key=key, amount=amount), prefix=PREFIX, key=key,
                               message_id=message_id, dated=self.clock.now())
        message = message_of(outgoing)
        properties = message.properties
        if headers:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            properties = properties.with_headers(properties.headers.plus(named))
        return Delivery(Message(message.body, properties, properties.to_wire()), QUEUE, lane,
                        Charge.command_type)

    def requests(self, deliveries: Iterable[Delivery]) -> list[Request]:
        found = []
        for delivery in deliveries:
            read = self.reader.read(delivery)
            assert isinstance(read, Request)
            found.append(read)
        return found

    async def process(self, *deliveries: Delivery) -> list[Outcome]:
        return await self.processor.process(self.requests(deliveries))

    async def process_one(self, delivery: Delivery) -> Outcome:
        [outcome] = await self.process(delivery)
        return outcome

    def claim(self, key: str = "a") -> ClaimRow | None:
        return self.database.tables.claims.get((SCOPE, key))

    @property
    def effects(self) -> list[Any]:
        return self.database.tables.effects

    def next_copies(self, key: str = "a") -> list[Delivery]:
        """The next copies of a key that stand in the outbox, as they would arrive."""
        return [arrived(stored.row.message) for stored in self.database.tables.outbox.values()
                if stored.row.owner == (SCOPE, key)]

    def rows(self) -> list[Outgoing]:
        return [stored.row.message for stored in self.database.tables.outbox.values()]

    def watch(self) -> list[str]:
        """From now on, the statements of the database, as they begin."""
        steps: list[str] = []

        async def note(point: str) -> None:
            steps.append(point)

        self.database.at = note
        return steps

    def fail_at(self, point: str, *errors: Exception) -> None:
        """The next statements of that name fail, one per error."""
        left = deque(errors)

        async def fail(at: str) -> None:
            if at == point and left:
                raise left.popleft()

        self.database.at = fail


def message_of(outgoing: Outgoing) -> Message:
    return Message(outgoing.body, Properties.from_wire(outgoing.properties), outgoing.properties)


def arrived(outgoing: Outgoing, queue: str = QUEUE, lane: Lane = Lane.LIVE) -> Delivery:
    """The delivery of a copy that was published, and has spent its delay."""
    return Delivery(message_of(outgoing), queue, lane, outgoing.routing_key)


def sent(body: bytes, headers: Mapping[str, Any] | None = None, *, queue: str = QUEUE,
         lane: Lane = Lane.LIVE, routing_key: str = Charge.command_type, raw_headers: bytes = b"",
         **properties: Any) -> Delivery:
    """A delivery as a producer may have made it."""
    table = Headers(Headers.of(headers or {}).table + raw_headers)
    made = Properties(headers=table, **properties)
    return Delivery(Message(body, made, made.to_wire(), made.defect()), queue, lane, routing_key)


class Acks:
    """A settlement that tells what was done to it."""

    def __init__(self, live: bool = True) -> None:
        self.live, self.done = live, list[str]()

    async def ack(self) -> bool:
        self.done.append("ack")
        return self.live

    async def requeue(self) -> bool:
        self.done.append("requeue")
        return self.live


def headers_of(outgoing: Outgoing) -> dict[str, HeaderValue]:
    return Properties.from_wire(outgoing.properties).headers.decoded()
