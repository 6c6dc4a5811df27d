"""Database addresses, checked before anything could print them."""

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from consumer.errors import ConfigurationError

_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
_RESERVED = re.compile(r"[@/#:?\[\]\s]|%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]*)(:\d{1,5})?")
_NOT_IN_PATH = re.compile(r"[@/#\s]")


@dataclass(frozen=True, slots=True)
class Address:
    """A database address.

    Args:
        dsn: For the driver, secrets included.
        shown: Host, port and database, for people.
    """

    dsn: str = field(repr=False)
    shown: str


def address_of(url: str) -> Address:
    """Read a database URL: postgresql://, postgres:// or postgresql+asyncpg://.

    Raises:
        ConfigurationError: It is not one. No part of it is repeated, it may hold a password.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ConfigurationError("invalid database URL: it does not begin with postgresql://")
    head, _, query = rest.partition("?")
    user, at, place = head.rpartition("@")
    name, _, password = user.partition(":")
    netloc, _, database = place.partition("/")
    if (
        any(map(_RESERVED.search, (name, password)))
        or not all(map(_HOST.fullmatch, netloc.split(",")))
        or _NOT_IN_PATH.search(database)
        or "#" in query or (not at and "@" in query)
    ):
        raise ConfigurationError("invalid URL, is the password percent-encoded?",
                                 remedy="write @ as %40, # as %23, / as %2F, : as %3A, % as %25")
    parameters = [_as_libpq(parameter) for parameter in query.split("&") if parameter]
    dsn = f"postgresql://{head}" + (f"?{'&'.join(parameters)}" if parameters else "")
    return Address(dsn, f"{netloc or 'local socket'}/{unquote(database)}")


def _as_libpq(parameter: str) -> str:
    """SQLAlchemy's `ssl=require` is `sslmode=require` everywhere else."""
    return "sslmode=" + parameter[4:] if parameter.startswith("ssl=") else parameter
