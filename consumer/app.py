"""An application: its handlers, its queues, what it opens while it runs."""

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from consumer.core.budget import Budget
from consumer.core.classify import Classifier
from consumer.core.names import check_prefix, check_queue_name, check_queue_names
from consumer.dependency import Dependency
from consumer.errors import ConfigurationError, RegistrationError
from consumer.handler import MAX_GROUP_SIZE, Handler, Registration, registered
from consumer.message import DIRECT_REPLY_TO


@dataclass(frozen=True, slots=True)
class Queue:
    """How one work queue is consumed.

    Args:
        name: Its name on the broker.
        concurrency: Transactions at once in a process; each keeps one database connection.
        prefetch: Deliveries held at once; 0 means enough to fill every group twice, and two more
            than transactions where every handler of the queue calls dependencies.
        replay_prefetch: The share of the replay lane.
    """

    name: str
    concurrency: int = 2
    prefetch: int = 0
    replay_prefetch: int = 10

    def __post_init__(self) -> None:
        check_queue_name(self.name)
        for option in ("concurrency", "replay_prefetch"):
            if getattr(self, option) < 1:
                raise RegistrationError(f"queue {self.name!r}: {option} must be at least 1")
        if self.prefetch and self.prefetch < self.concurrency:
            raise RegistrationError(
                f"queue {self.name!r}: prefetch {self.prefetch} cannot keep concurrency "
                f"{self.concurrency} busy", remedy="raise prefetch, or leave it at 0")

    @property
    def live_prefetch(self) -> int:
        """Deliveries of the live lane held at once."""
        return self.prefetch or self.concurrency * MAX_GROUP_SIZE * 2


DIRECT_REPLIES = f"{DIRECT_REPLY_TO}*"
"""RabbitMQ's direct reply-to: names the broker makes, which only the requester listens to."""


def _patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise RegistrationError("reply_patterns is one string, but must be several",
                                remedy='write reply_patterns=["…"]')
    return tuple(patterns)


def _check_budget(budget: object) -> None:
    if budget is not None and not isinstance(budget, Budget):
        raise RegistrationError(f"retry_budget is {budget!r}, but must be a Budget or None",
                                remedy="write retry_budget=Budget(…)")


def _check_dependency(dependency: object) -> None:
    if not isinstance(dependency, Dependency):
        raise RegistrationError(f"dependencies holds {dependency!r}, which is no Dependency",
                                remedy='write App(dependencies=[Dependency("…")])')


@asynccontextmanager
async def _nothing(app: "App") -> AsyncIterator[None]:
    yield None


Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]


