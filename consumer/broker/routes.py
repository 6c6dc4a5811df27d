"""Where the broker takes a message, by its exchanges and bindings."""

from collections import defaultdict
from collections.abc import Set

from consumer.broker.management import Holdings

Keys = frozenset[str] | None
"""Routing keys a message may have; None is any."""


class Routes:
    """The ways through the exchanges of a virtual host.

    Where it cannot tell, by the headers of a message, say, it takes a way as possible.
    """

    def __init__(self, held: Holdings) -> None:
        self._kinds = {name: str(exchange["type"]) for name, exchange in held.exchanges.items()}
        self._alternates = {
            name: str(alternate) for name, exchange in held.exchanges.items()
            if (alternate := (exchange["arguments"] or {}).get("alternate-exchange")) is not None}
        self._leaving: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        self._entering: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for exchange, key, destination, kind in held.bindings:
            self._leaving[exchange].append((key, destination, kind))
            if kind == "queue":
                self._entering[destination].append((exchange, key))

    def queues(self, exchange: str, keys: Keys) -> Set[str]:
        """The queues that a message published to `exchange` with one of `keys` can reach."""
        reached, seen, ahead = set(), set(), [exchange]
        while ahead:
            here = ahead.pop()
            if here in seen:
                continue
            seen.add(here)
            unrouted = keys is None
            for key, destination, kind in self._leaving[here]:
                if self._matches(here, key, keys):
                    if kind == "queue":
                        reached.add(destination)
                    else:
                        ahead.append(destination)
            if keys is not None:
                unrouted = any(
                    not any(self._matches(here, bound, frozenset((key,)))
                            for bound, _, _ in self._leaving[here]) for key in keys)
            if unrouted and here in self._alternates:
                ahead.append(self._alternates[here])
        return reached

    def keys_into(self, queue: str) -> Keys:
        """The routing keys with which messages can have come into `queue`."""
        keys = set()
        for exchange, key in self._entering[queue]:
            kind = self._kinds.get(exchange)
            exact = kind == "direct" or (kind == "topic" and {"*", "#"}.isdisjoint(key.split(".")))
            if not exact:
                return None
            keys.add(key)
        return frozenset(keys)

    def _matches(self, exchange: str, bound: str, keys: Keys) -> bool:
        if keys is None:
            return True
        match self._kinds.get(exchange):
            case "direct":
                return bound in keys
            case "topic":
                return any(topic_matches(bound, key) for key in keys)
        return True


def topic_matches(pattern: str, key: str) -> bool:
    """Whether a topic exchange takes `key` for `pattern`: `*` is a word, `#` any number of them
    (https://www.rabbitmq.com/tutorials/tutorial-five-python).
    """
    words = key.split(".")
    reached = {0}  # how many words the pattern so far can have taken
    for part in pattern.split("."):
        if part == "#":
            reached = set(range(min(reached), len(words) + 1)) if reached else reached
        else:
            reached = {n + 1 for n in reached if n < len(words) and part in ("*", words[n])}
    return len(words) in reached
