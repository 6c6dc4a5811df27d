"""A call to a dependency, from inside."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from consumer.core.deadline import grpc_timeout, timeout_headers


@dataclass(frozen=True, slots=True)
class Call:
    """What `async with context.call("psp") as call` yields: how much time this call has.

        async with context.call("psp") as call:
            await client.post("/captures", json=…, timeout=call.timeout_s, headers=call.headers)

    Args:
        remaining: Time until it must end: the shortest of the dependency's timeout, the attempt
            and the deadline. By a monotonic clock.
        now: Wall clock, aware.
    """

    remaining: Callable[[], timedelta]
    now: Callable[[], datetime]

    @property
    def timeout(self) -> timedelta:
        """Time left for this call; less each time it is asked for, and never negative."""
        return max(timedelta(0), self.remaining())

    @property
    def timeout_s(self) -> float:
        """`timeout` in seconds."""
        return self.timeout.total_seconds()

    @property
    def headers(self) -> dict[str, str]:
        """`x-deadline-ms` and `x-timeout-ms`, for HTTP services that obey them."""
        return timeout_headers(self.timeout, self.now())

    @property
    def grpc_timeout(self) -> str:
        """Value of the header `grpc-timeout`. Client libraries of gRPC take `timeout_s` instead."""
        return grpc_timeout(self.timeout)
