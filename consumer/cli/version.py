"""`consumer version`."""

import json
import platform
from importlib.metadata import version as version_of
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the version."""
    ours, python = version_of("idempotent-consumer"), platform.python_version()
    if as_json:
        typer.echo(json.dumps({"version": ours, "python": python}))
    else:
        typer.echo(f"idempotent-consumer {ours}, Python {python}")
