"""What a handler is told about its time, and what it passes on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer import Command
from consumer.call import Call
from consumer.context import Context, ContextOutbox
from consumer.errors import UnsendableMessage
from consumer.message import Lane, Message
from consumer.wire import Properties

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Ship(Command, type="orders.ship"):
    order_id: str = "o"


class Clocks:
    """A wall clock that stands, and so much time left."""

    def __init__(self, left: timedelta = SECOND) -> None:
        self.left = left
        self.called: list[tuple[str, ...]] = []

    def remaining(self) -> timedelta:
        return self.left

    def now(self) -> datetime:
        return NOW

    @asynccontextmanager
    async def calls(self, dependencies: tuple[str, ...]) -> AsyncIterator[Call]:
        self.called.append(dependencies)
        yield Call(self.remaining, self.now)

    def context(self, **more: Any) -> Context:
        given: dict[str, Any] = {
            "session": lambda: None, "outbox": ContextOutbox("shop"), "scope": "orders.pay",
            "key": "k", "attempt": 1, "lane": Lane.LIVE, "message": Message(b"{}"),
            "resources": None, "logger": lambda: None, "deadline": None,
            "remaining": self.remaining, "calls": self.calls, "now": self.now}
        return Context(**{**given, **more})


def sent(outbox: ContextOutbox) -> list[dict[str, Any]]:
    """The headers of what is in the outbox, keys left aside."""
    found = [Properties.from_wire(row.message.properties).headers.decoded() for row in outbox.rows]
    return [{name: value for name, value in headers.items() if name != "idempotency-key"}
            for headers in found]


async def test_a_message_inherits_the_deadline_and_what_is_left_of_it() -> None:
    outbox = ContextOutbox("shop", NOW + timedelta(milliseconds=1500), lambda: NOW)
    await outbox.send(Ship(), inherit_deadline=True)
    await outbox.send(Ship(), inherit_deadline=True, headers={"x": 1})
    assert sent(outbox) == [
        {"x-deadline-ms": 1_777_636_801_500, "x-timeout-ms": 1500},
        {"x": 1, "x-deadline-ms": 1_777_636_801_500, "x-timeout-ms": 1500}]


async def test_a_message_inherits_nothing_unless_asked_to() -> None:
    outbox = ContextOutbox("shop", NOW, lambda: NOW)
    await outbox.send(Ship())
    assert sent(outbox) == [{}]


async def test_a_command_without_a_deadline_has_none_to_give() -> None:
    outbox = ContextOutbox("shop")
    await outbox.send(Ship(), inherit_deadline=True)
    await outbox.send(Ship(), inherit_deadline=True, at=NOW)
    assert sent(outbox) == [{}, {}]


async def test_of_a_scheduled_message_what_is_left_counts_from_when_it_is_due() -> None:
    outbox = ContextOutbox("shop", NOW + 10 * SECOND, lambda: NOW)
    await outbox.send(Ship(), inherit_deadline=True, at=NOW + 7 * SECOND)
    assert [headers["x-timeout-ms"] for headers in sent(outbox)] == [3000]


@pytest.mark.parametrize("late", [timedelta(0), SECOND])
async def test_a_message_due_after_the_inherited_deadline_is_refused(late: timedelta) -> None:
    outbox = ContextOutbox("shop", NOW, lambda: NOW)
    with pytest.raises(UnsendableMessage, match="not before the deadline"):
        await outbox.send(Ship(), inherit_deadline=True, at=NOW + late)
    assert outbox.rows == []


@pytest.mark.parametrize(("left", "remaining"), [
    (SECOND, SECOND), (timedelta(0), timedelta(0)), (-SECOND, timedelta(0))])
async def test_what_remains_is_never_negative(left: timedelta, remaining: timedelta) -> None:
    clocks = Clocks(left)
    context = clocks.context()
    assert context.remaining() == remaining
    async with context.call() as call:
        assert call.timeout == remaining
        assert call.timeout_s == remaining.total_seconds()


async def test_time_goes_on_inside_a_call() -> None:
    clocks = Clocks(2 * SECOND)
    context = clocks.context()
    async with context.call("psp") as call:
        clocks.left = SECOND / 2
        assert (context.remaining(), call.timeout, call.timeout_s) == (SECOND / 2, SECOND / 2, 0.5)
        assert call.headers == {"x-deadline-ms": "1777636800500", "x-timeout-ms": "500"}
        assert call.grpc_timeout == "500000u"


def test_what_remains_of_the_attempt_is_told_to_other_services() -> None:
    context = Clocks(timedelta(milliseconds=1500)).context(deadline=NOW + 60 * SECOND)
    assert context.deadline == NOW + 60 * SECOND
    assert context.timeout_headers() == {"x-deadline-ms": "1777636801500", "x-timeout-ms": "1500"}
    assert context.grpc_timeout() == "1500000u"


def test_with_nothing_left_other_services_are_told_so() -> None:
    context = Clocks(-SECOND).context()
    assert context.timeout_headers() == {"x-deadline-ms": "1777636800000", "x-timeout-ms": "0"}
    assert context.grpc_timeout() == "1n"


async def test_a_call_names_its_dependencies_or_none_for_all() -> None:
    clocks = Clocks()
    context = clocks.context()
    for names in ((), ("psp",), ("psp", "mail")):
        async with context.call(*names):
            pass
    assert clocks.called == [(), ("psp",), ("psp", "mail")]


async def test_the_clock_on_the_wall_is_read_where_none_is_given() -> None:
    before = datetime.now(UTC)
    clocks = Clocks()
    context = Context(**{
        "session": lambda: None, "outbox": ContextOutbox("shop", before + 60 * SECOND),
        "scope": "s", "key": "k", "attempt": 1, "lane": Lane.LIVE, "message": Message(b"{}"),
        "resources": None, "logger": lambda: None, "deadline": None,
        "remaining": clocks.remaining, "calls": clocks.calls})
    told = int(context.timeout_headers()["x-deadline-ms"])
    await context.outbox.send(Ship(), inherit_deadline=True)
    after = datetime.now(UTC)
    earliest, latest = (int(moment.timestamp() * 1000) for moment in (before, after))
    assert earliest + 999 <= told <= latest + 1001
    [headers] = sent(context.outbox)
    assert 60_000 - (latest - earliest) - 1 <= headers["x-timeout-ms"] <= 60_000
