"""What the broker itself does again, or gives up, on the path of a command, unseen by workers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from consumer.broker.address import parse_address, vhost_of
from consumer.broker.management import Holdings, holdings
from consumer.broker.routes import Routes
from consumer.core.findings import Code, ConsumerTimeout, Finding, Severity
from consumer.core.topology import UNLIMITED_DELIVERIES, Topology, replay_queue

Actual = Mapping[str, Any]
"""A queue as the management API describes it."""


@dataclass(frozen=True, slots=True)
class PathAtBroker:
    """What was seen there.

    Args:
        consumer_timeouts: Of work queues that have one of their own; the shorter of both lanes.
        missing: Consumed queues that do not exist, so that nothing can be said of them.
    """

    findings: Sequence[Finding]
    consumer_timeouts: Mapping[str, ConsumerTimeout]
    missing: Sequence[str]


async def path_at_broker(
    amqp_url: str, management_url: str, topology: Topology, work_queues: Sequence[str]
) -> PathAtBroker:
    """What the management API tells of the path. Changes nothing.

    Raises:
        ConfigurationError: A URL is not valid.
        ManagementUnavailable: The API does not answer, or the user may not see the virtual host.
    """
    held = await holdings(management_url, vhost_of(parse_address(amqp_url)))
    consumed = [queue.name for queue in topology.queues if queue.consumed]
    return PathAtBroker(
        [*retries(topology, work_queues, held)], consumer_timeouts(work_queues, held),
        [name for name in consumed if name not in held.queues])


def retries(topology: Topology, work_queues: Sequence[str], held: Holdings) -> Iterator[Finding]:
    """Limits, delays and ways back that hide retries from the workers."""
    ladder = {queue.name for queue in topology.queues if not queue.consumed}
    for queue in topology.queues:
        actual = held.queues.get(queue.name)
        if actual is None:
            continue
        if queue.consumed:
            yield from _delivery_limit(queue.name, actual)
            yield from _delayed_retry(queue.name, actual)
        yield from _dead_letter_policy(queue.name, actual)
    routes = Routes(held)
    lanes = {lane for name in work_queues for lane in (name, replay_queue(name))}
    for name, actual in held.queues.items():
        if name not in ladder:
            yield from _way_back(name, actual, routes, lanes)


def consumer_timeouts(work_queues: Sequence[str], held: Holdings) -> dict[str, ConsumerTimeout]:
    """The consumer timeouts that queues have of their own, in milliseconds, by policy or argument
    (https://www.rabbitmq.com/docs/consumers#per-queue-delivery-timeouts-using-a-policy).
    """
    found = {}
    for name in work_queues:
        seen = [
            ConsumerTimeout(timedelta(milliseconds=value), f"{where} of {lane}")
            for lane in (name, replay_queue(name)) if lane in held.queues
            for where, value in _given(held.queues[lane], "consumer-timeout")
            if isinstance(value, int) and value > 0]
        if seen:
            found[name] = min(seen, key=lambda timeout: timeout.after)
    return found


def _delivery_limit(name: str, actual: Actual) -> Iterator[Finding]:
    given = _given(actual, "delivery-limit")
    for where, limit in given:
        if isinstance(limit, int) and limit < UNLIMITED_DELIVERIES:
            yield Finding(
                Code.DELIVERY_LIMIT, Severity.VIOLATION,
                f"{name}: {where} sets delivery-limit {limit}: the broker counts deliveries, "
                "crashes and drains among them, and gives messages up by itself",
                _remedy(where, name), name)
    if not given and actual.get("type") == "quorum":
        yield Finding(
            Code.DELIVERY_LIMIT, Severity.VIOLATION,
            f"{name}: it has no x-delivery-limit, so RabbitMQ 4 gives messages up after 20 "
            "deliveries (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling)",
            "drain and delete the queue, then run: consumer topology apply", name)


def _delayed_retry(name: str, actual: Actual) -> Iterator[Finding]:
    """RabbitMQ 4.3 delays what is returned to a quorum queue
    (https://github.com/rabbitmq/rabbitmq-server/releases/tag/v4.3.0).
    """
    for where, kind in _given(actual, "delayed-retry-type"):
        if kind != "disabled":
            yield Finding(
                Code.DELAYED_RETRY, Severity.VIOLATION,
                f"{name}: {where} sets delayed-retry-type {kind}: the broker delays what a drain "
                "or a crash gives back, beside the waits of this framework",
                _remedy(where, name), name)


def _dead_letter_policy(name: str, actual: Actual) -> Iterator[Finding]:
    """An argument overrules a policy, each of the two by itself
    (https://www.rabbitmq.com/docs/dlx#using-optional-queue-arguments).
    """
    policy, arguments = _policy(actual), _arguments(actual)
    if _effective(actual, "dead-letter-exchange") is None:
        return  # without an exchange, a routing key means nothing
    for key in ("dead-letter-exchange", "dead-letter-routing-key"):
        if key not in policy:
            continue
        overruled = f"x-{key}" in arguments
        yield Finding(
            Code.DEAD_LETTER_POLICY, Severity.NOTE if overruled else Severity.VIOLATION,
            f"{name}: {_policy_name(actual)} sets {key} to {policy[key]!r}" + (
                ", which the queue's own argument overrules" if overruled else
                ": messages leave on a way that this framework does not know"),
            _remedy(_policy_name(actual), name), name)


def _way_back(name: str, actual: Actual, routes: Routes, lanes: set[str]) -> Iterator[Finding]:
    """Queues whose messages expire, or die, into a work queue."""
    exchange = _effective(actual, "dead-letter-exchange")
    if exchange is None:
        return
    key = _effective(actual, "dead-letter-routing-key")
    keys = routes.keys_into(name) if key is None else frozenset((str(key),))
    times = [value for _, value in _given(actual, "message-ttl") if isinstance(value, int)]
    for lane in sorted(routes.queues(str(exchange), keys) & lanes):
        remedy = (f"remove the dead-letter exchange of {name}; wait with Retry(after=…) or a "
                  "scheduled send, which are counted")
        if times:
            yield Finding(
                Code.DEAD_LETTER_LOOP, Severity.VIOLATION,
                f"{name}: messages expire after {min(times)} ms and are dead-lettered to {lane}: "
                "a retry that no attempt limit and no budget counts", remedy, lane)
        else:
            yield Finding(
                Code.DEAD_LETTER_LOOP, Severity.WARNING,
                f"{name}: what is rejected there, or expires by a time of its own, is "
                f"dead-lettered to {lane}, and counted by no attempt limit and no budget",
                remedy, lane)


def _effective(actual: Actual, key: str) -> object | None:
    """What holds where an argument overrules a policy."""
    found: object | None = _arguments(actual).get(f"x-{key}", _policy(actual).get(key))
    return found


def _given(actual: Actual, key: str) -> list[tuple[str, object]]:
    """Who sets `key`, and to what: policy, argument, both or neither."""
    policy, arguments = _policy(actual), _arguments(actual)
    found: list[tuple[str, object]] = []
    if key in policy:
        found.append((_policy_name(actual), policy[key]))
    if f"x-{key}" in arguments:
        found.append((f"argument x-{key}", arguments[f"x-{key}"]))
    return found


def _policy(actual: Actual) -> Mapping[str, Any]:
    return actual.get("effective_policy_definition") or {}


def _arguments(actual: Actual) -> Mapping[str, Any]:
    return actual["arguments"] or {}


def _policy_name(actual: Actual) -> str:
    names = [name for name in (actual.get("policy"), actual.get("operator_policy")) if name]
    return f"policy {' or '.join(map(repr, names))}"


def _remedy(where: str, queue: str) -> str:
    if where.startswith("policy"):
        return f"change {where} so that it leaves {queue} out"
    return "drain and delete the queue, then run: consumer topology apply"
