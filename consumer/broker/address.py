"""Addresses of the broker, and texts that are free of what is secret in them."""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from yarl import URL

from consumer.errors import ConfigurationError

_KNOWN_PARAMETERS = frozenset((
    "cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl", "auth", "heartbeat",
    "timeout", "name", "interleave", "happy_eyeballs_delay",
))
_PARTS = re.compile(
    r"(?P<scheme>amqps?)://"
    r"(?:(?P<user>[^:@/?#]*)(?::(?P<password>[^:@/?#]*))?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:@/?#\[\]\s]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^@?#\s]*)?(?:\?(?P<query>[^@#\s]*))?"
)
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def parse_address(text: str) -> URL:
    """The URL of a broker: `amqp://user:password@host:port/vhost`, or `amqps://`.

    Raises:
        ConfigurationError: It is not one. Nothing of it is in the message.
    """
    found = _PARTS.fullmatch(text.strip())
    if found is None or _STRAY_PERCENT.search(text) or not 0 < int(found["port"] or 1) < 65536:
        raise ConfigurationError("invalid URL, is the password percent-encoded?")
    try:
        url = URL(text.strip())
    except ValueError:
        # The cause quotes the URL.
        raise ConfigurationError("invalid URL, is the password percent-encoded?") from None
    if not _KNOWN_PARAMETERS.issuperset(url.query):
        raise ConfigurationError(
            "invalid URL: unknown parameter after the '?'",
            remedy=f"known are {', '.join(sorted(_KNOWN_PARAMETERS))}",
        )
    return url


def vhost_of(url: URL) -> str:
    """The virtual host a URL leads to, as the client library reads it."""
    return url.path[1:].replace("%2F", "/") or "/"


def without_secrets(text: str, urls: Iterable[URL]) -> str:
    """`text` with the passwords of `urls` replaced, percent-encoded or not."""
    for url in urls:
        for secret in (url.raw_password, url.password, unquote(url.raw_password or "")):
            if secret:
                text = text.replace(secret, "***")
    return text


def describe(error: BaseException, url: URL) -> str:
    """One line on `error`, without the password of `url`."""
    lines = str(error).split("\n")
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    return without_secrets(text, (url,))
