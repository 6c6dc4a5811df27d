"""Service URLs: checked, built and shown, without their secrets leaking."""

from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from consumer.testing.services.errors import ServicesError

DEFAULT_PORTS = {
    "amqp": 5672,
    "amqps": 5671,
    "postgresql": 5432,
    "postgres": 5432,
    "http": 80,
    "https": 443,
}


def parse(url: str, *, source: str) -> SplitResult:
    """Split a URL that has a known scheme, a host and a valid port.

    Args:
        url: The URL; never echoed, since a part that fails to parse may be the password.
        source: Where the URL came from, to be named in the error.

    Raises:
        ServicesError: The URL cannot be what was meant, most often because its password
            holds a character that had to be percent-encoded.
    """
    try:
        parts = urlsplit(url)
        sound = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound, parts = False, urlsplit("")
    # An `@` after the host, or a second one before it, is the tail of an unencoded password.
    stray = parts.netloc.count("@") > 1 or "@" in parts.path + parts.query + parts.fragment
    if not sound or stray:
        raise ServicesError(
            f"{source} is not a valid URL", remedy="is its password percent-encoded?"
        )
    if _scheme(parts) not in DEFAULT_PORTS:
        raise ServicesError(f"{source} has a scheme that is not one of {', '.join(DEFAULT_PORTS)}")
    return parts


def address(url: str, *, source: str = "the URL") -> tuple[str, int]:
    """Host and port of a URL, with the scheme's port where it names none."""
    parts = parse(url, source=source)
    return parts.hostname or "", parts.port or DEFAULT_PORTS[_scheme(parts)]


def credentials(url: str) -> tuple[str, str]:
    """User name and password of a URL, decoded; RabbitMQ's `guest` where it names none."""
    parts = parse(url, source="the URL")
    return unquote(parts.username or "guest"), unquote(parts.password or "guest")


def with_path(url: str, name: str) -> str:
    """The same URL for another virtual host or database, percent-encoded."""
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(name, safe="")))


def build(scheme: str, *, user: str, password: str, port: int, path: str = "") -> str:
    """A URL of a service on the loopback interface."""
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@127.0.0.1:{port}{path}"


def management_of(amqp_url: str) -> str:
    """The management API that belongs to a broker, on its standard port."""
    parts = parse(amqp_url, source="CONSUMER_AMQP_URL")
    scheme, port = ("https", 15671) if parts.scheme == "amqps" else ("http", 15672)
    userinfo, _, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{scheme}://{userinfo or 'guest:guest'}@{host}:{port}"


def _scheme(parts: SplitResult) -> str:
    return parts.scheme.partition("+")[0]