class App:
    """Handlers and queues under one prefix.

    Args:
        name: Shown in logs and connection names.
        handlers: Handler classes (made without arguments) or instances.
        queues: Options of queues; a queue that only a handler names has the defaults.
        prefix: Begins the names of the exchanges and delay queues on the broker; one application,
            one prefix.
        deploy_grace: How long a message of an unknown type, or one that fails validation, is
            parked before it dies, so that old and new versions can run side by side.
        lifespan: An async context manager around the work of a process; what it yields is
            `context.resources`.
        dependencies: What the handlers call. A name that only a queue has configures what the
            handlers of that queue have that name no dependency.
        retry_budget: Of such handlers' retries, one for each queue that no `Dependency` is named
            after; None does not limit them.
        classify: Asked what an exception means when a handler does not say; see
            `Handler.classify`.
        reply_patterns: Where replies may go: `reply_to` must match one of these, in which `*`
            stands for any text. Others get none.

    Raises:
        RegistrationError: Something is declared wrongly; nothing was consumed.
    """

    def __init__(  # noqa: PLR0913 - an application is declared in one place
        self, name: str, *, handlers: Iterable[type[Handler[Any]] | Handler[Any]] = (),
        queues: Iterable[Queue] = (), prefix: str = "consumer",
        deploy_grace: timedelta = timedelta(minutes=10), lifespan: Lifespan = _nothing,
        dependencies: Iterable[Dependency] = (),
        retry_budget: Budget | None = Budget(),  # noqa: B008 - it is frozen
        classify: Classifier | None = None,
        reply_patterns: Iterable[str] = (DIRECT_REPLIES,),
    ) -> None:
        check_prefix(prefix)
        if deploy_grace < timedelta(0):
            raise RegistrationError("deploy_grace is negative")
        self.deploy_grace = deploy_grace
        self.name, self.prefix, self.lifespan = name, prefix, lifespan
        _check_budget(retry_budget)
        self.retry_budget, self.classify = retry_budget, classify
        self.reply_patterns = _patterns(reply_patterns)
        self.dependencies: dict[str, Dependency] = {}
        for dependency in dependencies:
            _check_dependency(dependency)
            if dependency.name in self.dependencies:
                raise RegistrationError(f"dependency {dependency.name!r} is declared twice")
            self.dependencies[dependency.name] = dependency
        self.queues: dict[str, Queue] = {}
        queues = list(queues)
        check_queue_names(prefix, [queue.name for queue in queues])
        for queue in queues:
            if queue.name in self.queues:
                raise RegistrationError(f"queue {queue.name!r} is declared twice")
            self.queues[queue.name] = queue
        self._handlers: dict[tuple[str, str], Registration] = {}
        for handler in handlers:
            self.register(handler)

    def register(self, handler: type[Handler[Any]] | Handler[Any]) -> Any:
        """The handler runs in this app. Returns its argument, so it can decorate a class.

        Raises:
            RegistrationError: It is declared wrongly, or clashes with another handler.
        """
        entry = registered(handler() if isinstance(handler, type) else handler)
        slot = (entry.queue, entry.command.command_type)
        if slot in self._handlers:
            raise RegistrationError(
                f"queue {slot[0]!r} has two handlers for {slot[1]!r}: "
                f"{self._handlers[slot].scope!r} and {entry.scope!r}",
                remedy="give one of them a queue of its own")
        if any(other.scope == entry.scope for other in self._handlers.values()):
            raise RegistrationError(f"two handlers are named {entry.scope!r}",
                                    remedy="names are scopes of keys and must differ")
        for name in entry.dependencies:
            if name not in self.dependencies:
                raise RegistrationError(
                    f"handler {entry.scope!r} calls {name!r}, which is not declared",
                    remedy=f"declare it: App(dependencies=[Dependency({name!r}, …)])")
        if entry.queue not in self.queues:
            check_queue_names(self.prefix, [entry.queue])
            self.queues[entry.queue] = Queue(entry.queue)
        self._handlers[slot] = entry
        return handler

    def prefetch(self, queue: str) -> tuple[int, int]:
        """Deliveries of a queue held at once in a process, of the live and of the replay lane."""
        options = self.queues[queue]
        own = [entry for entry in self.registrations if entry.queue == queue]
        if own and not options.prefetch and all(entry.dependencies for entry in own):
            return options.concurrency + 2, min(options.replay_prefetch, options.concurrency + 2)
        return options.live_prefetch, options.replay_prefetch

    def dependencies_of(self, entry: Registration) -> tuple[Dependency, ...]:
        """What a handler calls; for one that names nothing, the one named after its queue."""
        if entry.dependencies:
            return tuple(self.dependencies[name] for name in entry.dependencies)
        own = self.dependencies.get(entry.queue)
        return (Dependency(entry.queue, budget=own.budget if own else self.retry_budget,
                           breaker=None),)

    def handler_for(self, queue: str, command_type: str) -> Registration | None:
        """The handler of that command type on that queue."""
        return self._handlers.get((queue, command_type))

    @property
    def registrations(self) -> list[Registration]:
        """All handlers, in the order they were registered."""
        return list(self._handlers.values())

    def bindings(self) -> Mapping[str, list[str]]:
        """The command types of each work queue."""
        types: dict[str, list[str]] = {name: [] for name in self.queues}
        for queue, command_type in self._handlers:
            types[queue].append(command_type)
        return types


def load(path: str) -> App:
    """The App that `MODULE:ATTRIBUTE` names, importable from the current folder.

    Raises:
        ConfigurationError: The module or attribute does not exist, or is no App.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{path!r} does not name an app", remedy="write MODULE:APP")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise ConfigurationError(f"{module_name} imports {error.name}, which is not installed",
                                     remedy="install what the app needs") from error
        raise ConfigurationError(f"there is no module {module_name!r} here",
                                 remedy="start from the folder that holds it") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise ConfigurationError(f"{path!r} is not a consumer.App")
    return app
