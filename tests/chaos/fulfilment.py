"""An app of two steps: each order is packed, and sends its parcel on through the outbox."""

import asyncio

from harness import effect

from consumer import App, Command, Context, Handler, Options, Queue

STEP = Options(group_size=5)


class Pack(Command, type="depot.pack"):
    number: int


class Ship(Command, type="depot.ship"):
    number: int


class Packing(Handler[Pack]):
    """Long enough to be killed in the middle."""

    name, queue, options = "depot.pack", "packing", STEP

    async def handle(self, command: Pack, context: Context) -> None:
        await effect(context)
        await context.outbox.send(Ship(number=command.number), key=f"parcel {command.number}")
        await asyncio.sleep(0.02)


class Shipping(Handler[Ship]):
    name, queue, options = "depot.ship", "shipping", STEP

    async def handle(self, command: Ship, context: Context) -> None:
        await effect(context)


app = App("depot", handlers=[Packing, Shipping],
          queues=[Queue("packing", concurrency=2, prefetch=20), Queue("shipping", prefetch=20)])
