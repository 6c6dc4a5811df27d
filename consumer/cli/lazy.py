"""The root of the command line: commands that are imported when they are run.

`consumer --help` and shell completion would otherwise import the database and broker clients of
every command, which takes several times as long as everything else they do.
"""

import importlib
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from consumer.cli.failures import failed

COMMANDS = {
    "worker": ("consumer.cli.worker", "Run handlers until a signal comes."),
    "send": ("consumer.cli.send", "Publish commands."),
    "status": ("consumer.cli.status", "Show queues, workers and the outbox."),
    "pause": ("consumer.cli.pauses", "Stop all workers from consuming a queue."),
    "resume": ("consumer.cli.pauses", "Let workers consume a queue again."),
    "topology": ("consumer.cli.topology", "Declare what an app needs at the broker, or compare."),
    "audit": ("consumer.cli.audit", "Count an app's retries and check its timeouts."),
    "db": ("consumer.cli.db", "Create and upgrade the framework's tables."),
    "services": ("consumer.cli.services",
                 "A real RabbitMQ and Postgres for development and tests."),
    "version": ("consumer.cli.version", "Show the version."),
}
"""Module and one line of help of each command. The module has a Typer named `app`, which either
holds a command of that name or is the command itself."""


class LazyCommand(TyperCommand):
    """Stands for a command until it is run, completed or asked for its own help."""

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name, help=help)
        self._module = module

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None,
                     **extra: Any) -> Any:
        """The context of the real command, which so takes this one's place."""
        group = get_group(importlib.import_module(self._module).app)
        command = group.commands.get(self.name or "", group)
        return command.make_context(info_name, args, parent, **extra)


class RootGroup(TyperGroup):
    """Holds the commands, and turns what they raise into a line and an exit code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._with_traceback = False
        for name, (module, help) in COMMANDS.items():
            self.add_command(LazyCommand(name, module, help))

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        self._with_traceback = bool(ctx.params.get("traceback"))
        return super().invoke(ctx)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; ends in SystemExit with one of our exit codes."""
        try:
            return super().main(*args, **extra)
        except Exception as error:
            raise SystemExit(failed(error, with_traceback=self._with_traceback)) from None
