"""The breaker against a plain model that remembers every call, and what must hold for any story."""

from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from consumer.core.breaker import Breaker, CallOutcome, Circuit, Permit, State
from consumer.core.call_window import BUCKETS

OPEN_FOR_S = 5.0
SLOW_AFTER_S = 2.0
WINDOW_S = 30.0

breakers = st.builds(
    Breaker,
    failure_rate=st.sampled_from([0.1, 0.3, 0.5, 0.6, 1.0]),
    slow_rate=st.sampled_from([None, 0.4, 1.0]),
    slow_after=st.just(timedelta(seconds=SLOW_AFTER_S)),
    window=st.just(timedelta(seconds=WINDOW_S)) | st.integers(6, 20),
    minimum_calls=st.integers(1, 6),
    open_for=st.just(timedelta(seconds=OPEN_FOR_S)),
    probes=st.integers(1, 4),
)


@dataclass(frozen=True)
class Move:
    """Time passes, in steps that floats add exactly; then a call is tried, or one ends."""

    after_s: float
    end: int | None
    outcome: CallOutcome
    took_s: float


SUCCESS, FAILURE, IGNORED = CallOutcome
moves = st.lists(st.builds(
    Move, st.sampled_from([0.0, 0.0, 0.0, 0.25, 1.0, 4.0, 5.0, 5.0, 31.0]),
    st.sampled_from([None, 0, 0, 1, 4]),
    st.sampled_from([SUCCESS, SUCCESS, FAILURE, FAILURE, FAILURE, IGNORED]),
    st.sampled_from([0.1, 0.1, SLOW_AFTER_S])), min_size=30, max_size=120)


@dataclass
class Model:
    """The rules of the breaker, word for word, and nothing done to save time or memory."""

    breaker: Breaker
    state: State = State.CLOSED
    round: int = 0
    opened: float = 0.0
    ended: list[tuple[float, bool, bool]] = field(default_factory=list)
    probes: dict[int, float] = field(default_factory=dict)
    calls: int = 0

    def turn(self, state: State) -> None:
        self.state, self.round = state, self.round + 1
        self.ended, self.probes = [], {}

    def look(self, now: float) -> State:
        if self.state is State.OPEN and now >= self.opened + OPEN_FOR_S:
            self.turn(State.HALF_OPEN)
        return self.state

    def enter(self, now: float) -> tuple[int, int] | None:
        """Round and number of the call; None where it may not be made."""
        self.calls += 1
        if self.look(now) is State.OPEN:
            return None
        if self.state is State.HALF_OPEN:
            under_way = [at for at in self.probes.values() if now < at + OPEN_FOR_S]
            if len(under_way) + len(self.ended) >= self.breaker.probes:
                return None
            self.probes[self.calls] = now
        return self.round, self.calls

    def leave(self, call: tuple[int, int], now: float, outcome: CallOutcome, slow: bool) -> None:
        if call[0] != self.round:
            return
        self.probes.pop(call[1], None)
        if outcome is IGNORED:
            return
        self.ended.append((now, outcome is FAILURE, slow))
        counted = self.counted(now)
        half_open = self.state is State.HALF_OPEN
        if len(counted) < (self.breaker.probes if half_open else self.breaker.minimum_calls):
            return
        failed = sum(call[1] for call in counted) / len(counted)
        slow_rate = sum(call[2] for call in counted) / len(counted)
        limit = self.breaker.slow_rate
        if failed >= self.breaker.failure_rate or (limit is not None and slow_rate >= limit):
            self.opened = now
            self.turn(State.OPEN)
        elif half_open:
            self.turn(State.CLOSED)

    def counted(self, now: float) -> list[tuple[float, bool, bool]]:
        window = self.breaker.window
        if self.state is State.HALF_OPEN:
            return self.ended
        if isinstance(window, int):
            return self.ended[-window:]
        width = window.total_seconds() / BUCKETS
        return [call for call in self.ended if now // width - call[0] // width < BUCKETS]


@given(breakers, moves)
def test_it_does_what_the_plain_model_does(breaker: Breaker, story: list[Move]) -> None:
    circuit, model = Circuit(breaker, timedelta(seconds=60)), Model(breaker)
    under_way: list[tuple[Permit, tuple[int, int]]] = []
    now = 100.0
    for move in story:
        now += move.after_s
        if move.end is None or move.end >= len(under_way):
            permit, call = circuit.try_enter(now), model.enter(now)
            assert (permit is None) == (call is None)
            if permit is not None and call is not None:
                under_way.append((permit, call))
        else:
            permit, call = under_way.pop(move.end)
            circuit.leave(permit, now, move.outcome, move.took_s)
            model.leave(call, now, move.outcome, move.took_s >= SLOW_AFTER_S)
        assert circuit.state(now) is model.look(now)
        assert bool(circuit.why(now)) == (circuit.opened_at is not None) == (
            model.state is not State.CLOSED)


def play(circuit: Circuit, story: list[Move]) -> float:
    """The story, with calls that never end among it; returns when it is over."""
    under_way: list[Permit] = []
    now = 100.0
    for move in story:
        now += move.after_s
        permit = circuit.try_enter(now)
        if permit is not None:
            under_way.append(permit)
        if move.end is not None and move.end < len(under_way):
            circuit.leave(under_way.pop(move.end), now, move.outcome, move.took_s)
    return now


@given(breakers, moves)
def test_whatever_happened_it_closes_once_the_dependency_is_well(
    breaker: Breaker, story: list[Move]
) -> None:
    """Also where calls were lost: it never takes more than open_for until the next may be made."""
    circuit = Circuit(breaker, timedelta(seconds=60))
    now = play(circuit, story)
    for _ in range(2 * breaker.probes + 2):
        wait_s = circuit.until_probe_s(now)
        assert 0 <= wait_s <= OPEN_FOR_S
        if wait_s > 0:
            assert circuit.try_enter(now + 0.875 * wait_s) is None
            now += wait_s
        permit = circuit.try_enter(now)
        assert permit is not None, "until_probe_s has not told the truth"
        circuit.leave(permit, now, SUCCESS, 0.1)
        if circuit.state(now) is State.CLOSED:
            break
    assert circuit.state(now) is State.CLOSED


@given(breakers, moves)
def test_a_broken_dependency_sees_no_more_than_the_probes_in_open_for(
    breaker: Breaker, story: list[Move]
) -> None:
    circuit = Circuit(breaker, timedelta(seconds=60))
    now = play(circuit, story)
    begun: list[float] = []
    for _ in range(200):
        now += 0.5
        for _ in range(30):
            permit = circuit.try_enter(now)
            if permit is not None:
                if circuit.state(now) is State.HALF_OPEN:
                    begun.append(now)
                circuit.leave(permit, now, FAILURE, 0.1)
    for start in begun:
        within = [at for at in begun if start <= at < start + OPEN_FOR_S]
        assert len(within) <= breaker.probes
