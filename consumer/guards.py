"""Puts together what stands between a process's handlers and their dependencies."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from consumer.app import App
from consumer.core.breaker import Circuit, State
from consumer.dependency import Dependency
from consumer.ports import BudgetStore, Clock, SlotStore
from consumer.settings import Settings
from consumer.telemetry.metrics import Metrics
from consumer.worker.background import run_beside
from consumer.worker.budgets import Budgets
from consumer.worker.gate import Gate
from consumer.worker.shares import Shares
from consumer.worker.slots import SlotRoom

log = structlog.get_logger("consumer.worker")


@dataclass(frozen=True, slots=True)
class Guards:
    """The gate, and the loops that keep it up to date."""

    gate: Gate
    budgets: Budgets
    shares: Shares


def guards(  # noqa: PLR0913 - what a process has
    app: App, settings: Settings, budget_store: BudgetStore, slot_store: SlotStore, *,
    metrics: Metrics, clock: Clock, worker: UUID, changed: Callable[[], None],
) -> Guards:
    """The guards of one process; nothing runs yet.

    Args:
        worker: Its id in the fleet.
        changed: Called when a breaker changes its state.
    """
    called = dependencies(app)
    budgets = Budgets(budget_store, called, metrics, clock.monotonic)
    room = SlotRoom(called, clock.monotonic, _holds(app))
    shares = Shares(slot_store, called, room, worker, settings.heartbeat, clock.monotonic)
    circuits: dict[str, Circuit] = {}
    gate = Gate(app, budgets, room, circuits, metrics, clock)

    def breaker_changed() -> None:
        gate.breaker_changed()
        changed()

    circuits.update({d.name: _circuit(d, metrics, breaker_changed)
                     for d in called if d.breaker is not None})
    return Guards(gate, budgets, shares)


async def watch(stack: AsyncExitStack, watching: Guards) -> None:
    """Budgets are exchanged and shares renewed until the stack unwinds; the first time now."""
    await watching.shares.renew()
    stack.push_async_callback(watching.shares.leave)
    stack.push_async_callback(watching.budgets.exchange)
    run_beside(stack, watching.budgets.run(), watching.shares.run())


def dependencies(app: App) -> list[Dependency]:
    """All that the app's handlers call, each once: as declared, where any handler names it."""
    found: dict[str, Dependency] = {}
    for entry in app.registrations:
        for dependency in app.dependencies_of(entry):
            if entry.dependencies or dependency.name not in found:
                found[dependency.name] = dependency
    return list(found.values())


def _holds(app: App) -> dict[str, timedelta]:
    """How long slots are held at most, by dependency: by a call, or by a whole attempt."""
    holds = {name: dependency.timeout for name, dependency in app.dependencies.items()}
    for entry in app.registrations:
        if entry.options.hold_slots == "attempt":
            for name in entry.dependencies:
                holds[name] = max(holds[name], entry.options.attempt_timeout)
    return holds


def _circuit(dependency: Dependency, metrics: Metrics, changed: Callable[[], None]) -> Circuit:
    assert dependency.breaker is not None

    def told(state: State) -> None:
        metrics.breaker(dependency.name, state)
        log.warning("breaker", dependency=dependency.name, state=state)
        changed()

    return Circuit(dependency.breaker, dependency.timeout, told)
