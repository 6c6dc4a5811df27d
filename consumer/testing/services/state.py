"""What `up` has started, kept in a JSON file so that later commands find it again."""

import os
import secrets
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consumer.testing.services import urls
from consumer.testing.services.endpoints import Endpoints
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.process import ProcessRecord

MAX_CONNECTIONS = 200
USER = "app"
DATABASE = "app"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ports(_Record):
    """TCP ports on the loopback interface, 0 while not chosen; the last two are local mode's."""

    amqp: int = 0
    management: int = 0
    database: int = 0
    epmd: int = 0
    distribution: int = 0


class ServicesState(_Record):
    """One set of services: where it listens, who it is, what of it was started.

    `instance` is a random word that is on the command line of every local server and in the
    name of the Compose project. Instance and password stay for as long as the data does.
    """

    version: Literal[1] = 1
    mode: Literal["docker", "local"]
    instance: str
    password: str = Field(repr=False)
    ports: Ports = Ports()
    data: Path | None = None
    processes: dict[str, ProcessRecord] = {}

    @property
    def project(self) -> str:
        """The Compose project name."""
        return f"consumer-{self.instance}"

    @property
    def endpoints(self) -> Endpoints:
        """The URLs of these services, whether or not they run."""

        def build(scheme: str, port: int, path: str = "") -> str:
            return urls.build(scheme, user=USER, password=self.password, port=port, path=path)

        return Endpoints(
            build("amqp", self.ports.amqp, "/"),
            build("postgresql+asyncpg", self.ports.database, f"/{DATABASE}"),
            build("http", self.ports.management),
        )

    def started(self, name: str, process: ProcessRecord) -> "ServicesState":
        """The same state with one more running process."""
        return self.model_copy(update={"processes": {**self.processes, name: process}})

    def stopped(self) -> "ServicesState":
        """The same state with nothing running."""
        return self.model_copy(update={"processes": {}})


def new_state(mode: Literal["docker", "local"]) -> ServicesState:
    """A state with a fresh instance word and a fresh random password, and no ports yet."""
    return ServicesState(
        mode=mode, instance=secrets.token_hex(8), password=secrets.token_urlsafe(18)
    )


def read(directory: Path) -> ServicesState | None:
    """The state kept in a services folder, or None where there is none.

    Raises:
        ServicesError: The file is there and cannot be understood. Its content is not echoed.
    """
    file = directory / "state.json"
    try:
        return ServicesState.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ServicesError(f"{file} cannot be read: {error.strerror}") from None
    except ValidationError:
        raise ServicesError(
            f"{file} is not a state file of this version",
            remedy="stop what it lists, then delete it",
        ) from None


def write(directory: Path, state: ServicesState) -> None:
    """Replace the state file in one step; only its owner can read it."""
    part = directory / "state.json.part"
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(state.model_dump_json(indent=2))
        file.flush()
        os.fsync(file.fileno())
    part.replace(directory / "state.json")
