"""Comparing the broker with a topology, without touching it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from consumer.broker.address import parse_address, vhost_of
from consumer.broker.declare import (
    APPLY,
    Declarable,
    Declarer,
    Mismatch,
    Missing,
    NotAllowed,
    declarer,
    every,
    label,
)
from consumer.broker.management import Holdings, ManagementUnavailable, holdings
from consumer.core.topology import UNLIMITED_DELIVERIES, Binding, Exchange, Queue, Topology

log = structlog.get_logger("consumer.broker")


class State(StrEnum):
    """How an object of the plan is found at the broker."""

    DECLARED = "declared"
    MISSING = "missing"
    DIFFERENT = "different"
    UNBOUND = "unbound"
    POLICY = "policy"
    """It is as planned, but a policy changes what it does."""
    UNCHECKED = "unchecked"
    """AMQP cannot tell, or the user may not ask."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One object of the plan. `argument` and what follows say what is wrong with it."""

    kind: str
    name: str
    state: State
    argument: str | None = None
    expected: str | None = None
    actual: str | None = None
    remedy: str | None = None


# Policies that lose, delay or redirect messages of our queues, whatever value they have.
_HARMFUL_POLICIES = (
    "max-length", "max-length-bytes", "overflow", "message-ttl", "expires",
    "dead-letter-strategy",
)


async def check(
    url: str, topology: Topology, *, management_url: str | None = None
) -> list[Finding]:
    """One finding per object of the plan, more where more is wrong with it. Changes nothing.

    Reads the management API where there is one; else declares again what exists, on channels
    that are thrown away, which tells arguments, but neither bindings nor policies.

    Raises:
        ConfigurationError: A URL is not valid.
        BrokerUnavailable: The broker does not answer.
    """
    if management_url:
        try:
            held = await holdings(management_url, vhost_of(parse_address(url)))
        except ManagementUnavailable as error:
            log.warning("management_unavailable", error=str(error))
        else:
            return [finding for item in every(topology) for finding in compare(item, held)]
    async with declarer(url) as declaring:
        found = []
        for item in every(topology):
            found.append(Finding(*label(item), State.UNCHECKED) if isinstance(item, Binding)
                         else await _declare_again(declaring, item))
        return found


def compare(item: Declarable, held: Holdings) -> Iterator[Finding]:
    """What differs between an object and what the broker holds; `DECLARED` if nothing does."""
    kind, name = label(item)
    if isinstance(item, Binding):
        key = (item.exchange, item.routing_key, item.destination, item.destination_kind)
        bound = key in held.bindings
        yield Finding(kind, name, State.DECLARED) if bound else Finding(
            kind, name, State.UNBOUND, remedy=APPLY)
        return
    actual = (held.exchanges if isinstance(item, Exchange) else held.queues).get(item.name)
    if actual is None:
        yield Finding(kind, name, State.MISSING, remedy=APPLY)
        return
    faults = [*_differences(item, actual)]
    if isinstance(item, Queue):
        faults += _policies(item, actual)
    yield from faults or [Finding(kind, name, State.DECLARED)]


def _differences(item: Exchange | Queue, actual: Mapping[str, Any]) -> Iterator[Finding]:
    kind, name = label(item)
    expected = {"durable": True, **item.arguments}
    found = {"durable": actual["durable"], **(actual["arguments"] or {})}
    if isinstance(item, Exchange):
        expected["type"], found["type"] = item.kind, actual["type"]
    for argument in sorted(expected.keys() | found.keys()):
        wanted, there = expected.get(argument), found.get(argument)
        if wanted != there:
            yield Finding(
                kind, name, State.DIFFERENT, argument, _text(wanted), _text(there),
                Mismatch(kind, name, argument, _text(wanted), _text(there)).remedy,
            )


def _policies(queue: Queue, actual: Mapping[str, Any]) -> Iterator[Finding]:
    policy: Mapping[str, Any] = actual.get("effective_policy_definition") or {}
    names = [name for name in (actual.get("policy"), actual.get("operator_policy")) if name]
    remedy = f"change policy {' or '.join(map(repr, names))} so that it leaves this queue out"
    for key in _HARMFUL_POLICIES:
        if key in policy:
            yield Finding("queue", queue.name, State.POLICY, key,
                          _text(queue.arguments.get(f"x-{key}")), _text(policy[key]), remedy)
    limit = policy.get("delivery-limit")
    if queue.consumed and limit is not None and limit < UNLIMITED_DELIVERIES:
        yield Finding("queue", queue.name, State.POLICY, "delivery-limit",
                      _text(UNLIMITED_DELIVERIES), _text(limit), remedy)


async def _declare_again(declaring: Declarer, item: Exchange | Queue) -> Finding:
    kind, name = label(item)
    try:
        await declaring.declare(item, passive=True)
        await declaring.declare(item)
    except Missing:
        return Finding(kind, name, State.MISSING, remedy=APPLY)
    except NotAllowed as error:
        return Finding(kind, name, State.UNCHECKED, remedy=error.remedy)
    except Mismatch as error:
        return Finding(kind, name, State.DIFFERENT, error.argument, error.expected, error.actual,
                       error.remedy)
    return Finding(kind, name, State.DECLARED)


def _text(value: object) -> str:
    return "none" if value is None else str(value)
