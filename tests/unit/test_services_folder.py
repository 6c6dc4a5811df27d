"""The services folder: where it is, who may enter it, one command at a time, free ports."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from consumer.testing.services import lock
from consumer.testing.services.account import Account, can_reach
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.folder import default_directory, prepare
from consumer.testing.services.lock import exclusive
from consumer.testing.services.ports import choose, is_free


def test_all_folders_of_a_project_share_one_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a subfolder the project's services are found, not a second set started."""
    monkeypatch.delenv("CONSUMER_SERVICES_DIR", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src" / "app").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "src" / "app")
    assert default_directory() == tmp_path / ".consumer" / "services"
    monkeypatch.setenv("CONSUMER_SERVICES_DIR", str(tmp_path / "elsewhere"))
    assert default_directory() == tmp_path / "elsewhere"


def test_the_folder_stays_out_of_version_control(tmp_path: Path) -> None:
    """It holds a password, so git must not see it; others may pass through, not list it."""
    folder = prepare(tmp_path / "a" / "services")
    assert (folder / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0o011 & ~_umask()


def test_an_account_reaches_a_folder_only_through_all_above_it(tmp_path: Path) -> None:
    """One private folder above is enough to keep a server's account out."""
    stranger = Account("stranger", uid=2**30, gid=2**30)
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, *inner.parents):
        if folder.stat().st_uid == os.getuid() and folder.is_relative_to(tmp_path):
            folder.chmod(0o711)
    reachable_above = can_reach(stranger, tmp_path)
    assert can_reach(stranger, inner) == reachable_above
    (tmp_path / "outer").chmod(0o700)
    assert not can_reach(stranger, inner)
    assert can_reach(Account("root", uid=0, gid=0), Path("/"))


def test_a_second_command_waits_for_the_first(tmp_path: Path) -> None:
    """The lock is held by one at a time, and the one who waits is told so."""
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with exclusive(tmp_path, lambda _line: waiting.set()):
            order.append("second")

    thread = threading.Thread(target=second)
    with exclusive(tmp_path, order.append):
        thread.start()
        assert waiting.wait(5)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_a_lock_that_stays_taken_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting has an end."""
    monkeypatch.setattr(lock, "TIMEOUT_SECONDS", 0.1)
    with (
        exclusive(tmp_path, print),
        pytest.raises(ServicesError, match="locked"),
        exclusive(tmp_path, lambda _line: None),
    ):
        pytest.fail("the lock was taken twice")


def test_a_taken_port_is_replaced() -> None:
    """The preferred port is kept if it is free, else another free one is found."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: int = server.getsockname()[1]
        assert not is_free(taken)
        chosen = choose(taken, ())
        assert chosen != taken
        assert is_free(chosen)
    assert choose(taken, ()) == taken
    assert choose(taken, {taken}) != taken


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
