"""Starting a server so that it outlives the program that started it."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumer.testing.services.account import Account
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.process import ProcessRecord, identify, tail

# The shell leaves at once, so the server is nobody's child: no zombie stays in a program that
# goes on, and no warning about a child that still runs.
_DETACH = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'


@dataclass(frozen=True)
class Server:
    """How to start one server.

    `marker` must be one of the arguments and unlike any argument of another process.
    """

    name: str
    command: tuple[str, ...]
    marker: str
    account: Account
    home: Path
    log: Path
    environment: Mapping[str, str]


def spawn(server: Server) -> ProcessRecord:
    """Start a server in its own session, as its account, with its output in its log.

    Raises:
        ServicesError: It was gone before it could be identified.
    """
    started = run_as(server, ["/bin/sh", "-c", _DETACH, "sh", str(server.log), *server.command])
    record = identify(int(started.stdout), server.marker) if started.returncode == 0 else None
    if record is None:
        raise ServicesError(
            f"{server.name} ended right after its start: {started.stderr}{tail(server.log)}"
        )
    return record


def run_as(server: Server, command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a short command with the account, folder and environment of a server."""
    as_root = os.getuid() == 0
    account = server.account
    switch: dict[str, Any] = {"user": account.uid, "group": account.gid, "extra_groups": []}
    return subprocess.run(  # noqa: S603 - commands of this package, no user input
        command,
        cwd=server.home,
        env=_clean_environment(server.home) | dict(server.environment),
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
        **(switch if as_root else {}),
    )


def _clean_environment(home: Path) -> dict[str, str]:
    """An environment without the settings of the user's own servers and clients."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
