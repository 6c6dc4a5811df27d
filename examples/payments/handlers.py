"""What happens when a command of payments arrives.

None of these looks whether its command came before, and none commits: the framework runs each
command once and commits its rows and messages together.
"""

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from consumer import Context, Handler, Reject, Retry
from examples.payments.commands import CapturePayment, RefundPayment, SendReceipt
from examples.payments.tables import LedgerEntry, Payment, Receipt


class Capture(Handler[CapturePayment]):
    """The amount is in the ledger and a receipt is on its way."""

    name = "payments.capture"
    queue = "payments"

    async def handle(self, command: CapturePayment, context: Context) -> None:
        captured = insert(Payment).values(
            order_id=command.order_id, captured_cents=command.amount_cents, refunded_cents=0)
        await context.session.execute(captured.on_conflict_do_update(
            index_elements=[Payment.order_id],
            set_={"captured_cents": Payment.captured_cents + captured.excluded.captured_cents},
        ))
        await book(context, command.order_id, command.amount_cents)


class Refund(Handler[RefundPayment]):
    """The amount is given back, unless more would be given back than was captured."""

    name = "payments.refund"
    queue = "payments"

    async def handle(self, command: RefundPayment, context: Context) -> None:
        given_back = Payment.refunded_cents + command.amount_cents
        order = Payment.order_id == command.order_id
        refunded = await context.session.execute(
            update(Payment).where(order, given_back <= Payment.captured_cents)
            .values(refunded_cents=given_back).returning(Payment.order_id)
            .execution_options(synchronize_session=False))
        if refunded.first() is None:
            known = await context.session.scalar(select(Payment.order_id).where(order))
            if known is None:
                # A queue keeps no order: the capture may be waiting behind this very message.
                raise Retry(f"nothing was captured for order {command.order_id} so far")
            raise Reject(f"order {command.order_id}: more refunded than captured")
        await book(context, command.order_id, -command.amount_cents)


class WriteReceipt(Handler[SendReceipt]):
    """The customer has a receipt; a row stands in for the mail."""

    name = "receipts.send"
    queue = "receipts"

    async def handle(self, command: SendReceipt, context: Context) -> None:
        context.session.add(
            Receipt(order_id=command.order_id, amount_cents=command.amount_cents))


async def book(context: Context, order_id: str, amount_cents: int) -> None:
    """A ledger entry and a receipt exist once the handler's transaction commits.

    Receipts of one order leave in the order of their commits, so that no customer reads of a
    refund before the payment.
    """
    context.session.add(LedgerEntry(
        order_id=order_id, amount_cents=amount_cents, idempotency_key=context.key))
    await context.outbox.send(
        SendReceipt(order_id=order_id, amount_cents=amount_cents), ordering_key=order_id)
