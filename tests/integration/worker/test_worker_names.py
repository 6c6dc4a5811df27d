"""B37: names are bound parameters and quoted identifiers, never text of a statement.

Queues, scopes, keys and schemas with the signs of SQL, of AMQP patterns and of other scripts go the
whole path, and nothing else is touched.
"""

from typing import Any

import pytest
from harness import FAST, SCHEMA, Site, effect
from postbox import post

from consumer import App, Command, Context, Handler
from consumer.errors import ConfigurationError
from consumer.store import schema as migrations
from consumer.store import workers
from consumer.store.sql import Schema
from consumer.testing.plugin import Database

pytestmark = pytest.mark.integration

NAMES = ["o'rders", 'a"b', "x; DROP TABLE consumer.claim;--", "orders.v1", "日本", "Orders",
         "orders", "q" * 200]


class Named(Command, type="named"):
    number: int


def handler_on(queue_name: str) -> Handler[Any]:
    """A handler whose queue and scope have that name."""

    class OnQueue(Handler[Named]):
        name, queue, options = queue_name, queue_name, FAST

        async def handle(self, command: Named, context: Context) -> None:
            await effect(context)

    return OnQueue()


async def test_a_command_runs_once_on_queues_of_any_name(site: Site) -> None:
    """One message to all of them, under a key that looks like SQL: one effect in each scope."""
    app = App("names", handlers=[handler_on(name) for name in NAMES])
    await site.prepare(app)
    key = "'; DROP TABLE effect;--"
    async with site.worker(app):
        await site.publish(post("named", {"number": 1}, key), post("named", {"number": 1}, key))

        async def all_done() -> bool:
            return len(await site.effects()) == len(NAMES)

        await site.until(all_done, "an effect in each scope")
        await site.until(lambda: site.settled(why="duplicate") == len(NAMES), "duplicates acked")
    assert sorted(await site.effects()) == sorted((name, key, "") for name in NAMES)
    for name in NAMES:
        assert (await site.depth(name)).ready == (await site.depth(f"{name}.dead")).ready == 0


async def test_queues_of_any_name_can_be_paused(site: Site) -> None:
    """A pause is of exactly that queue, and gone after its resume."""
    for name in NAMES:
        assert await workers.pause(site.database, SCHEMA, name, actor="a'b", reason="c;--")
    assert [pause.queue for pause in await workers.pauses(site.database, SCHEMA)] == sorted(
        NAMES, key=str.encode)
    for name in NAMES:
        assert await workers.resume(site.database, SCHEMA, name, actor="a'b", reason="c;--")
    assert await workers.pauses(site.database, SCHEMA) == []


@pytest.mark.parametrize("name", ['a"b', "x; DROP TABLE claim;--", "Orders", "日本", "s" * 63])
async def test_schemas_of_any_name_hold_the_tables(
    consumer_empty_database: Database, name: str
) -> None:
    """It is upgraded and found current; nothing is created under another name."""
    await migrations.upgrade(consumer_empty_database.url, name)
    await migrations.check(consumer_empty_database.url, name)


@pytest.mark.parametrize("name", ["", "s" * 64, "日" * 22, "a\0b", "pg_mine"])
def test_schemas_postgres_would_cut_or_refuse_are_refused_by_name(name: str) -> None:
    """Two names equal in their first 63 bytes would be one to Postgres."""
    with pytest.raises(ConfigurationError, match="schema"):
        Schema(name)
