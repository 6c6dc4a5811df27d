"""Which way to get services: Docker or local processes."""

from collections.abc import Callable
from typing import Literal

from consumer.testing.services.binaries import find_binaries
from consumer.testing.services.docker_engine import compose_command, engine_answers
from consumer.testing.services.errors import INSTALL_SOMETHING, ServicesError
from consumer.testing.services.install import install_packages

Mode = Literal["auto", "docker", "local", "env"]
StartedMode = Literal["docker", "local"]


def choose_mode(
    wanted: Mode,
    *,
    used_before: StartedMode | None,
    install: bool,
    progress: Callable[[str], None],
) -> StartedMode:
    """The first way that works on this machine: as before, Docker, local, packages installed.

    Args:
        wanted: `docker` and `local` allow that way only.
        used_before: The way that has the folder's data already.
        install: Whether packages may be installed for local mode.
        progress: Told what happens when packages are installed.

    Raises:
        ServicesError: No way works; names what is missing and the remedies.
    """
    missing = {"docker": _docker_lacks(), "local": find_binaries().missing()}
    order: list[StartedMode] = ["docker", "local"]
    if used_before is not None:
        order.sort(key=lambda mode: mode != used_before)
    allowed = [mode for mode in order if wanted in ("auto", mode)]
    for mode in allowed:
        if not missing[mode]:
            return mode
    if install and "local" in allowed:
        install_packages(progress)
        missing["local"] = find_binaries().missing()
        if not missing["local"]:
            return "local"
    lacks = [lack for mode in sorted(allowed) for lack in missing[mode]]
    raise ServicesError(
        f"no way to start RabbitMQ and Postgres: there is no {', no '.join(lacks)}",
        remedy=INSTALL_SOMETHING,
    )


def _docker_lacks() -> list[str]:
    if not engine_answers():
        return ["Docker engine that answers"]
    if compose_command() is None:
        return ["`docker compose` or `docker-compose`"]
    return []
