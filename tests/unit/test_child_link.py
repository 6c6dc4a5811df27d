"""A worker finds the line to its supervisor, and nobody after it does."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.worker.link import LINK_FD, ChildLink
from consumer.worker.supervisor import child_link


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ChildLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.set_inheritable(True)
    monkeypatch.setenv(LINK_FD, str(theirs.detach()))
    link = child_link()
    assert link is not None
    with ours, link:
        yield link, ours


def test_a_process_nobody_supervises_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LINK_FD, raising=False)
    assert child_link() is None


@pytest.mark.parametrize("value", ["", "x", "-1", "99999", "file"])
def test_a_stale_variable_is_no_line(
    value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setenv(LINK_FD, str(file.fileno()) if value == "file" else value)
        assert child_link() is None
        file.write("still ours")


def test_the_line_is_taken_once_and_not_inherited(
    line: tuple[ChildLink, socket.socket]
) -> None:
    assert LINK_FD not in os.environ
    assert child_link() is None
    assert not os.get_inheritable(line[0].fileno())


def test_a_beat_reaches_the_supervisor(line: tuple[ChildLink, socket.socket]) -> None:
    link, ours = line
    link.beat()
    assert ours.recv(16) == b"."


def test_beats_nobody_reads_neither_block_nor_raise(
    line: tuple[ChildLink, socket.socket]
) -> None:
    link, ours = line
    for _ in range(100_000):
        link.beat()
    ours.close()
    link.beat()


async def test_the_end_of_the_supervisor_is_told_once(
    line: tuple[ChildLink, socket.socket]
) -> None:
    link, ours = line
    calls: list[str] = []
    gone = asyncio.Event()

    def on_gone() -> None:
        calls.append("gone")
        gone.set()

    link.on_parent_gone(on_gone)
    await asyncio.sleep(0)
    assert calls == []
    ours.close()
    async with asyncio.timeout(10):
        await gone.wait()
    await asyncio.sleep(0)
    assert calls == ["gone"]
