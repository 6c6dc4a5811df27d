"""Where the demonstration takes place: a virtual host and a database of its own."""

import os
import secrets
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from sys import executable

from consumer.testing import services
from consumer.testing.services import Endpoints, urls
from consumer.testing.services.management import Management
from consumer.testing.services.postgres_admin import create_database, drop_database

APP = "examples.payments.demo.app:app"
PROJECT = Path(__file__).parents[3]
CONSUMER = str(Path(sysconfig.get_path("scripts")) / "consumer")


@dataclass(frozen=True)
class Stage:
    """Services with nothing in them but what the demonstration declared."""

    amqp_url: str = field(repr=False)
    database_url: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)


@contextmanager
def stage(say: Callable[[str], None], *, keep: bool = False) -> Iterator[Stage]:
    """Services are up, with schema, tables and topology in place.

    Args:
        say: Called with one line per step.
        keep: Leave virtual host and database behind; otherwise they are gone afterwards.
    """
    endpoints = services.up(services.default_directory(), progress=say)
    name = f"consumer_demo_{secrets.token_hex(4)}"
    management = Management(endpoints.management_url)
    management.create_vhost(name)
    try:
        create_database(endpoints.database_url, name)
        yield _furnished(endpoints, name, say)
    finally:
        if keep:
            say(f"left behind: database and virtual host {name}")
        else:
            management.delete_vhost(name)
            drop_database(endpoints.database_url, name)


def _furnished(endpoints: Endpoints, name: str, say: Callable[[str], None]) -> Stage:
    own = Endpoints(urls.with_path(endpoints.amqp_url, name),
                    urls.with_path(endpoints.database_url, name), endpoints.management_url)
    environment = {**os.environ, **own.variables()}
    for command in (
        [CONSUMER, "db", "upgrade"],
        [executable, "-m", "examples.payments.tables"],
        [CONSUMER, "topology", "apply", APP],
    ):
        shown = " ".join([Path(command[0]).name, *command[1:]])
        say(f"$ {shown}")
        done = subprocess.run(  # noqa: S603 - the commands are the ones above
            command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{shown} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return Stage(own.amqp_url, own.database_url.replace("+asyncpg", "", 1), environment)
