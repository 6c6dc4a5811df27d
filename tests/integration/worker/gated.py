"""An app whose handler begins, says so with a file, and ends only when a gate is open."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from harness import effect

from consumer import App, Command, Context, Handler, Options, Queue

FOLDER = Path(os.environ.get("GATE_FOLDER", "."))


class Pass(Command, type="gate.pass"):
    pass


class Gate(Handler[Pass]):
    name, queue = "gate.pass", "gate"
    options = Options(group_size=1, attempt_timeout=timedelta(minutes=5))

    async def handle(self, command: Pass, context: Context) -> None:
        await effect(context)
        (FOLDER / "begun").touch()
        while not (FOLDER / "open").exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.02)


app = App("gate", handlers=[Gate], queues=[Queue("gate", concurrency=1)])
