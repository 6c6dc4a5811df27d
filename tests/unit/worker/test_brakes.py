"""The brakes of a process: whose deaths stop a queue, who hears of it, and when it is over."""

import asyncio

from simulation.bench import QUEUE, Charge, ChargeHandler
from simulation.guarded import RefundHandler
from simulation.loop import in_virtual_time

from consumer import Context, Handler
from consumer.handler import Registration, registered
from consumer.worker.brakes import Brakes

CHARGE, REFUND = registered(ChargeHandler()), registered(RefundHandler())


class Mail(Handler[Charge]):
    name, queue = "mail.receipt", "mail"

    async def handle(self, command: Charge, context: Context) -> None: ...


def die(brakes: Brakes, times: int, registration: Registration = CHARGE) -> None:
    for _ in range(times):
        brakes.ended(registration, permanent=True)


@in_virtual_time
async def test_most_of_the_last_hundred_pull_the_brake_and_half_of_them_do_not() -> None:
    changed = asyncio.Event()
    brakes = Brakes(changed)
    die(brakes, 50)
    assert (brakes.pulled, changed.is_set()) == ({}, False)
    die(brakes, 1)
    assert list(brakes.pulled) == [QUEUE]
    assert CHARGE.scope in brakes.pulled[QUEUE]
    assert changed.is_set()


@in_virtual_time
async def test_commands_that_end_well_hold_it_off() -> None:
    brakes = Brakes(asyncio.Event())
    for _ in range(1000):
        die(brakes, 1)
        brakes.ended(CHARGE, permanent=False)
    assert brakes.pulled == {}


@in_virtual_time
async def test_each_handler_is_judged_by_its_own_deaths() -> None:
    """Two that share a queue: forty deaths of each are not eighty of one."""
    brakes = Brakes(asyncio.Event())
    die(brakes, 40)
    die(brakes, 40, REFUND)
    assert brakes.pulled == {}
    die(brakes, 11, REFUND)
    assert REFUND.scope in brakes.pulled[QUEUE]


@in_virtual_time
async def test_a_brake_stops_its_own_queue_only() -> None:
    brakes = Brakes(asyncio.Event())
    die(brakes, 51, registered(Mail()))
    assert list(brakes.pulled) == ["mail"]


@in_virtual_time
async def test_it_is_pulled_once_however_many_die_after() -> None:
    changed = asyncio.Event()
    brakes = Brakes(changed)
    die(brakes, 51)
    why = brakes.pulled[QUEUE]
    changed.clear()
    die(brakes, 40, REFUND)
    die(brakes, 20)
    assert (brakes.pulled, changed.is_set()) == ({QUEUE: why}, False)


@in_virtual_time
async def test_once_the_queue_is_paused_nothing_is_to_be_pulled_any_more() -> None:
    brakes = Brakes(asyncio.Event())
    die(brakes, 51)
    brakes.paused(QUEUE)
    brakes.paused("another")
    assert brakes.pulled == {}


@in_virtual_time
async def test_a_resumed_queue_begins_anew() -> None:
    """What died before does not stop it again; what dies after can."""
    brakes = Brakes(asyncio.Event())
    die(brakes, 51)
    die(brakes, 49, REFUND)
    brakes.paused(QUEUE)
    brakes.resumed(QUEUE)
    die(brakes, 50)
    die(brakes, 50, REFUND)
    assert brakes.pulled == {}
    die(brakes, 1)
    assert list(brakes.pulled) == [QUEUE]


@in_virtual_time
async def test_resuming_one_queue_forgives_no_other() -> None:
    brakes, mail = Brakes(asyncio.Event()), registered(Mail())
    die(brakes, 50, mail)
    brakes.resumed(QUEUE)
    die(brakes, 1, mail)
    assert list(brakes.pulled) == ["mail"]
