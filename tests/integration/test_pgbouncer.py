"""A transaction-mode pooler in front of Postgres: every statement may meet another server."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.store import schema, workers
from consumer.store.connection import transaction
from consumer.store.engine import create_engine
from consumer.store.outbox_store import PostgresOutbox
from consumer.store.sql import Schema
from consumer.store.transactions import PostgresStore
from consumer.testing.contract.samples import SCOPE, completion, request, retry, row

pytestmark = pytest.mark.integration

MESSAGES = 1_000
AT_ONCE = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configure(folder: Path, database_url: str, port: int) -> Path:
    """Pool of two servers for any number of clients."""
    url = urlsplit(database_url)
    password = unquote(url.password or "")
    (folder / "users.txt").write_text(f'"{url.username}" "{password}"\n')
    file = folder / "pgbouncer.ini"
    file.write_text(
        f"[databases]\n* = host={url.hostname} port={url.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {folder / 'users.txt'}\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n")
    return file


def give_away(folder: Path) -> str:
    """It refuses to run as root: let `nobody` read its files."""
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, "nobody")
    for above in folder.parents[:2]:
        above.chmod(0o755)
    return "nobody"


@pytest.fixture
async def pooled_url(consumer_database: Any, tmp_path: Path) -> AsyncIterator[str]:
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.fail("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    port = free_port()
    file = configure(tmp_path, consumer_database.url, port)
    owner = give_away(tmp_path) if os.getuid() == 0 else None
    process = await asyncio.create_subprocess_exec(
        program, str(file), user=owner, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL)
    try:
        while not await answers(port):
            assert process.returncode is None, "pgbouncer did not start"
        head, _, tail = consumer_database.url.rpartition("@")
        yield f"{head}@127.0.0.1:{port}/{tail.partition('/')[2]}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        await asyncio.sleep(0.01)
        return False
    writer.close()
    return True


@pytest.fixture
async def engine(pooled_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(pooled_url, pooler="transaction", pool_size=AT_ONCE + 2)
    yield engine
    await engine.dispose()


async def fail_once(store: PostgresStore, key: str) -> None:
    async with store.transaction() as opened:
        assert await opened.lock(SCOPE, key) is None
        await opened.record(retry(key))


async def succeed(store: PostgresStore, key: str) -> None:
    async with store.transaction() as opened:
        [met] = await opened.claim([request(key)])
        async with opened.savepoint():
            await opened.session.execute(
                text("INSERT INTO public.effect VALUES (:key)"), {"key": key})
        await opened.finish([] if met.created else [completion(key)],
                            [row(f"m-{key}", ordering_key=key[-1])])


async def test_a_thousand_messages_twenty_at_once(engine: AsyncEngine, pooled_url: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE public.effect (key text PRIMARY KEY)"))
    keys = iter([f"k{n}" for n in range(MESSAGES)])

    async def work() -> None:
        store = PostgresStore(engine)
        for n, key in enumerate(keys):
            if n % 5 == 0:
                await fail_once(store, key)
            await succeed(store, key)
        await store.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
    async with engine.connect() as connection:
        counts = (await connection.execute(text(
            "SELECT (SELECT count(*) FROM public.effect),"
            " (SELECT count(*) FROM consumer.claim WHERE state = 'done'),"
            " (SELECT count(*) FROM consumer.outbox),"
            " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"))).one()
    assert tuple(counts) == (MESSAGES, MESSAGES, MESSAGES, 0)


async def test_statements_do_not_pile_up_on_the_servers(engine: AsyncEngine) -> None:
    async def work() -> None:
        store = PostgresStore(engine)
        for n in range(5):
            async with store.transaction() as opened:
                await opened.session.execute(text(f"SELECT {n}"))
        await store.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
    async with engine.connect() as connection:
        left = await connection.execute(text(
            "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"))
        assert left.scalar_one() == 0


async def test_relays_and_operators_at_once(engine: AsyncEngine, pooled_url: str) -> None:
    store = PostgresStore(engine)
    async with store.transaction() as opened:
        await opened.finish([], [row(f"m{n}", ordering_key=f"k{n % 10}") for n in range(100)])
    await store.close()

    async def relay() -> int:
        outbox, seen = PostgresOutbox(engine), 0
        while rows := await outbox.due(5):
            await outbox.confirmed(rows)
            seen += len(rows)
        await outbox.close()
        return seen

    async def operate() -> None:
        for n in range(10):
            async with transaction(engine) as driver:
                await workers.pause(driver, Schema(), f"q{n}", actor="ana", reason="why")
                assert f"q{n}" in {p.queue for p in await workers.pauses(driver, Schema())}

    results = await asyncio.gather(*(relay() for _ in range(6)), *(operate() for _ in range(2)))
    left = PostgresOutbox(engine)
    rest = 0
    while rows := await left.due(50):
        await left.confirmed(rows)
        rest += len(rows)
    await left.close()
    assert sum(filter(None, results)) + rest == 100


async def test_migrations_go_through_it(pooled_url: str, consumer_database: Any) -> None:
    await schema.downgrade(pooled_url, "base")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(schema.upgrade(pooled_url))
    assert (await schema.check(consumer_database.url)).revision == schema.REVISION
