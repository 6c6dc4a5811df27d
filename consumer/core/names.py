"""Names at the broker, checked before anything is declared. Limits are in bytes of UTF-8."""

import re
from collections.abc import Iterable

from consumer.errors import RegistrationError

MAX_NAME_BYTES = 255
RESERVED_SUFFIXES = (".replay", ".dead")
_DELAY_BITS_BYTES = 48  # "0." for each of the 24 levels of the delay ladder
MAX_QUEUE_BYTES = MAX_NAME_BYTES - _DELAY_BITS_BYTES - max(map(len, RESERVED_SUFFIXES))
"""200: the name, its suffix and the bits of a delay make one routing key."""
MAX_PREFIX_BYTES = 127 - len(".delay.deliver")
"""113: AMQP exchange names have at most 127 bytes."""
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]+")


def check_queue_name(name: str) -> None:
    """Nothing happens if `name` can be a work queue.

    Raises:
        RegistrationError: It cannot; the message names the rule.
    """
    _check_text("queue name", name, MAX_QUEUE_BYTES)
    if name.startswith("amq."):
        raise RegistrationError(f"queue name {name!r}: names starting with 'amq.' are the broker's")
    for suffix in RESERVED_SUFFIXES:
        if name.endswith(suffix):
            raise RegistrationError(
                f"queue name {name!r}: the suffix {suffix!r} is reserved for queues of ours"
            )
    _check_words("queue name", name)


def check_queue_names(prefix: str, names: Iterable[str]) -> None:
    """Nothing happens if the names can be the work queues of one application.

    Two names that differ never collide through their suffixes: none of them ends in one.

    Raises:
        RegistrationError: One of them cannot; the message names the rule.
    """
    for name in names:
        check_queue_name(name)
        if name == f"{prefix}.unroutable" or name.startswith(f"{prefix}.delay."):
            raise RegistrationError(
                f"queue name {name!r} collides with a queue of ours under the prefix {prefix!r}"
            )


def check_prefix(prefix: str) -> None:
    """Nothing happens if `prefix` can begin the names of an application's exchanges.

    Raises:
        RegistrationError: It cannot; the message names the rule.
    """
    _check_text("prefix", prefix, MAX_PREFIX_BYTES)
    if not _PREFIX.fullmatch(prefix):
        raise RegistrationError(
            f"prefix {prefix!r}: only ASCII letters, digits and the signs _ . : - are allowed"
        )
    if prefix == "amq" or prefix.startswith("amq."):
        raise RegistrationError(f"prefix {prefix!r}: names starting with 'amq.' are the broker's")


def check_command_type(command_type: str) -> None:
    """Nothing happens if messages can be routed by `command_type`.

    Raises:
        RegistrationError: They cannot; the message names the rule.
    """
    _check_text("command type", command_type, MAX_NAME_BYTES)
    _check_words("command type", command_type)


def _check_text(what: str, text: str, max_bytes: int) -> None:
    if not text:
        raise RegistrationError(f"{what} is empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise RegistrationError(f"{what} {text!r} is not valid Unicode") from None
    if size > max_bytes:
        raise RegistrationError(
            f"{what} {text[:40]!r}... has {size} bytes; at most {max_bytes} are allowed"
        )
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text):
        raise RegistrationError(f"{what} {text!r} holds a control character")


def _check_words(what: str, text: str) -> None:
    """Names are used as patterns of topic exchanges, where * and # stand for other words."""
    if not {"*", "#"}.isdisjoint(text.split(".")):
        raise RegistrationError(f"{what} {text!r}: a word must not be '*' or '#'")
