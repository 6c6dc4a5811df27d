"""Walks through the interleavings of a stage: what happens next is drawn, and everything can."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from simulation.stage import (
    IN_TRANSACTION,
    Gate,
    Process,
    Stage,
    Violation,
    Worker,
)

Move = tuple[str, Callable[[], object]]


class Chance(Protocol):
    """Draws what happens next."""

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""

    @property
    def over(self) -> bool:
        """Whether nothing more is to happen."""


class Drawn:
    """Chance by a seed, for so many moves."""

    def __init__(self, seed: int, moves: int) -> None:
        self._random, self._left = Random(seed), moves

    def below(self, limit: int) -> int:
        self._left -= 1
        return self._random.randrange(limit)

    @property
    def over(self) -> bool:
        return self._left <= 0


class Written:
    """Chance as it is written down, a byte a move."""

    def __init__(self, story: bytes) -> None:
        self._story = list(reversed(story))

    def below(self, limit: int) -> int:
        return self._story.pop() % limit if self._story else 0

    @property
    def over(self) -> bool:
        return not self._story


@dataclass
class Explorer:
    """One walk.

    Attributes:
        trace: What has happened so far.
        happened: Kinds of things that have happened, to see that a search does meet them.
    """

    stage: Stage
    chance: Chance
    faults: int = 6
    trace: list[str] = field(default_factory=list)
    happened: set[str] = field(default_factory=set)
    workers: list[Worker] = field(default_factory=list)
    relays: list[Process] = field(default_factory=list)

    def walk(self) -> None:
        """Play until chance is over, then let everything come to its end.

        Raises:
            Violation: A rule was broken; its notes tell how.
        """
        try:
            self.workers = [self.stage.worker(), self.stage.worker()]
            self.stage.publish("a", message_id="a")
            while not self.chance.over:
                label, move = self._next()
                self.trace.append(label)
                self.happened.add(label.split(":")[0])
                move()
                self.stage.check()
            succeed = self.stage.clock.token().int % 2 == 0
            self.trace.append(f"drain, handlers {'succeed' if succeed else 'fail'}")
            for relay in self.relays:
                self.stage.finish(relay)
            self.stage.drain(self.workers, succeed=succeed)
        except Violation as violation:
            violation.add_note("\n".join(self.trace))
            raise

    def _next(self) -> Move:
        """Draw what happens next, of all that can."""
        kinds: list[tuple[int, list[Move]]] = [
            (12, self._work()), (3, self._deliveries()), (2, self._from_outside()),
            (1, self._orphans_ends()), (1, self._relays()),
            (2, self._mishaps() if self.faults else []),
        ]
        if self.stage.database.down:
            kinds.append((4, [("database: up",
                               lambda: setattr(self.stage.database, "down", False))]))
        possible = [moves for weight, moves in kinds if moves for _ in range(weight)]
        moves = possible[self.chance.below(len(possible))]
        return moves[self.chance.below(len(moves))]

    def _work(self) -> list[Move]:
        return [move for process in (*self.workers, *self.relays) for gate in process.gates
                for move in self._at(gate)]

    def _deliveries(self) -> list[Move]:
        moves: list[Move] = []
        for worker in self.workers:
            if worker.alive and len(worker.intake) < 3 and self.stage.broker.queues["orders"]:
                moves.append((f"deliver: to {worker.name}", worker.deliver))
                moves.append((f"deliver two: to {worker.name}", partial(worker.deliver, 2)))
        return moves

    def _orphans_ends(self) -> list[Move]:
        moves: list[Move] = []
        for index, (_, gate) in enumerate(self.stage.orphans):
            for commits in (True, False) if gate.point == "commit" else (False,):
                moves.append((
                    f"orphan {'commits' if commits else 'rolls back'}:",
                    partial(self.stage.end_orphan, index, commits=commits)))
        return moves

    def _at(self, gate: Gate) -> list[Move]:
        name = gate.process.name

        def opens(what: str) -> Move:
            kind = what or "goes on"
            return (f"{kind}: {name} at {gate.point}", lambda: gate.open(what))

        moves = [opens("")] * 3
        if gate.point == "handle":
            moves += [opens("transient"), opens("transient"), opens("permanent"),
                      opens("cancelled")]
        return moves

    def _from_outside(self) -> list[Move]:
        stage = self.stage
        moves: list[Move] = [
            ("time: 1.1 s", lambda: stage.pass_time(seconds=1.1)),
            ("time: 7 s", lambda: stage.pass_time(seconds=7)),
            ("time: 61 s", lambda: stage.pass_time(seconds=61)),
            ("time: 11 min", lambda: stage.pass_time(minutes=11)),
        ]
        if len(stage.sent) < 7:
            for key, amount in (("a", 1), ("a", 2), ("b", 1)):
                moves.append((f"publish: {key} {amount}",
                              partial(stage.publish, key, amount, message_id=key)))
            moves.append(("publish: a 1 under another id", stage.publish))
            moves.append(("publish: a 3", lambda: stage.publish("a", 3, message_id="a")))
            moves.append(("publish: the same again", lambda: stage.publish_again(*stage.sent[-1])))
        return moves

    def _relays(self) -> list[Move]:
        self.relays = [relay for relay in self.relays if not relay.idle]
        if len(self.relays) < 2 and self.stage.database.tables.outbox:
            return [("relay:", lambda: self.relays.append(self.stage.relay()))]
        return []

    def _mishaps(self) -> list[Move]:
        moves: list[Move] = []
        for worker in self.workers:
            if worker.unsettled:
                moves.append((f"channel lost: {worker.name}", worker.lose_channel))
            if worker.gates:
                moves.append((f"killed: {worker.name} at {worker.gates[0].point}",
                              partial(self._replace, worker, worker.kill)))
            if any(gate.point in IN_TRANSACTION for gate in worker.gates):
                moves.append((f"orphaned: {worker.name} at {worker.gates[0].point}",
                              partial(self._replace, worker, worker.orphan)))
        for relay in self.relays:
            moves.append((f"relay killed: {relay.name}", relay.kill))
        for process in (*self.workers, *self.relays):
            for gate in process.gates:
                moves += self._faults_at(gate)
        for copy in self.stage.copies():
            moves.append(("doubled: a copy", partial(self.stage.double, copy)))
            if self.stage.has_current_ticket(self.stage.copy_at(copy)):
                moves.append(("lost: the next copy", partial(self.stage.break_down, copy)))
        moves.append(("database: down", lambda: setattr(self.stage.database, "down", True)))
        kinds = list(dict.fromkeys(label.split(":")[0] for label, _ in moves))
        kind = kinds[self.chance.below(len(kinds))]
        return [(label, partial(self._mishap, move)) for label, move in moves
                if label.startswith(kind)]

    @staticmethod
    def _faults_at(gate: Gate) -> list[Move]:
        faults = {"publish": ["refused", "not sent"], "confirm": ["no answer"], "ack": [],
                  "handle": [], "commit": ["connection lost", "answer lost"]}
        return [(f"{what}: {gate.process.name} at {gate.point}", partial(gate.open, what))
                for what in faults.get(gate.point, ["connection lost"])]

    def _mishap(self, move: Callable[[], object]) -> None:
        self.faults -= 1
        move()

    def _replace(self, worker: Worker, how: Callable[[], object]) -> None:
        how()
        self.workers[self.workers.index(worker)] = self.stage.worker()


def explore(chance: Chance, faults: int = 6) -> set[str]:
    """One walk on a stage of its own; returns the kinds of things that happened."""
    with Stage() as stage:
        explorer = Explorer(stage, chance, faults)
        explorer.walk()
        return explorer.happened
