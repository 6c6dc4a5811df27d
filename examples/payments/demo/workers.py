"""The worker processes: started, killed, told to end."""

import signal
import subprocess
from pathlib import Path
from types import TracebackType

from examples.payments.demo.stage import APP, CONSUMER, PROJECT, Stage

STOP_SECONDS = 30


class Workers:
    """Worker processes of one stage. None is left when the block ends.

    Args:
        folder: Where each writes its log.
    """

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage, self._folder = stage, folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def start(self) -> int:
        """One more worker runs. Returns its process id."""
        self._started += 1
        with (self._folder / f"worker-{self._started}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [CONSUMER, "worker", APP], cwd=PROJECT, env=dict(self._stage.environment),
                stdout=log, stderr=subprocess.STDOUT)
        self._running.append(process)
        return process.pid

    def kill_one(self) -> int:
        """The oldest worker is dead without warning. Returns its process id."""
        victim = self._running.pop(0)
        victim.kill()
        victim.wait()
        return victim.pid

    def died(self) -> list[int]:
        """Exit codes of workers that ended though nobody told them to."""
        return [code for process in self._running if (code := process.poll()) is not None]

    def stop(self) -> list[int]:
        """All have drained and ended. Returns their exit codes, 0 for a clean end."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(STOP_SECONDS) for process in self._running]
        self._running.clear()
        return codes

    def complaints(self, lines: int = 5) -> str:
        """The last warnings and errors of each worker, cut short, and where to read on."""
        words: list[str] = []
        for log in sorted(self._folder.glob("worker-*.log")):
            written = log.read_text("utf-8", "replace").splitlines()
            grave = [line for line in written if '"level": "info"' not in line]
            words += [str(log), *(line[:500] for line in grave[-lines:])]
        return "\n".join(words)
