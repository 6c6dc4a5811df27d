"""Talking to Docker: is it there, which Compose, which containers, what do they log?"""

import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

from consumer.testing.services.errors import ServicesError

_QUESTION_SECONDS = 15.0
_PROJECT_LABEL = "com.docker.compose.project"
_SERVICE_LABEL = "com.docker.compose.service"


def engine_answers() -> bool:
    """Whether a Docker engine can be reached from here."""
    if shutil.which("docker") is None:
        return False
    try:
        return run(["docker", "info"], timeout_seconds=_QUESTION_SECONDS).returncode == 0
    except ServicesError:
        return False


def compose_command() -> list[str] | None:
    """The Compose there is: the plugin, else the older program, else None."""
    if shutil.which("docker"):
        plugin = run(["docker", "compose", "version"], timeout_seconds=_QUESTION_SECONDS)
        if plugin.returncode == 0:
            return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def compose_file() -> Path:
    """The Compose file: of the installed package, else of the checkout this module is in.

    Raises:
        ServicesError: There is neither, so the installation is broken.
    """
    shipped = Path(str(files("consumer.testing.services"))) / "docker-compose.yml"
    checkout = Path(__file__).parents[3] / "docker-compose.yml"
    for file in (shipped, checkout):
        if file.is_file():
            return file
    raise ServicesError("docker-compose.yml is missing", remedy="reinstall idempotent-consumer")


def containers(project: str) -> dict[str, str]:
    """The running containers of a Compose project: service name to container id."""
    form = f'{{{{.Label "{_SERVICE_LABEL}"}}}} {{{{.ID}}}}'
    query = ["docker", "ps", "--filter", f"label={_PROJECT_LABEL}={project}", "--format", form]
    answer = run(query, timeout_seconds=_QUESTION_SECONDS)
    pairs = (line.split() for line in answer.stdout.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def log_tail(project: str, service: str) -> str:
    """The last lines a container of the project has logged, also if it has ended."""
    query = ["docker", "ps", "-aq", "--filter", f"label={_PROJECT_LABEL}={project}"]
    query += ["--filter", f"label={_SERVICE_LABEL}={service}"]
    ids = run(query, timeout_seconds=_QUESTION_SECONDS).stdout.split()
    if not ids:
        return "(no container)"
    done = run(["docker", "logs", "--tail", "15", ids[0]], timeout_seconds=_QUESTION_SECONDS)
    return (done.stdout + done.stderr).strip()


def run(
    command: list[str], *, timeout_seconds: float, extra: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, whatever its exit code.

    Raises:
        ServicesError: It took too long.
    """
    try:
        return subprocess.run(  # noqa: S603 - commands of this package, no user input
            command,
            env={**os.environ, **(extra or {})},
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServicesError(
            f"`{' '.join(command[:2])}` did not answer within {timeout_seconds:.0f} s"
        ) from None
