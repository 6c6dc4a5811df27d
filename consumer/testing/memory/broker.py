"""Queues in memory that route, delay, deliver and redeliver as RabbitMQ does."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from consumer.core.topology import LEVELS, UNIT, commands_exchange, delay_level, deliver_exchange
from consumer.core.topology import plan as plan_topology
from consumer.message import Delivery, Lane, Message, Outgoing
from consumer.ports import Clock, Published, Receipt, Sink
from consumer.wire import Properties


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in a queue."""

    message: Message
    routing_key: str
    redelivered: bool = False


class MemorySettlement:
    """Ends one delivery, unless its channel is gone."""

    def __init__(self, broker: "MemoryBroker", queue: str, waiting: Waiting) -> None:
        self._broker, self.queue, self.waiting = broker, queue, waiting

    @property
    def live(self) -> bool:
        return id(self) in self._broker.unacked

    async def ack(self) -> bool:
        return self._broker.unacked.pop(id(self), None) is not None

    async def requeue(self) -> bool:
        if self._broker.unacked.pop(id(self), None) is None:
            return False
        self._broker.give_back(self)
        return True


class MemorySubscription:
    """A consumer of one queue."""

    def __init__(self, broker: "MemoryBroker", queue: str) -> None:
        self._broker, self._queue = broker, queue

    @property
    def active(self) -> bool:
        return self._queue in self._broker.sinks

    async def cancel(self) -> None:
        self._broker.sinks.pop(self._queue, None)


class MemoryBroker:
    """`Broker` and `Publisher` in memory.

    Attributes:
        refuse: What publishing answers instead of accepting, while it is set.
        queues: The messages of each queue, oldest first.
        delayed: Messages in the delay ladder, with the time they leave it.
    """

    connected = True

    def __init__(self, prefix: str, bindings: Mapping[str, Sequence[str]], clock: Clock) -> None:
        self._prefix, self._clock = prefix, clock
        self._bindings = bindings
        self.queues: dict[str, deque[Waiting]] = {
            queue.name: deque() for queue in plan_topology(prefix, bindings).queues
        }
        self.delayed: list[tuple[datetime, str, Waiting]] = []
        self.unacked: dict[int, MemorySettlement] = {}
        self.sinks: dict[str, tuple[Sink, str, Lane]] = {}
        self.refuse: Published | None = None

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        await asyncio.sleep(0)
        return [self.refuse or self._route(message) for message in messages]

    def _route(self, outgoing: Outgoing) -> Published:
        properties = Properties.from_wire(outgoing.properties)
        waiting = Waiting(
            Message(outgoing.body, properties, outgoing.properties, properties.defect()),
            outgoing.routing_key,
        )
        if outgoing.exchange == commands_exchange(self._prefix):
            names = [
                queue for queue, types in self._bindings.items() if outgoing.routing_key in types
            ]
            for name in names or [f"{self._prefix}.unroutable"]:
                self.queues[name].append(waiting)
        elif outgoing.exchange == "" and outgoing.routing_key in self.queues:
            self.queues[outgoing.routing_key].append(waiting)
        elif outgoing.exchange in self._ladder():
            self._delay(outgoing, waiting)
        else:
            return Published(Receipt.UNROUTABLE, f"nothing is bound for {outgoing.routing_key!r}")
        return Published(Receipt.CONFIRMED)

    def _ladder(self) -> set[str]:
        return {
            deliver_exchange(self._prefix),
            *(delay_level(self._prefix, level) for level in range(LEVELS)),
        }

    def _delay(self, outgoing: Outgoing, waiting: Waiting) -> None:
        *bits, destination = outgoing.routing_key.split(".", LEVELS)
        name = destination if destination in self.queues else f"{self._prefix}.unroutable"
        units = int("".join(bits), 2)
        if units:
            self.delayed.append((self._clock.now() + UNIT * units, name, waiting))
        else:
            self.queues[name].append(waiting)

    def release_due(self) -> int:
        """Messages whose delay is over reach their queue; returns how many."""
        now = self._clock.now()
        due = [entry for entry in self.delayed if entry[0] <= now]
        self.delayed = [entry for entry in self.delayed if entry[0] > now]
        for _, name, waiting in sorted(due, key=lambda entry: entry[0]):
            self.queues[name].append(waiting)
        return len(due)

    def take(self, queue: str, lane: Lane = Lane.LIVE) -> tuple[Delivery, MemorySettlement] | None:
        """The oldest message of a work queue, as a delivery; None if it is empty."""
        name = queue if lane is Lane.LIVE else f"{queue}.replay"
        if not self.queues[name]:
            return None
        waiting = self.queues[name].popleft()
        settlement = MemorySettlement(self, name, waiting)
        self.unacked[id(settlement)] = settlement
        return (
            Delivery(waiting.message, queue, lane, waiting.routing_key, waiting.redelivered),
            settlement,
        )

    def give_back(self, settlement: MemorySettlement) -> None:
        """A delivery returns to the head of its queue."""
        self.queues[settlement.queue].appendleft(replace(settlement.waiting, redelivered=True))

    def lose_channel(self) -> None:
        """All unacknowledged deliveries return; acks of them come to nothing."""
        for settlement in reversed(list(self.unacked.values())):
            self.give_back(settlement)
        self.unacked.clear()

    async def subscribe(
        self, queue: str, lane: Lane, prefetch: int, sink: Sink
    ) -> MemorySubscription:
        name = queue if lane is Lane.LIVE else f"{queue}.replay"
        self.sinks[name] = (sink, queue, lane)
        return MemorySubscription(self, name)

    def deliver(self) -> int:
        """Hand every waiting message of a subscribed queue to its sink; returns how many."""
        count = 0
        for sink, queue, lane in list(self.sinks.values()):
            while (taken := self.take(queue, lane)) is not None:
                sink(*taken)
                count += 1
        return count
