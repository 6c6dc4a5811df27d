"""What the broker must hold, as plain data, and how a delay finds its way through it.

    <prefix>.commands ──command type──► <queue>            work, lane live
                                        <queue>.replay     work, lane replay
                                        <queue>.dead       dead letters
    <prefix>.delay.23 … <prefix>.delay.00 ──► <prefix>.delay.deliver ──► any of the three
    <prefix>.unroutable                                    what no binding of the above takes

How delays go through the ladder is in `consumer.core.ladder`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from consumer.core.ladder import (
    LEVELS,
    LONGEST_DELAY,
    LONGEST_ROUNDED_DELAY,
    UNIT,
    Route,
    delay_level,
    deliver_exchange,
    round_up_delay,
    route_delay,
)
from consumer.core.names import (
    check_command_type,
    check_prefix,
    check_queue_name,
    check_queue_names,
)

__all__ = (
    "LEVELS", "LONGEST_DELAY", "LONGEST_ROUNDED_DELAY", "UNIT", "UNLIMITED_DELIVERIES", "Argument",
    "Binding", "Exchange", "Queue", "Route", "Topology", "check_command_type", "check_prefix",
    "check_queue_name", "commands_exchange", "dead_queue", "delay_level", "deliver_exchange",
    "plan", "replay_queue", "round_up_delay", "route_delay", "unroutable",
)

UNLIMITED_DELIVERIES = 2**31 - 1
"""Means no limit on every broker version; -1 and an absent argument do not."""

Argument = str | int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable quorum queue."""

    name: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    consumed: bool = False
    """Whether workers consume from it; the others are levels of the ladder."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Messages of `exchange` that match `routing_key` go to `destination`."""

    exchange: str
    routing_key: str
    destination: str
    destination_kind: str
    """`queue` or `exchange`."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything an application needs, in an order in which it can be declared."""

    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]


def replay_queue(queue: str) -> str:
    """The queue of the replay lane of a work queue."""
    return f"{queue}.replay"


def dead_queue(queue: str) -> str:
    """The queue of the dead letters of a work queue."""
    return f"{queue}.dead"


def commands_exchange(prefix: str) -> str:
    """The exchange producers publish commands to, by command type."""
    return f"{prefix}.commands"


def unroutable(prefix: str) -> str:
    """Name of the exchange and the queue of messages that have no other place to go."""
    return f"{prefix}.unroutable"


def plan(prefix: str, queues: Mapping[str, Sequence[str]]) -> Topology:
    """What an application needs.

    Args:
        prefix: Name of the application at the broker.
        queues: The command types of each work queue.

    Raises:
        RegistrationError: A name breaks a rule, or two names collide.
    """
    check_prefix(prefix)
    check_queue_names(prefix, queues)
    for command_types in queues.values():
        for command_type in command_types:
            check_command_type(command_type)
    work = [queue for name in queues for queue in _queues_of(prefix, name)]
    bindings = [
        Binding(commands_exchange(prefix), command_type, name, "queue")
        for name, command_types in queues.items()
        for command_type in dict.fromkeys(command_types)
    ]
    bindings += [
        Binding(deliver_exchange(prefix), "*." * LEVELS + queue.name, queue.name, "queue")
        for queue in work
    ]
    return Topology(
        exchanges=(*_fixed_exchanges(prefix), *_ladder_exchanges(prefix)),
        queues=(_consumed(unroutable(prefix)), *_ladder_queues(prefix), *work),
        bindings=(
            Binding(unroutable(prefix), "", unroutable(prefix), "queue"),
            *_ladder_bindings(prefix),
            *bindings,
        ),
    )


def _fixed_exchanges(prefix: str) -> list[Exchange]:
    otherwise: dict[str, Argument] = {"alternate-exchange": unroutable(prefix)}
    return [
        Exchange(unroutable(prefix), "fanout"),
        Exchange(commands_exchange(prefix), "topic", otherwise),
        Exchange(deliver_exchange(prefix), "topic", otherwise),
    ]


def _below(prefix: str, level: int) -> str:
    return delay_level(prefix, level - 1) if level else deliver_exchange(prefix)


def _ladder_exchanges(prefix: str) -> list[Exchange]:
    return [Exchange(delay_level(prefix, level), "topic") for level in range(LEVELS)]


def _ladder_queues(prefix: str) -> list[Queue]:
    return [
        Queue(delay_level(prefix, level), {
            "x-queue-type": "quorum",
            "x-message-ttl": (UNIT // timedelta(milliseconds=1)) << level,
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": _below(prefix, level),
        })
        for level in range(LEVELS)
    ]


def _ladder_bindings(prefix: str) -> list[Binding]:
    bindings = []
    for level in range(LEVELS):
        here, higher_bits = delay_level(prefix, level), "*." * (LEVELS - 1 - level)
        bindings.append(Binding(here, f"{higher_bits}1.#", here, "queue"))
        bindings.append(Binding(here, f"{higher_bits}0.#", _below(prefix, level), "exchange"))
    return bindings


def _consumed(name: str, arguments: Mapping[str, Argument] | None = None) -> Queue:
    return Queue(name, {
        "x-queue-type": "quorum",
        "x-delivery-limit": UNLIMITED_DELIVERIES,
        **(arguments or {}),
    }, consumed=True)


def _queues_of(prefix: str, name: str) -> list[Queue]:
    to_dead: dict[str, Argument] = {
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": deliver_exchange(prefix),
        "x-dead-letter-routing-key": "0." * LEVELS + dead_queue(name),
    }
    return [
        _consumed(name, to_dead),
        _consumed(replay_queue(name), to_dead),
        _consumed(dead_queue(name)),
    ]
