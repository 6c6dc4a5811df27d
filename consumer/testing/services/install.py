"""`--install`: the distribution's own packages, on Debian and Ubuntu, as root."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from consumer.testing.services.docker_engine import run
from consumer.testing.services.errors import INSTALL_SOMETHING, ServicesError

PACKAGES = ("rabbitmq-server", "postgresql")
_SECONDS = 1800.0


def install_packages(
    progress: Callable[[str], None], *, os_release: Path = Path("/etc/os-release")
) -> None:
    """Install RabbitMQ and Postgres with apt-get; blocks for minutes.

    The servers that the packages start by themselves are stopped again, but only those of
    packages that were not there before.

    Raises:
        ServicesError: Not Debian or Ubuntu, not root, or apt-get failed; with what it said.
    """
    if os.getuid() != 0:
        raise ServicesError("--install needs root", remedy=INSTALL_SOMETHING)
    if not _is_debian(os_release) or shutil.which("apt-get") is None:
        raise ServicesError(
            "--install works on Debian and Ubuntu only",
            remedy="install RabbitMQ and Postgres, or Docker, the way of this system",
        )
    missing = [package for package in PACKAGES if not _is_installed(package)]
    if not missing:
        return
    progress(f"installing {' and '.join(missing)}")
    _apt_get("update")
    _apt_get("install", "-y", "--no-install-recommends", *missing)
    for package in missing:
        progress(f"stopping the system service {package}, which its package has started")
        _stop_system_service(package)


def _is_debian(os_release: Path) -> bool:
    try:
        lines = os_release.read_text().splitlines()
    except OSError:
        return False
    pairs = dict(line.split("=", 1) for line in lines if "=" in line)
    family = f"{pairs.get('ID', '')} {pairs.get('ID_LIKE', '')}".replace('"', "").split()
    return "debian" in family or "ubuntu" in family


def _is_installed(package: str) -> bool:
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return run(query, timeout_seconds=60).stdout.strip() == "installed"


def _apt_get(*arguments: str) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    done = run(["apt-get", *arguments], timeout_seconds=_SECONDS, extra=quiet)
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise ServicesError(f"`apt-get {arguments[0]}` failed:\n{said}")


def _stop_system_service(package: str) -> None:
    under_systemd = Path("/run/systemd/system").is_dir()
    command = ["systemctl", "stop", package] if under_systemd else ["service", package, "stop"]
    if shutil.which(command[0]) is not None:
        run(command, timeout_seconds=120)
