"""`consumer services`: RabbitMQ and Postgres for development and tests."""

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from consumer.testing import services

app = typer.Typer(
    name="services",
    help="A real RabbitMQ and Postgres for development and tests.",
    no_args_is_help=True,
)


class StartMode(StrEnum):
    """Where services may come from."""

    auto = "auto"
    docker = "docker"
    local = "local"
    env = "env"


Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        envvar="CONSUMER_SERVICES_DIR",
        help="Folder of state and data.  [default: .consumer/services of the project]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    mode: Annotated[
        StartMode,
        typer.Option(help="auto: environment, else Docker, else this machine's programs."),
    ] = StartMode.auto,
    install: Annotated[
        bool, typer.Option("--install", help="Install the packages if need be; Debian, as root.")
    ] = False,
    directory: Directory = None,
) -> None:
    """Start RabbitMQ and Postgres, and wait until both answer; safe to repeat."""
    services.up(_folder(directory), mode=mode.value, install=install, progress=_progress)
    _progress('lead your shell to them with: eval "$(consumer services env)"')


@app.command()
def down(
    remove_data: Annotated[
        bool, typer.Option("--remove-data", help="Delete databases and queues too.")
    ] = False,
    directory: Directory = None,
) -> None:
    """Stop what `up` has started, and nothing else."""
    services.down(_folder(directory), remove_data=remove_data, progress=_progress)


@app.command()
def status(as_json: AsJson = False, directory: Directory = None) -> None:
    """Show what runs and what answers; exit code 1 unless everything does."""
    found = services.status(_folder(directory))
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    elif found.mode is None:
        typer.echo(f"{found.directory}: nothing was started")
    else:
        typer.echo(f"{found.directory}: {found.mode}")
        for service in found.services:
            where = f"{service.host}:{service.port}"
            state = "ready" if service.ready else "not ready"
            typer.echo(
                f"{service.name:<11} {where:<21} {state:<10} {service.process or ''}".strip()
            )
    if not found.ready:
        raise typer.Exit(1)


@app.command()
def env(as_json: AsJson = False, directory: Directory = None) -> None:
    """Print the variables that lead a program to the services; they hold the password."""
    variables = services.env(_folder(directory))
    if as_json:
        typer.echo(json.dumps(variables, indent=2))
        return
    for name, value in variables.items():
        typer.echo(f"export {name}={_quoted(value)}")


def _folder(directory: Path | None) -> Path:
    return directory.absolute() if directory else services.default_directory()


def _progress(line: str) -> None:
    typer.echo(line, err=True)


def _quoted(value: str) -> str:
    """A value for a shell, always in quotes."""
    quoted = shlex.quote(value)
    return quoted if quoted.startswith("'") else f"'{quoted}'"
