"""An endpoint that accepts payments: `uvicorn examples.payments.http:app` runs it.

The request and the command it causes are written in one transaction. Either both exist or
neither does, whatever fails in between, and RabbitMQ may be away meanwhile.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from consumer import Outbox
from examples.payments.commands import CapturePayment
from examples.payments.tables import Payment, PaymentRequest, Receipt, database_engine

MAX_KEY_CHARACTERS = 200


class State(TypedDict):
    """What the endpoints share."""

    sessions: async_sessionmaker[AsyncSession]


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[State]:
    """Open the database for as long as the server runs."""
    engine = database_engine()
    try:
        yield {"sessions": async_sessionmaker(engine)}
    finally:
        await engine.dispose()


async def accept_payment(request: Request) -> JSONResponse:
    """POST /payments: the payment will be captured, once per Idempotency-Key."""
    key = request.headers.get("idempotency-key", "")
    if not key.isascii() or not 0 < len(key) <= MAX_KEY_CHARACTERS:
        return refusal(400, f"send a header Idempotency-Key of 1 to {MAX_KEY_CHARACTERS} letters")
    try:
        command = CapturePayment.model_validate_json(await request.body())
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return refusal(422, "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
                                      for fault in faults))
    async with request.state.sessions.begin() as session:
        accepted = await accept(session, key, command)
    if not accepted:
        return refusal(422, "this Idempotency-Key was used for another payment")
    return JSONResponse({"order_id": command.order_id, "status": "accepted"}, status_code=202)


async def accept(session: AsyncSession, key: str, command: CapturePayment) -> bool:
    """Request and command stand once `session` commits; a repetition adds nothing.

    Returns:
        False if the key stands for another payment.
    """
    new = await session.scalar(
        insert(PaymentRequest)
        .values(idempotency_key=key, order_id=command.order_id, amount_cents=command.amount_cents)
        .on_conflict_do_nothing().returning(PaymentRequest.idempotency_key))
    if new is not None:
        await Outbox(session).send(command, key=key)
        return True
    earlier = await session.get_one(PaymentRequest, key)
    return (earlier.order_id, earlier.amount_cents) == (command.order_id, command.amount_cents)


async def show_payment(request: Request) -> JSONResponse:
    """GET /payments/{order_id}: what was captured, refunded and confirmed to the customer."""
    order_id = request.path_params["order_id"]
    async with request.state.sessions() as session:
        payment = await session.get(Payment, order_id)
        receipts = await session.scalar(
            select(func.count()).select_from(Receipt).where(Receipt.order_id == order_id))
    if payment is None:
        return refusal(404, "no payment was captured for this order")
    return JSONResponse({
        "order_id": order_id, "captured_cents": payment.captured_cents,
        "refunded_cents": payment.refunded_cents, "receipts": receipts,
    })


def refusal(status: int, reason: str) -> JSONResponse:
    """An answer that says why not."""
    return JSONResponse({"error": reason}, status_code=status)


app = Starlette(lifespan=lifespan, routes=[
    Route("/payments", accept_payment, methods=["POST"]),
    Route("/payments/{order_id}", show_payment),
])
