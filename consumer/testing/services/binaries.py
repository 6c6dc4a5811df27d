"""Server programs on this machine."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Binaries:
    """The programs local mode needs; None where one is missing."""

    rabbitmq_server: Path | None
    epmd: Path | None
    postgres: Path | None
    initdb: Path | None

    def missing(self) -> list[str]:
        """What is missing, in words a user can search a package for."""
        programs = {
            "rabbitmq-server": self.rabbitmq_server,
            "epmd (Erlang)": self.epmd,
            "postgres": self.postgres,
            "initdb (Postgres)": self.initdb,
        }
        return [name for name, path in programs.items() if path is None]


def find_binaries(root: Path = Path("/")) -> Binaries:
    """Look on PATH and in the places where packages put servers outside of it.

    Debian's `rabbitmq-server` on PATH is a wrapper that refuses all users but two, so the
    package's own folder goes first; Debian's `postgres` is not on PATH at all.
    """
    rabbitmq = _first(
        _under(root, "usr/lib/rabbitmq/bin/rabbitmq-server")
        + _on_path("rabbitmq-server")
        + _under(root, "opt/homebrew/sbin/rabbitmq-server")
        + _under(root, "usr/local/sbin/rabbitmq-server")
    )
    epmd = _first(
        _on_path("epmd")
        + _under(root, "usr/lib/erlang/erts-*/bin/epmd")
        + _under(root, "opt/homebrew/lib/erlang/erts-*/bin/epmd")
    )
    postgres = _first(
        _on_path("postgres")
        + _under(root, "usr/lib/postgresql/*/bin/postgres")
        + _under(root, "usr/pgsql-*/bin/postgres")
        + _under(root, "opt/homebrew/opt/postgresql@*/bin/postgres")
    )
    initdb = None
    if postgres is not None:
        # PATH may hold a link to `postgres` alone; its companions lie beside the real one.
        initdb = _first([postgres.with_name("initdb"), postgres.resolve().with_name("initdb")])
    return Binaries(rabbitmq, epmd, postgres, initdb)


def _on_path(program: str) -> list[Path]:
    found = shutil.which(program)
    return [Path(found)] if found else []


def _under(root: Path, pattern: str) -> list[Path]:
    """Matches, the highest version first."""
    return sorted(root.glob(pattern), key=_version, reverse=True)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def _first(candidates: list[Path]) -> Path | None:
    return next((path for path in candidates if os.access(path, os.X_OK)), None)
