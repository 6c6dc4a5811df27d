"""What happens when an invoice is to be priced."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx

from consumer import Command, Context, Handler, Options, Permanent
from examples.exchange_rates.tables import PricedInvoice


class PriceInvoice(Command, type="invoices.price"):
    """State the amount of an invoice in its customer's currency."""

    invoice_id: str
    euro_cents: int
    currency: str


class Price(Handler[PriceInvoice]):
    """The invoice has an amount in its currency, by the rate of the moment."""

    name = "invoices.price"
    queue = "invoices"
    dependencies = ("rates",)
    options = Options(
        attempt_timeout=timedelta(seconds=5), max_age=timedelta(minutes=10),
        min_attempt=timedelta(milliseconds=200), hold_slots="call")

    async def handle(self, command: PriceInvoice, context: Context) -> None:
        async with context.call("rates") as call:
            answer = await context.resources.get(
                f"/rates/{command.currency}", headers=call.headers, timeout=call.timeout_s)
            answer.raise_for_status()
        context.session.add(PricedInvoice(
            invoice_id=command.invoice_id, currency=command.currency,
            cents=round(command.euro_cents * answer.json()["rate"])))

    def classify(self, error: Exception) -> Permanent | None:
        """A currency the provider does not know will not become known; 404 alone says less."""
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 404:
            return Permanent("the provider has no rate for this currency")
        return None

    def fallback_reply(self, command: PriceInvoice) -> Mapping[str, Any]:
        """Whoever waits for the price can show the amount in euros."""
        return {"euro_cents": command.euro_cents}
