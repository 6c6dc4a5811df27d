"""Every delay finds its way through the bindings of the ladder, and waits what was promised."""

from datetime import timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from consumer.core.topology import (
    LONGEST_DELAY,
    LONGEST_ROUNDED_DELAY,
    UNIT,
    Route,
    Topology,
    plan,
    round_up_delay,
    route_delay,
)

# Names of which one ends in another, word by word.
NAMES = ("b", "a.b", "b.a", "a", "x.a.b", "0.b", "1")
PLAN = plan("p", {name: [] for name in NAMES})
DESTINATIONS = [f"{name}{suffix}" for name in NAMES for suffix in ("", ".replay", ".dead")]
delays = st.timedeltas(min_value=timedelta(0), max_value=LONGEST_DELAY)


def matches(pattern: list[str], words: list[str]) -> bool:
    """Whether a topic exchange takes `words` for `pattern`."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


def travel(topology: Topology, route: Route) -> tuple[list[str], list[timedelta]]:
    """Where a message ends, and its waits on the way there."""
    waits: dict[str, timedelta] = {}
    onward: dict[str, str] = {}
    for queue in topology.queues:
        if not queue.consumed:
            waits[queue.name] = timedelta(milliseconds=int(queue.arguments["x-message-ttl"]))
            onward[queue.name] = str(queue.arguments["x-dead-letter-exchange"])
    words, ended, waited = route.routing_key.split("."), list[str](), list[timedelta]()
    exchanges = [route.exchange]
    while exchanges:
        here = exchanges.pop()
        for binding in topology.bindings:
            if binding.exchange != here or not matches(binding.routing_key.split("."), words):
                continue
            if binding.destination_kind == "exchange":
                exchanges.append(binding.destination)
            elif binding.destination in onward:
                waited.append(waits[binding.destination])
                exchanges.append(onward[binding.destination])
            else:
                ended.append(binding.destination)
    return ended, waited


@given(delays, st.sampled_from(DESTINATIONS))
@example(timedelta(0), "b")
@example(LONGEST_ROUNDED_DELAY, "a.b.dead")
@example(LONGEST_DELAY, "b.replay")
def test_a_delay_ends_at_one_queue_after_the_rounded_time(
    delay: timedelta, destination: str
) -> None:
    ended, waited = travel(PLAN, route_delay("p", delay, destination))
    assert ended == [destination]
    assert sum(waited, timedelta(0)) == round_up_delay(delay)
    assert len(waited) <= 5


@given(delays, st.sampled_from(DESTINATIONS))
def test_an_exact_delay_waits_to_the_next_unit(delay: timedelta, destination: str) -> None:
    ended, waited = travel(PLAN, route_delay("p", delay, destination, exact=True))
    assert ended == [destination]
    total = sum(waited, timedelta(0))
    if delay < UNIT:
        assert not total
    else:
        assert delay <= total < delay + UNIT


@given(st.timedeltas(min_value=UNIT, max_value=LONGEST_ROUNDED_DELAY))
def test_rounding_goes_up_by_less_than_a_sixteenth_of_whole_units(delay: timedelta) -> None:
    units = -(-delay // UNIT)
    rounded = round_up_delay(delay)
    assert rounded >= delay
    assert rounded % UNIT == timedelta(0)
    assert 16 * (rounded - units * UNIT) < units * UNIT


@given(delays, delays)
def test_a_longer_delay_is_never_rounded_below_a_shorter_one(
    one: timedelta, other: timedelta
) -> None:
    shorter, longer = sorted((one, other))
    assert round_up_delay(shorter) <= round_up_delay(longer)
