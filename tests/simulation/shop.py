"""What is played: one command, and one handler that does what a test tells it to."""

import asyncio
from typing import TYPE_CHECKING, Any

from consumer import Command, Context, Handler, Options, Reject, Retry
from simulation.process import current

if TYPE_CHECKING:
    from simulation.stage import Stage

PREFIX, QUEUE, SCOPE = "shop", "orders", "orders.charge"
MAX_ATTEMPTS = 3


class Charge(Command, type="orders.charge"):
    """Take effect once."""

    key: str
    amount: int


class Charged(Command, type="orders.charged"):
    """What a charge sends when, and only when, it took effect."""

    key: str


class ChargeHandler(Handler[Charge]):
    """Writes one effect and sends one message; what else it does is up to the test."""

    name, queue = SCOPE, QUEUE
    options = Options(max_attempts=MAX_ATTEMPTS)

    def __init__(self, stage: "Stage") -> None:
        self.stage = stage

    async def handle(self, command: Charge, context: Context) -> None:
        self.stage.has_begun(context)
        what = await current().reach("handle")
        session: Any = context.session
        session.add((context.key, command.amount))
        await context.outbox.send(Charged(key=context.key))
        if what == "transient":
            raise Retry("not now")
        if what == "permanent":
            raise Reject("never")
        if what == "cancelled":
            raise asyncio.CancelledError
