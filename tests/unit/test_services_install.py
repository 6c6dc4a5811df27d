"""`--install`: what is run, and what is refused."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from consumer.testing.services import install
from consumer.testing.services.errors import ServicesError

Script = Callable[[str, str], None]


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """The file in which the stand-ins of the system's programs note their arguments."""
    (tmp_path / "calls").touch()
    return tmp_path / "calls"


@pytest.fixture
def script(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Puts stand-ins for the system's programs on PATH, and makes us root on Debian."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    (tmp_path / "os-release").write_text('ID=linuxmint\nID_LIKE="ubuntu debian"\n')

    def write(name: str, code: str) -> None:
        file = programs / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n{code}\n')
        file.chmod(0o755)

    for name in ("apt-get", "service", "systemctl"):
        write(name, "")
    return write


def stops(lines: list[str]) -> list[str]:
    """The packages whose system service was stopped, by either service program."""
    words = [line.split() for line in lines if line.startswith(("service", "systemctl"))]
    return [next(word for word in line[1:] if word != "stop") for line in words]


def run(tmp_path: Path, progress: Callable[[str], None] = lambda _line: None) -> None:
    install.install_packages(progress, os_release=tmp_path / "os-release")


def test_only_what_was_installed_now_is_stopped(
    tmp_path: Path, calls: Path, script: Script
) -> None:
    """A Postgres that was there before, and may be in use, goes on."""
    script("dpkg-query", 'case "$*" in *postgresql) echo installed;; *) exit 1;; esac')
    run(tmp_path)
    lines = calls.read_text().splitlines()
    assert "apt-get update" in lines
    assert "apt-get install -y --no-install-recommends rabbitmq-server" in lines
    assert stops(lines) == ["rabbitmq-server"]


def test_nothing_is_installed_twice(tmp_path: Path, calls: Path, script: Script) -> None:
    """With both packages there, apt-get is not even asked."""
    script("dpkg-query", "echo installed")
    run(tmp_path)
    lines = calls.read_text().splitlines()
    assert [line for line in lines if not line.startswith("dpkg-query")] == []


def test_what_apt_get_said_is_in_the_error(tmp_path: Path, script: Script) -> None:
    """The user need not repeat the command to learn why it failed."""
    script("dpkg-query", "exit 1")
    script("apt-get", 'echo "E: no network" >&2; exit 100')
    with pytest.raises(ServicesError, match="E: no network"):
        run(tmp_path)


def test_other_systems_are_refused(tmp_path: Path, calls: Path, script: Script) -> None:
    """On a system without apt nothing is tried."""
    script("dpkg-query", "exit 1")
    (tmp_path / "os-release").write_text("ID=fedora\n")
    with pytest.raises(ServicesError, match="Debian and Ubuntu only"):
        run(tmp_path)
    assert calls.read_text() == ""


def test_users_other_than_root_are_refused(
    tmp_path: Path, calls: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to install, the other remedies are named."""
    script("dpkg-query", "exit 1")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(ServicesError, match=r"needs root.*Docker"):
        run(tmp_path)
    assert calls.read_text() == ""
