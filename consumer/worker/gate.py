"""Whether a delivery may begin: deadline, breakers, slots, and a budget for retries.

Each of a process's queues asks the one gate, for dependencies are shared by queues.
"""

from collections.abc import Callable, Mapping

from consumer.app import App
from consumer.core.admit import Barrier, Run
from consumer.core.breaker import Circuit, State
from consumer.core.copies import parks
from consumer.message import Lane
from consumer.ports import Clock
from consumer.telemetry.labels import RetryDecision
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.window import Window
from consumer.worker.budgets import Budgets
from consumer.worker.passage import Passage
from consumer.worker.requests import Request
from consumer.worker.slots import SlotRoom


class Gate:
    """Lets deliveries begin, or not yet, or not at all.

    Args:
        circuits: The breakers, by dependency; those that have one.

    Attributes:
        windows: What happened lately, by dependency.
    """

    def __init__(
        self, app: App, budgets: Budgets, slots: SlotRoom, circuits: Mapping[str, Circuit],
        metrics: Metrics, clock: Clock,
    ) -> None:
        self._budgets, self.slots, self.circuits = budgets, slots, circuits
        self._metrics, self._clock = metrics, clock
        self._names: Mapping[str, tuple[str, ...]] = {
            entry.scope: tuple(dependency.name for dependency in app.dependencies_of(entry))
            for entry in app.registrations}
        self._common = {queue: _common(app, queue) for queue in app.queues}
        self.windows = {name: Window() for names in self._names.values() for name in names}
        self._listeners: list[Callable[[], None]] = []

    def leased(self, dependency: str) -> int:
        """Granted retries of it that have not begun in this process."""
        return self._budgets.leased(dependency)

    def on_free(self, listener: Callable[[], None]) -> None:
        """`listener` is called whenever `enter` may say something else than before."""
        self.slots.on_free(listener)
        self._listeners.append(listener)

    def breaker_changed(self) -> None:
        """A breaker is in another state than before."""
        for listener in self._listeners:
            listener()

    def barrier(self, request: Request) -> Barrier | None:
        """What stands before a run of it now, slots left aside that will come free."""
        if request.passage.barred is not None:
            return request.passage.barred
        left_s, registration = request.left_s(self._clock.monotonic()), request.registration
        if left_s is not None:
            shortest_s = registration.options.min_attempt.total_seconds()
            if left_s <= 0 or left_s < shortest_s:
                return Barrier.DEADLINE
        for name in registration.dependencies:
            circuit = self.circuits.get(name)
            if circuit is not None and circuit.state(self._clock.monotonic()) is State.OPEN:
                return Barrier.BREAKER
        if any(self.slots.limit(name) == 0 for name in registration.dependencies):
            return Barrier.NO_SLOT
        return None

    def held_back(self, queue: str) -> str | None:
        """Why no message of that queue should be taken now: all its handlers call a dependency
        whose breaker is open, or of which no slot is this process's.
        """
        now_s = self._clock.monotonic()
        for name in self._common[queue]:
            circuit = self.circuits.get(name)
            if circuit is not None and circuit.state(now_s) is State.OPEN:
                return f"the breaker of {name} is open: {circuit.why(now_s)}"
            if self.slots.limit(name) == 0:
                return f"no slot of {name} is free for this worker"
        return None

    def probing(self, queue: str) -> bool:
        """Whether a half-open breaker lets only single messages of that queue through."""
        now_s = self._clock.monotonic()
        return any(name in self.circuits and self.circuits[name].state(now_s) is State.HALF_OPEN
                   for name in self._common[queue])

    def has_toll(self, request: Request) -> bool:
        """Whether it may be a retry, which is to be paid for before it begins.

        Besides copies with a ticket, those that were parked: one can take the place of a retry
        that stayed away, and would otherwise never get a grant.
        """
        may_be_retry = request.ticket is not None or parks(request.delivery.message) > 0
        return (may_be_retry and not request.passage.tolled
                and any(map(self._budgets.limits, self._names[request.registration.scope]))
                and self.barrier(request) is None)

    async def pay_toll(self, request: Request) -> None:
        """Its retry has been granted or denied. Cancelled, it is neither, and nothing is spent."""
        paid: list[str] = []
        try:
            for name in self._names[request.registration.scope]:
                if not await self._budgets.pay(name):
                    request.passage.denied = True
                    break
                paid.append(name)
        except BaseException:
            self._return(paid)
            raise
        request.passage.tolled = True
        if request.passage.denied:
            self._return(paid)
        else:
            request.passage.paid = tuple(paid)

    def enter(self, request: Request) -> bool:
        """Its way to an executor is free, its slots are taken. False: it has to wait, for a slot or
        for what becomes of its queue, from which nothing should be taken now.
        """
        registration = request.registration
        if not registration.dependencies:
            return True
        barrier = self.barrier(request)
        if barrier is not None:  # it will not run, and so needs no slot
            if barrier is not Barrier.DEADLINE and self.held_back(request.delivery.queue):
                return False
            request.passage.barred = barrier
            return True
        if registration.options.hold_slots == "call":
            return True
        return self._take_slots(request.passage, registration.dependencies)

    def _take_slots(self, passage: Passage, names: tuple[str, ...]) -> bool:
        now_s = self._clock.monotonic()
        if not self.slots.try_take(names):
            if passage.waits_since_s is None:
                passage.waits_since_s = now_s
            return False
        passage.slots = names
        waited_s = 0.0 if passage.waits_since_s is None else now_s - passage.waits_since_s
        for name in names:
            self._metrics.slot_waited(name, waited_s)
        return True

    def begin(self, request: Request, run: Run) -> bool:
        """Its handler may begin. False: there is no budget for this retry."""
        passage = request.passage
        if passage.begun:
            return True
        if not run.costs:  # whatever ticket it shows
            self._give_back(passage)
            return True
        passage.begun = self._spend(request)
        return passage.begun

    def count(self, request: Request, run: Run) -> None:
        """Its handler has begun, or called something for the first time if it holds slots so."""
        names, first = self._names[request.registration.scope], not request.passage.counted
        request.passage.counted = True
        original = (first and not run.retry and not request.delivery.redelivered
                    and request.delivery.lane is Lane.LIVE)
        if original:
            self._metrics.original(request.registration.scope)
        now_s = self._clock.monotonic()
        for name in names:
            if original:
                self._budgets.earn(name)
                self.windows[name].add("originals", now=now_s)
            self.windows[name].add("attempts", now=now_s)

    def ended(self, request: Request, *, succeeded: bool) -> None:
        """An attempt has ended, and what it did or recorded is committed."""
        now_s = self._clock.monotonic()
        for name in self._names[request.registration.scope]:
            self.windows[name].add("succeeded" if succeeded else "failed", now=now_s)

    def may_rerun(self, request: Request) -> bool:
        """Whether its handler, which was rolled back, may begin again within the attempt.

        Where it calls dependencies, each further run is paid like a retry.
        """
        return self._pay_now(request.registration.dependencies)

    def undo(self, request: Request) -> None:
        """Its handler ended before it called anything: what was paid is not spent after all."""
        request.passage.begun = False

    def leave(self, request: Request) -> None:
        """It has been settled, or given back: so is what it held. Idempotent."""
        passage = request.passage
        if passage.slots:
            self.slots.release(passage.slots)
            passage.slots = ()
        if not passage.begun:
            self._give_back(passage)

    def _give_back(self, passage: Passage) -> None:
        self._return(passage.paid)
        passage.paid = ()

    def _spend(self, request: Request) -> bool:
        passage, names = request.passage, self._names[request.registration.scope]
        if not passage.paid and not passage.denied and self._pay_now(names):
            passage.paid = names
        granted = bool(passage.paid)
        now_s = self._clock.monotonic()
        for name in names:
            self._metrics.retry(
                name, RetryDecision.GRANTED if granted else RetryDecision.DENIED_BUDGET)
            self.windows[name].add("retries_granted" if granted else "retries_denied", now=now_s)
        return granted

    def _pay_now(self, names: tuple[str, ...]) -> bool:
        paid: list[str] = []
        for name in names:
            if not self._budgets.pay_now(name):
                self._return(paid)
                return False
            paid.append(name)
        return True

    def _return(self, names: tuple[str, ...] | list[str]) -> None:
        for name in names:
            self._budgets.give_back(name)


def _common(app: App, queue: str) -> tuple[str, ...]:
    """The dependencies that every handler of a queue names."""
    named = [set(entry.dependencies) for entry in app.registrations if entry.queue == queue]
    return tuple(sorted(set.intersection(*named))) if named else ()
