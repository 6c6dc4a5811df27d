"""What can be asked of payments."""

from typing import Annotated

from pydantic import Field

from consumer import Command

OrderId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
AmountCents = Annotated[int, Field(gt=0, le=100_000_000_00)]


class CapturePayment(Command, type="payments.capture"):
    """Take an amount for an order."""

    order_id: OrderId
    amount_cents: AmountCents


class RefundPayment(Command, type="payments.refund"):
    """Give back some or all of what was captured for an order."""

    order_id: OrderId
    amount_cents: AmountCents


class SendReceipt(Command, type="receipts.send"):
    """Tell the customer of a capture (a positive amount) or a refund (a negative one)."""

    order_id: OrderId
    amount_cents: int
