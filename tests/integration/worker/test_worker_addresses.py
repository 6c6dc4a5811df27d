"""The broker's address: TLS, several hosts, credentials that change while a worker runs."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from harness import FAST, Site, effect
from postbox import post
from yarl import URL

from consumer import App, Command, Context, Handler
from consumer.broker.publish import RabbitPublisher
from consumer.errors import BrokerUnavailable
from consumer.testing.plugin import Vhost
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.integration


class Ring(Command, type="bell.ring"):
    times: int


class RingBell(Handler[Ring]):
    name, queue, options = "bell.ring", "bell", FAST

    async def handle(self, command: Ring, context: Context) -> None:
        await effect(context)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class Gate:
    """A TLS end before the broker, which itself speaks plain AMQP."""

    def __init__(self, target: URL, server_side: ssl.SSLContext) -> None:
        self._target, self._ssl = target, server_side
        self.passed = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> "Gate":
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0, ssl=self._ssl)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passed += 1
        inner_reader, inner_writer = await asyncio.open_connection(
            self._target.host, self._target.port)
        for pair in ((reader, inner_writer), (inner_reader, writer)):
            task = asyncio.create_task(_copy(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


@asynccontextmanager
async def tls_gate(site: Site, folder: Path) -> AsyncIterator[tuple[Gate, URL]]:
    """A gate, and the address that leads through it and trusts the authority of its certificate."""
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    trusted = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    plain = URL(site.amqp_url)
    async with Gate(plain, server_side) as gate:
        yield gate, plain.with_scheme("amqps").with_port(gate.port).with_query(cafile=str(trusted))


async def test_a_worker_consumes_and_publishes_over_tls(site: Site, tmp_path: Path) -> None:
    """Both its connections go through the gate, whose certificate is checked."""
    app = App("bells", handlers=[RingBell])
    await site.prepare(app)
    async with tls_gate(site, tmp_path) as (gate, address):
        site_url, site.amqp_url = site.amqp_url, str(address)
        async with site.worker(app):
            site.amqp_url = site_url
            await site.publish(post("bell.ring", {"times": 1}, "K"))
            await site.until(lambda: has_rung(site, "K"), "the effect")
        assert gate.passed >= 2


async def test_a_certificate_nobody_vouches_for_is_refused(site: Site, tmp_path: Path) -> None:
    """No connection is made, and neither error nor log shows the password."""
    async with tls_gate(site, tmp_path) as (_, address):
        stranger = address.with_query(None)
        publisher = RabbitPublisher(lambda: [str(stranger)])
        publisher.open()
        try:
            await site.until(lambda: site.logged("broker_unreachable"), "an attempt to connect")
            with pytest.raises(BrokerUnavailable) as refused:
                await publisher.wait_connected(0.1)
        finally:
            await publisher.close()
        assert address.password
        assert address.password not in f"{refused.value} {site.logs}"


async def test_a_dead_host_does_not_keep_a_worker_from_the_living(site: Site) -> None:
    """Of several addresses the next is tried; the one that answers is used."""
    app = App("bells", handlers=[RingBell])
    await site.prepare(app)
    living = site.amqp_url
    site.amqp_url = f"{URL(living).with_port(1)}, {living}"
    async with site.worker(app):
        site.amqp_url = living
        await site.publish(post("bell.ring", {"times": 1}, "K"))
        await site.until(lambda: has_rung(site, "K"), "the effect")


async def test_credentials_that_rotate_are_read_again(
    site: Site, consumer_services: Endpoints, consumer_vhost: Vhost, tmp_path: Path
) -> None:
    """The password changes, connections are cut: the worker reads the file again and goes on."""
    app = App("bells", handlers=[RingBell])
    await site.prepare(app)
    file = tmp_path / "amqp-url"
    admin = site.amqp_url
    async with httpx.AsyncClient(base_url=str(consumer_services.management_url),
                                 trust_env=False) as api:

        async def rotate(password: str) -> None:
            user = {"password": password, "tags": ""}
            (await api.put(f"/api/users/{consumer_vhost.name}", json=user)).raise_for_status()
            file.write_text(str(URL(admin).with_user(consumer_vhost.name).with_password(password)))

        await rotate("first")
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        (await api.put(f"/api/permissions/{consumer_vhost.name}/{consumer_vhost.name}",
                       json=rights)).raise_for_status()
        async with site.worker(app, amqp_url="", amqp_url_file=file):
            await site.publish(post("bell.ring", {"times": 1}, "before"))
            await site.until(lambda: has_rung(site, "before"), "the first effect", 30)
            await rotate("second")
            cut = await api.delete(f"/api/connections/username/{consumer_vhost.name}")
            cut.raise_for_status()
            await site.until(lambda: site.logged("broker_lost"), "a lost connection")
            await site.publish(post("bell.ring", {"times": 1}, "after"))
            await site.until(lambda: has_rung(site, "after"), "the second effect", 60)
        (await api.delete(f"/api/users/{consumer_vhost.name}")).raise_for_status()


async def has_rung(site: Site, key: str) -> bool:
    return ("bell.ring", key, "") in await site.effects()
