"""An application as an audit sees it."""

from consumer.app import App
from consumer.core.inventory import AuditedHandler, AuditedQueue, Called
from consumer.dependency import Dependency
from consumer.handler import Registration


def inventory(app: App) -> list[AuditedQueue]:
    """The queues of `app` with their handlers, in the order they were declared."""
    return [_queue(app, name) for name in app.queues]


def _queue(app: App, name: str) -> AuditedQueue:
    prefetch, replay_prefetch = app.prefetch(name)
    return AuditedQueue(
        name, app.queues[name].concurrency, prefetch, replay_prefetch,
        tuple(_handler(app, entry) for entry in app.registrations if entry.queue == name))


def _handler(app: App, entry: Registration) -> AuditedHandler:
    options = entry.options
    # A dependency named after the queue counts with the attempts it declares, though none of its
    # handlers' calls are made under it.
    own = None if entry.dependencies else app.dependencies.get(entry.queue)
    return AuditedHandler(
        name=entry.scope, policy=options.policy, attempt_timeout=options.attempt_timeout,
        max_age=options.max_age, retention=options.retention,
        longest_way_back=options.longest_way_back, group_size=entry.group_size,
        names_dependencies=bool(entry.dependencies),
        dependencies=tuple(_called(app, entry, dependency) for dependency in (
            (own,) if own else app.dependencies_of(entry))))


def _called(app: App, entry: Registration, dependency: Dependency) -> Called:
    declared = dependency.name in app.dependencies
    return Called(
        name=dependency.name, layers=tuple(dependency.layers.items()) if declared else (),
        calls=dependency.calls, timeout=dependency.timeout, declared=declared,
        budgeted=dependency.budget is not None, named=dependency.name in entry.dependencies)
