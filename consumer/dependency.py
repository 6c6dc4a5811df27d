"""What handlers call: named, with a retry budget, a breaker and a limit of calls in flight."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from consumer.core.breaker import Breaker
from consumer.core.budget import Budget
from consumer.errors import RegistrationError

MAX_NAME_BYTES = 200
_LONGEST_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Dependency:
    """Something handlers call, which can be slow or away.

        App("shop", handlers=[Charge], dependencies=[
            Dependency("psp", timeout=timedelta(seconds=2), max_in_flight_fleet=20)])

    Args:
        name: Handlers name it in `dependencies`. That of a queue gives its budget to the handlers
            of that queue that name none, too; breaker and slots need a handler that names it.
        attempts: Attempts that something inside one call makes, a client library or a proxy, say;
            or those of each such layer by its name. Declared, so that `consumer audit` counts them.
        timeout: Of one call, all of those attempts included.
        calls: Calls that one attempt of a handler makes at most, for `consumer audit`.
        max_in_flight: Calls at once in a process; None is no limit.
        max_in_flight_fleet: Calls at once in all processes together; None is no limit.
        budget: Of retries; None does not limit them.
        breaker: When it counts as broken; None never does.

    Raises:
        RegistrationError: A value makes no sense; the message names it and the remedy.
    """

    name: str
    attempts: int | Mapping[str, int] = 1
    timeout: timedelta = timedelta(seconds=10)
    calls: int = 1
    max_in_flight: int | None = None
    max_in_flight_fleet: int | None = None
    budget: Budget | None = field(default_factory=Budget)
    breaker: Breaker | None = field(default_factory=Breaker)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise RegistrationError(f"a dependency is named {self.name!r}",
                                    remedy="give it a short printable name")
        if len(self.name.encode()) > MAX_NAME_BYTES:
            raise RegistrationError(
                f"dependency {self.name[:40]!r}: its name is longer than {MAX_NAME_BYTES} bytes")
        layers: object = self.attempts
        if not isinstance(layers, int | Mapping):
            raise RegistrationError(
                f"dependency {self.name!r}: attempts is {layers!r}, but must be a whole number, or "
                "those of each layer by its name", remedy='write attempts={"sdk": 3}, say')
        for layer, attempts in self.layers.items():
            self._at_least_one(f"attempts of {layer!r}", attempts)
        self._at_least_one("calls", self.calls)
        for option in ("max_in_flight", "max_in_flight_fleet"):
            if getattr(self, option) is not None:
                self._at_least_one(option, getattr(self, option))
        if not isinstance(self.timeout, timedelta) \
                or not timedelta(0) < self.timeout <= _LONGEST_TIMEOUT:
            raise RegistrationError(
                f"dependency {self.name!r}: timeout is {self.timeout!r}, but must be a timedelta "
                "above 0 and at most an hour", remedy="write timeout=timedelta(seconds=…)")
        for option, kind in (("budget", Budget), ("breaker", Breaker)):
            value = getattr(self, option)
            if value is not None and not isinstance(value, kind):
                raise RegistrationError(
                    f"dependency {self.name!r}: {option} is {value!r}, but must be a "
                    f"{kind.__name__} or None", remedy=f"write {option}={kind.__name__}(…)")

    def _at_least_one(self, option: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RegistrationError(f"dependency {self.name!r}: {option} is {value!r}, but must be "
                                    "a whole number, at least 1")

    @property
    def layers(self) -> Mapping[str, int]:
        """Attempts by the layer inside a call that makes them."""
        return {"call": self.attempts} if isinstance(self.attempts, int) else self.attempts

    @property
    def attempts_per_call(self) -> int:
        """How often one call may reach the dependency: the product of its layers."""
        product = 1
        for attempts in self.layers.values():
            product *= attempts
        return product

    @property
    def limited(self) -> bool:
        """Whether a call needs a slot."""
        return self.max_in_flight is not None or self.max_in_flight_fleet is not None
