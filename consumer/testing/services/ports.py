"""Free TCP ports on the loopback interface."""

import random
import socket
from collections.abc import Iterable

# Below the ranges from which Linux and macOS take the local ports of outgoing connections:
# a port from there could be in use again before the server has bound it.
_FIRST, _LAST = 20_000, 32_000


def is_free(port: int) -> bool:
    """Whether a server could listen on the port right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(preferred: int | None, taken: Iterable[int]) -> int:
    """A free port that is not among those already chosen.

    Args:
        preferred: Returned if it is free; None for any port.
        taken: Ports promised to other servers that do not listen yet.
    """
    avoid = set(taken)
    if preferred is not None and preferred not in avoid and is_free(preferred):
        return preferred
    candidates = random.sample(range(_FIRST, _LAST), k=200)
    for port in candidates:
        if port not in avoid and is_free(port):
            return port
    raise OSError("no free port on the loopback interface")
