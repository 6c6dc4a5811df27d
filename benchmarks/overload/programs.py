"""The programs of a run: started, told to end, and gone when the run is over."""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

PROJECT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
STOP_SECONDS = 20


class Programs:
    """Running programs. None is left when the block ends.

    Args:
        folder: Where each writes what it says, as NAME.log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, environment: Mapping[str, str], *command: str) -> None:
        """The command has ended well. Blocks.

        Raises:
            RuntimeError: It ended badly; the message holds what it said.
        """
        done = subprocess.run(  # noqa: S603 - commands of our own
            command, cwd=PROJECT, env=dict(environment), capture_output=True, text=True,
            check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n"
                               f"{done.stdout}{done.stderr}")

    def start(self, name: str, environment: Mapping[str, str], *command: str) -> None:
        """The program runs in a process group of its own."""
        with self.log(name).open("w") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - commands of our own
                command, cwd=PROJECT, env=dict(environment), stdout=log, stderr=subprocess.STDOUT,
                text=True, start_new_session=True)

    def module(
        self, name: str, environment: Mapping[str, str], module: str, *arguments: str
    ) -> None:
        """A module of ours runs as a program."""
        self.start(name, environment, sys.executable, "-m", module, *arguments)

    def log(self, name: str) -> Path:
        """Where that program writes what it says."""
        return self._folder / f"{name}.log"

    def code(self, name: str) -> int | None:
        """The exit code of that program; None while it runs."""
        return self._running[name].poll()

    def wait(self, name: str, seconds: float) -> None:
        """The program has ended by itself, well. Blocks.

        Raises:
            RuntimeError: It has not within `seconds`, or it failed.
        """
        try:
            code = self._running[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} has not ended within {seconds:g} s") from None
        if code:
            raise RuntimeError(f"{name} ended with {code}\n{self.log(name).read_text()[-2000:]}")

    def stop(self, *names: str) -> None:
        """The programs have been told to end, and have, within 20 s or by force."""
        for name in names:
            self._running[name].terminate()
        for name in names:
            process = self._running[name]
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def check(self) -> None:
        """Return if no program has failed.

        Raises:
            RuntimeError: One has; the message holds the end of what it said.
        """
        for name in self._running:
            if self.code(name):
                raise RuntimeError(
                    f"{name} ended with {self.code(name)}\n{self.log(name).read_text()[-2000:]}")
