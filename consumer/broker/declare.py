"""Applying a topology. Nothing here deletes or changes what is there."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiormq
import structlog
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from consumer.broker.address import parse_address
from consumer.broker.calls import CLIENT_ERRORS, BindQueue, DeclareQueue, call
from consumer.broker.connection import ConnectionOptions, Session, connect
from consumer.core.topology import Argument, Binding, Exchange, Queue, Topology
from consumer.errors import BrokerUnavailable, TopologyError

log = structlog.get_logger("consumer.broker")

APPLY = "run: consumer topology apply"
_PERMISSIONS = "docs/permissions.md has the permissions that are needed"
_OPTIONS = ConnectionOptions(name="consumer: topology")
_TIMEOUT_S = 30.0
_VALUE = r"(?:none|(?:the value )?'(?P<{0}>.*?)'(?: of type '.*')?)"
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>.*?)' for .*: "
    rf"received {_VALUE.format('expected')} but current is {_VALUE.format('actual')}\s*$"
)

Declarable = Exchange | Queue | Binding


@dataclass(frozen=True, slots=True)
class Declared:
    """An object that the broker now holds as planned, to be recorded."""

    kind: str
    name: str
    arguments: Mapping[str, Argument]
    broker_version: str


class Mismatch(TopologyError):
    """The broker holds an object with another value of an argument."""

    def __init__(self, kind: str, name: str, argument: str, expected: str, actual: str) -> None:
        super().__init__(
            f"{kind} {name!r} exists with {argument} {actual}; the app needs {expected}",
            remedy=f"drain and delete that {kind} and apply again, or choose another name",
        )
        self.kind, self.name, self.argument = kind, name, argument
        self.expected, self.actual = expected, actual


class NotAllowed(TopologyError):
    """The user of the URL lacks a permission."""


class Missing(TopologyError):
    """The object does not exist."""


class Declarer:
    """Declares on channels of its own: one that the broker closes is replaced."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channel: aiormq.Channel | None = None

    async def declare(self, item: Declarable, *, passive: bool = False) -> None:
        """The broker holds `item`. Passively: it did so before, with whatever arguments.

        Raises:
            Mismatch: It holds it with other arguments; never raised passively.
            Missing: It does not exist, or an exchange or queue of a binding does not.
            NotAllowed: The user may not do that.
            BrokerUnavailable: The connection was lost.
        """
        channel = self._channel
        if channel is None or channel.is_closed:
            channel = self._channel = await self._session.channel()
        kind, name = label(item)
        try:
            await call(_request(channel, item, passive))
        except ChannelPreconditionFailed as error:
            raise _mismatch(kind, name, str(error)) from None
        except ChannelNotFoundEntity as error:
            raise Missing(f"{kind} {name!r}: {error}", remedy=APPLY) from None
        except ChannelAccessRefused as error:
            raise NotAllowed(f"{kind} {name!r}: {error}", remedy=_PERMISSIONS) from None
        except CLIENT_ERRORS as error:
            raise BrokerUnavailable(f"{kind} {name!r}: {error}") from None


@asynccontextmanager
async def declarer(url: str, options: ConnectionOptions = _OPTIONS) -> AsyncIterator[Declarer]:
    """A declarer on a connection that lives as long as the block.

    Raises:
        ConfigurationError: The URL is not valid.
        BrokerUnavailable: The broker does not answer.
    """
    session = await connect(parse_address(url), options)
    try:
        yield Declarer(session)
    finally:
        await session.close()


async def apply(url: str, topology: Topology) -> list[Declared]:
    """The broker holds everything of `topology`. Idempotent; nothing else is touched.

    Raises:
        Mismatch: An object is there with other arguments. What comes before it in the topology
            is declared, what comes after it is not.
        TopologyError: The user may not declare something.
        BrokerUnavailable: The broker does not answer.
    """
    applied = []
    session = await connect(parse_address(url), _OPTIONS)
    try:
        declaring = Declarer(session)
        for item in every(topology):
            await declaring.declare(item)
            arguments = {} if isinstance(item, Binding) else item.arguments
            applied.append(Declared(*label(item), arguments, session.broker_version))
    finally:
        await session.close()
    log.info("topology_applied", objects=len(applied))
    return applied


async def missing(url: str, topology: Topology) -> list[tuple[str, str]]:
    """Kind and name of each exchange and queue that does not exist; for workers at start.

    Where the user may not even ask, it counts as existing: RabbitMQ 4.2.6 and 4.3.0 demand the
    permission to configure for a passive declare.
    """
    absent = []
    items: tuple[Exchange | Queue, ...] = (*topology.exchanges, *topology.queues)
    async with declarer(url) as declaring:
        for item in items:
            try:
                await declaring.declare(item, passive=True)
            except Missing:
                absent.append(label(item))
            except NotAllowed as error:
                log.warning("topology_unchecked", error=str(error))
    return absent


def every(topology: Topology) -> tuple[Declarable, ...]:
    """All objects, in an order in which they can be declared."""
    return (*topology.exchanges, *topology.queues, *topology.bindings)


def label(item: Declarable) -> tuple[str, str]:
    """Kind and name of an object."""
    match item:
        case Exchange(name):
            return "exchange", name
        case Queue(name):
            return "queue", name
        case Binding():
            return "binding", f"{item.exchange} -[{item.routing_key}]-> {item.destination}"


async def _request(channel: aiormq.Channel, item: Declarable, passive: bool) -> None:
    match item:
        case Exchange():
            await channel.exchange_declare(
                item.name, exchange_type=item.kind, durable=True, passive=passive,
                arguments=dict[str, Any](item.arguments), timeout=_TIMEOUT_S,
            )
        case Queue():
            await channel.rpc(DeclareQueue(
                queue=item.name, durable=True, passive=passive,
                arguments=dict[str, Any](item.arguments),
            ), timeout=_TIMEOUT_S)
        case Binding(destination_kind="exchange"):
            await channel.exchange_bind(
                destination=item.destination, source=item.exchange,
                routing_key=item.routing_key, timeout=_TIMEOUT_S,
            )
        case Binding():
            await channel.rpc(BindQueue(
                queue=item.destination, exchange=item.exchange, routing_key=item.routing_key,
            ), timeout=_TIMEOUT_S)


def _mismatch(kind: str, name: str, text: str) -> TopologyError:
    found = _INEQUIVALENT.search(text)
    if found is None:
        return TopologyError(f"{kind} {name!r}: {text}")
    return Mismatch(
        kind, name, found["argument"], found["expected"] or "none", found["actual"] or "none"
    )
