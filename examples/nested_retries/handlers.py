"""What happens when an order is to be charged."""

from datetime import timedelta

from consumer import Command, Context, Handler, Options


class ChargeOrder(Command, type="orders.charge"):
    """Take the money for an order."""

    order_id: str
    amount_cents: int


class Charge(Handler[ChargeOrder]):
    """The provider has charged the customer; the claim of the command remembers it."""

    name = "orders.charge"
    queue = "charges"
    dependencies = ("psp",)
    options = Options(max_attempts=3, attempt_timeout=timedelta(seconds=15))

    async def handle(self, command: ChargeOrder, context: Context) -> None:
        async with context.call("psp") as call:
            await context.resources.charge(
                command.order_id, command.amount_cents, idempotency_key=context.idempotency_key,
                headers=call.headers, timeout_s=call.timeout_s)
