"""Connecting: several hosts, changed credentials, and no secret in what is said about it."""

import asyncio
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from yarl import URL

from consumer.broker.address import parse_address
from consumer.broker.connection import ConnectionOptions, connect
from consumer.broker.consume import RabbitBroker
from consumer.broker.declare import apply
from consumer.broker.link import Link
from consumer.broker.publish import RabbitPublisher
from consumer.broker.repeat import Pace
from consumer.core.topology import plan
from consumer.errors import BrokerUnavailable, ConfigurationError
from consumer.message import Lane
from consumer.ports import Receipt
from consumer.testing.broker_admin import BrokerAdmin, eventually
from consumer.testing.contract.publisher import outgoing
from consumer.testing.plugin import Vhost
from consumer.testing.proxy import Proxy, proxy
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.integration
OPTIONS = ConnectionOptions(
    name="test link", close_timeout_s=1.0, connect_timeout_s=2.0,
    pace=Pace(first_s=0.05, longest_s=0.2, shortest_s=0.02),
)


@pytest.fixture
async def between(consumer_vhost: Vhost) -> AsyncIterator[Proxy]:
    async with proxy(consumer_vhost.url) as passing:
        yield passing


async def test_hosts_are_tried_in_turn(consumer_vhost: Vhost, unused_tcp_port: int) -> None:
    nobody = f"amqp://u:p@127.0.0.1:{unused_tcp_port}/"
    link = Link(lambda: [nobody, nobody, consumer_vhost.url], OPTIONS)
    link.open()
    assert await link.wait(30) is link.session
    await link.close()
    assert link.session is None


async def test_a_host_that_does_not_answer_is_given_up(
    consumer_vhost: Vhost, between: Proxy
) -> None:
    between.freeze()
    link = Link(lambda: [between.url, consumer_vhost.url], OPTIONS)
    link.open()
    await link.wait(30)
    await link.close()


async def test_credentials_are_read_again_at_each_attempt(
    consumer_vhost: Vhost, consumer_services: Endpoints
) -> None:
    wrong = str(URL(consumer_vhost.url).with_password("s3cr#t-wrong"))
    urls, seen = [wrong], list[str]()

    def current() -> list[str]:
        seen.extend(urls)
        return urls

    link = Link(current, OPTIONS)
    with structlog.testing.capture_logs() as logs:
        link.open()
        with pytest.raises(BrokerUnavailable, match="no connection to RabbitMQ within"):
            await link.wait(0.5)
        urls[:] = ["amqp://broken:s3cr#t-wrong@host/"]
        await eventually(lambda: any(e["event"] == "broker_misconfigured" for e in logs))
        urls[:] = [consumer_vhost.url]
        await link.wait(30)
    await link.close()
    events = {entry["event"] for entry in logs}
    assert events == {"broker_unreachable", "broker_misconfigured", "broker_connected"}
    assert "ACCESS_REFUSED" in next(
        e["error"] for e in logs if e["event"] == "broker_unreachable")
    assert "s3cr" not in repr(logs)


async def test_nothing_secret_is_logged_by_anybody_even_when_debugging(
    consumer_vhost: Vhost, between: Proxy, caplog: pytest.LogCaptureFixture,
    unused_tcp_port: int,
) -> None:
    caplog.set_level(logging.DEBUG)
    password = URL(between.url).password or ""
    urls = [f"amqp://app:s3cr%23t@127.0.0.1:{unused_tcp_port}/?name=s3cret", between.url]
    link = Link(lambda: urls, OPTIONS)
    with structlog.testing.capture_logs() as logs:
        link.open()
        session = await link.wait(30)
        between.cut()
        await session.lost.wait()
        await link.wait(30)
        await link.close()
    assert "broker_lost" in {entry["event"] for entry in logs}
    said = caplog.text + repr(logs)
    for secret in ("s3cr", "s3cr%23t", f":{password}@"):
        assert secret not in said


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1, and a server's context with it."""
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subprocess.run([
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=test",
        "-addext", "subjectAltName=IP:127.0.0.1",
    ], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


async def test_tls_carries_everything_and_an_unknown_certificate_is_refused(
    consumer_vhost: Vhost, certificate: tuple[str, ssl.SSLContext]
) -> None:
    cert, context = certificate
    async with proxy(consumer_vhost.url, context) as passing:
        trusting = str(URL(passing.url).with_query({"cafile": cert}))
        publisher, broker = (
            RabbitPublisher(lambda: [trusting], OPTIONS), RabbitBroker(lambda: [trusting], OPTIONS))
        publisher.open()
        broker.open()
        await apply(trusting, plan("shop", {"orders": []}))
        found = asyncio.Queue[bytes]()
        await broker.wait_connected(30)
        await broker.subscribe(
            "orders", Lane.LIVE, 10, lambda d, _: found.put_nowait(d.message.body))
        body = b"x" * 300_000
        answers = await publisher.publish([outgoing(body, message_id="m", routing_key="orders")])
        assert [a.receipt for a in answers] == [Receipt.CONFIRMED]
        async with asyncio.timeout(30):
            assert await found.get() == body
        await publisher.close()
        await broker.close()
        with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await connect(parse_address(passing.url), OPTIONS)


async def test_a_wrong_url_is_refused_at_once() -> None:
    broker = RabbitBroker(lambda: ["amqp://u:p@ss@host/"])
    with pytest.raises(ConfigurationError, match="percent-encoded"):
        broker.open()
    with pytest.raises(ConfigurationError, match="no URL"):
        RabbitBroker(list[str]).open()


async def test_the_broker_shows_the_name_of_the_connection(
    consumer_vhost: Vhost, consumer_services: Endpoints
) -> None:
    link = Link(lambda: [consumer_vhost.url], OPTIONS)
    link.open()
    await link.wait(30)
    async with BrokerAdmin(consumer_services.management_url, consumer_vhost.name) as admin:
        await eventually(admin.connections)
        found = await admin.get("/api/connections")
    names = {c["client_properties"].get("connection_name") for c in found}
    assert "test link" in names
    await link.close()


async def test_closing_ends_every_task_of_a_link_that_never_connected(
    unused_tcp_port: int,
) -> None:
    before = asyncio.all_tasks()
    link = Link(lambda: [f"amqp://u:p@127.0.0.1:{unused_tcp_port}/"], OPTIONS)
    link.open()
    with pytest.raises(BrokerUnavailable):
        await link.wait(0.1)
    await link.close()
    await link.close()
    assert asyncio.all_tasks() == before


async def test_twenty_lost_connections_leave_no_task_behind(between: Proxy) -> None:
    broker = RabbitBroker(lambda: [between.url], OPTIONS, resume_pace=OPTIONS.pace)
    broker.open()
    await broker.subscribe("nowhere", Lane.LIVE, 1, lambda *_: None)

    def ours() -> int:
        return sum("Proxy" not in repr(task) for task in asyncio.all_tasks())

    counts = []
    for _ in range(20):
        await broker.wait_connected(30)
        session = broker._link.session
        assert session is not None
        counts.append(ours())
        between.cut()
        await session.lost.wait()
    await broker.wait_connected(30)
    await eventually(lambda: ours() <= max(counts[:3]))
    await broker.close()
    await eventually(lambda: ours() == 1)
