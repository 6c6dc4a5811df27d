"""Least privilege: each user of docs/permissions.md can do its part of the path, and no more."""

import secrets
from collections.abc import AsyncIterator

import pytest
from harness import FAST, Site, effect
from postbox import post, publish
from requester import Requester
from yarl import URL

from consumer import App, Command, Context, Handler
from consumer.broker import permissions
from consumer.broker.declare import NotAllowed, apply
from consumer.core.topology import plan
from consumer.testing.broker_admin import BrokerAdmin
from consumer.testing.plugin import Vhost
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.integration


class Bill(Command, type="billing.bill"):
    order: str


class Mail(Command, type="billing.mail"):
    order: str


class Billing(Handler[Bill]):
    """Fails once, then bills and has a mail sent; some orders never work."""

    name, queue, options = "billing.bill", "billing.orders", FAST

    async def handle(self, command: Bill, context: Context) -> None:
        if command.order == "never":
            raise KeyError("address")
        if context.attempt == 1:
            raise ConnectionError("no printer")
        await effect(context)
        await context.outbox.send(Mail(order=command.order), key=context.key)


class Mailing(Handler[Mail]):
    name, queue, options = "billing.mail", "billing.mails", FAST

    async def handle(self, command: Mail, context: Context) -> None:
        await effect(context)


APP = App("billing", handlers=[Billing, Mailing], prefix="billing")


@pytest.fixture
async def user_urls(
    site: Site, consumer_services: Endpoints, consumer_vhost: Vhost
) -> AsyncIterator[dict[str, str]]:
    """The broker's address for each kind of user, who has the permissions documented for it."""
    kinds = {
        "worker": permissions.worker("billing", APP.queues),
        "replying": permissions.worker("billing", APP.queues, replies=True),
        "producer": permissions.producer("billing"),
        "topology": permissions.topology_job("billing", APP.queues)}
    names = {kind: f"{kind}-{secrets.token_hex(6)}" for kind in kinds}
    async with BrokerAdmin(consumer_services.management_url, consumer_vhost.name) as admin:
        try:
            for kind, allowed in kinds.items():
                await admin.add_user(names[kind], "secret", allowed)
            yield {kind: str(URL(site.amqp_url).with_user(name).with_password("secret"))
                   for kind, name in names.items()}
        finally:
            for name in names.values():
                await admin.delete(f"/api/users/{name}")


async def test_the_whole_path_with_the_least_permissions(
    site: Site, user_urls: dict[str, str]
) -> None:
    """The topology job declares all; a producer publishes; a worker checks the topology, consumes,
    retries through the ladder, sends through the outbox and dead-letters; nobody may do more.
    """
    await site.prepare(App("empty", handlers=[]))  # the table of effects, nothing at the broker
    with pytest.raises(NotAllowed):
        await apply(user_urls["worker"], plan("billing", APP.bindings()))
    await apply(user_urls["topology"], plan("billing", APP.bindings()))
    orders = [post("billing.bill", {"order": order}, order) for order in ("o-1", "o-2", "never")]
    await publish(user_urls["producer"], [one.sent_to("billing.commands") for one in orders])
    async with site.worker(APP, amqp_url=user_urls["worker"]) as worker:
        await site.until(lambda: site.settled(queue="billing.mails") == 2, "both mails are sent")
        await site.until(site.outbox_empty, "the letter is sent")
        assert await worker.unready() == {}
    assert sorted(await site.effects()) == [
        (handler, key, "") for handler in ("billing.bill", "billing.mail")
        for key in ("o-1", "o-2")]
    [letter] = await site.taken("billing.orders.dead")
    assert letter.reason == "permanent"
    for event in ("outbox_row_not_sent", "publish_not_confirmed", "consume_failed"):
        assert site.logged(event) == []
    with pytest.raises(Exception, match="ACCESS_REFUSED"):
        await publish(user_urls["producer"], [orders[0].sent_to("")])


@pytest.mark.parametrize(("kind", "answered"), [("replying", True), ("worker", False)])
async def test_replies_take_a_permission_and_nothing_else_does(
    site: Site, user_urls: dict[str, str], kind: str, answered: bool
) -> None:
    """A worker that may not reply does all else: the command dies, its letter is sent, others pass;
    that nobody was told is logged. With the permission the requester is told.
    """
    await site.prepare(APP)
    async with Requester.opened(site.amqp_url, "billing.commands") as requester:
        async with site.worker(APP, amqp_url=user_urls[kind]) as worker:
            await requester.ask("billing.bill", {"order": "never"}, "never", "c-1")
            await requester.ask("billing.bill", {"order": "o-1"}, "o-1", "c-2")
            await site.until(lambda: site.settled(queue="billing.mails") == 1, "the mail is sent")
            await site.until(lambda: site.settled(why="died") == 1, "the other is dead")
            await site.until(site.outbox_empty, "its letter is sent")
            assert await worker.unready() == {}
        if answered:
            assert (await requester.answer()).correlation_id == "c-1"
        assert requester.silent()
    assert [letter.reason for letter in await site.taken("billing.orders.dead")] == ["permanent"]
    assert [line["receipt"] for line in site.logged("reply_not_delivered")] == [
        receipt for receipt in ("refused",) if not answered]
