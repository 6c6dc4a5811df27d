"""What every `OutboxStore` promises. Subclass `OutboxContract`; give it a fixture `database`."""

import asyncio
from datetime import datetime, timedelta
from typing import Protocol

from consumer.claim import ClaimState
from consumer.message import OutboxRow, SentRow
from consumer.ports import OutboxStore
from consumer.testing.contract.database import DatabaseUnderTest, commit_retry
from consumer.testing.contract.samples import SCOPE, completion, request, row

HEAD_START = timedelta(seconds=5)
TAKEN_FOR = timedelta(minutes=1)
SOON = timedelta(minutes=1)


class OutboxUnderTest(DatabaseUnderTest, Protocol):
    """A database whose outbox can be swept, and whose clock can be advanced."""

    def relay(self) -> OutboxStore:
        """One more of them."""

    def now(self) -> datetime:
        """Its clock."""

    async def pass_time(self, by: timedelta) -> None:
        """Everything in the outbox is that much older."""


async def write(database: OutboxUnderTest, *rows: OutboxRow) -> list[SentRow]:
    """Commit the rows."""
    async with database.store().transaction() as transaction:
        return await transaction.finish([], rows)


def ids(rows: list[SentRow]) -> list[str]:
    """Their message ids."""
    return [row.message.message_id for row in rows]


class OutboxContract:
    """Rows come due, are taken for a while, and go when they are confirmed."""

    async def test_the_writer_has_a_head_start(self, database: OutboxUnderTest) -> None:
        await write(database, row("m"))
        relay = database.relay()
        assert await relay.due(10) == []
        await database.pass_time(HEAD_START)
        assert ids(await relay.due(10)) == ["m"]

    async def test_a_row_comes_back_as_it_was_written(self, database: OutboxUnderTest) -> None:
        [sent] = await write(database, row("m", delay=timedelta(hours=1)))
        await database.pass_time(HEAD_START)
        [due] = await database.relay().due(10)
        assert (due.id, due.message) == (sent.id, sent.message)
        assert due.due_at is not None
        assert (due.kept, due.relay_only, due.tries) == (False, False, 0)

    async def test_a_taken_row_is_left_alone_for_a_minute(self, database: OutboxUnderTest) -> None:
        await write(database, row("m"))
        await database.pass_time(HEAD_START)
        relay, other = database.relay(), database.relay()
        assert ids(await relay.due(10)) == ["m"]
        assert await other.due(10) == []
        await database.pass_time(TAKEN_FOR)
        assert ids(await other.due(10)) == ["m"]

    async def test_two_relays_share_the_rows(self, database: OutboxUnderTest) -> None:
        names = [f"m{n:02}" for n in range(20)]
        await write(database, *map(row, names))
        await database.pass_time(HEAD_START)
        taken = await asyncio.gather(*(database.relay().due(10) for _ in range(2)))
        assert sorted(ids(taken[0]) + ids(taken[1])) == names

    async def test_a_confirmed_row_is_gone(self, database: OutboxUnderTest) -> None:
        sent = await write(database, row("m1"), row("m2"))
        await database.relay().confirmed(sent[:1])
        await database.relay().confirmed(sent[:1])
        assert await database.outbox() == ["m2"]

    async def test_a_scheduled_row_waits_for_its_time(self, database: OutboxUnderTest) -> None:
        at = database.now() + timedelta(hours=1)
        [sent] = await write(database, row("m", available_at=at))
        assert sent.relay_only, "the writer must not publish it at once"
        await database.pass_time(timedelta(minutes=59))
        assert await database.relay().due(10) == []
        await database.pass_time(timedelta(minutes=1, seconds=1))
        assert ids(await database.relay().due(10)) == ["m"]

    async def test_a_failed_row_comes_again_later(self, database: OutboxUnderTest) -> None:
        [sent] = await write(database, row("m"))
        relay = database.relay()
        await relay.failed(sent, "unroutable", retry_in=timedelta(minutes=2))
        await database.pass_time(timedelta(minutes=1))
        assert await relay.due(10) == []
        await database.pass_time(timedelta(minutes=1))
        [due] = await relay.due(10)
        assert due.tries == 1

    async def test_a_parked_row_never_comes_due(self, database: OutboxUnderTest) -> None:
        sent = await write(database, row("bad"), row("good"))
        relay = database.relay()
        await relay.failed(sent[0], "too \0 large \ud800", retry_in=None)
        await database.pass_time(timedelta(days=400))
        assert ids(await relay.due(10)) == ["good"]
        assert await database.outbox() == ["bad", "good"]

    async def test_one_ordering_key_goes_one_by_one(self, database: OutboxUnderTest) -> None:
        sent = await write(database, *(row(f"{k}{n}", ordering_key=k) for n in "123" for k in "ab"))
        assert all(s.relay_only for s in sent)
        relay, other = database.relay(), database.relay()
        seen = []
        for _ in range(3):
            taken = await relay.due(10)
            assert await other.due(10) == []
            seen.append(sorted(ids(taken)))
            await relay.confirmed(taken)
        assert seen == [["a1", "b1"], ["a2", "b2"], ["a3", "b3"]]

    async def test_a_parked_row_holds_its_own_key_only(self, database: OutboxUnderTest) -> None:
        await write(database, row("a1", ordering_key="a"), row("b1", ordering_key="b"),
                    row("a2", ordering_key="a"), row("free"))
        relay = database.relay()
        taken = {s.message.message_id: s for s in await relay.due(10)}
        assert set(taken) == {"a1", "b1"}
        await relay.failed(taken["a1"], "refused", retry_in=None)
        await relay.confirmed([taken["b1"]])
        await database.pass_time(timedelta(days=1))
        assert ids(await relay.due(10)) == ["free"]

    async def test_a_next_copy_stays_and_comes_again_when_overdue(
        self, database: OutboxUnderTest
    ) -> None:
        sent, relay = await commit_retry(database.store(), "a"), database.relay()
        await relay.confirmed([sent])
        assert await database.outbox() == ["a-copy-1"]
        await database.pass_time(timedelta(minutes=65))  # an hour of delay, then ten minutes
        assert await relay.due(10) == []
        await database.pass_time(timedelta(minutes=5))
        [again] = await relay.due(10)
        assert again.kept
        await relay.confirmed([again])
        await database.pass_time(timedelta(minutes=20) - SOON)
        assert await relay.due(10) == []
        await database.pass_time(SOON)
        assert ids(await relay.due(10)) == ["a-copy-1"]

    async def test_a_next_copy_whose_claim_was_written_is_no_more(
        self, database: OutboxUnderTest
    ) -> None:
        store = database.store()
        sent, relay = await commit_retry(store, "a"), database.relay()
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            await transaction.finish([completion("a")], [])
        await relay.confirmed([sent])
        await relay.failed(sent, "late", retry_in=timedelta(0))
        await database.pass_time(timedelta(days=2))
        assert await relay.due(10) == []
        async with store.transaction() as transaction:
            claim = await transaction.lock(SCOPE, "a")
        assert claim is not None
        assert claim.state is ClaimState.DONE
