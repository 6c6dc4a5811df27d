"""What is wrong with the retries and timeouts on the paths of an application, before it runs.

`consumer.core.inventory` holds the numbers, docs/audit.md the reasons.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from consumer.core.backoff import LONGEST_PARK
from consumer.core.durations import in_words
from consumer.core.findings import (
    Code,
    ConsumerTimeout,
    DatabaseTimeouts,
    Finding,
    Severity,
    Surroundings,
)
from consumer.core.inventory import TIMES, AuditedHandler, AuditedQueue, Path


def audit(queues: Sequence[AuditedQueue], around: Surroundings, *, limit: int) -> list[Finding]:
    """Everything that is wrong with, or worth knowing of, an application's retries.

    Args:
        limit: Most attempts for one command on one path, all layers multiplied.
    """
    found = [*_of_database(around)]
    for queue in queues:
        timeout = around.consumer_timeout(queue.name)
        for handler in queue.handlers:
            found += [*_paths(queue, handler, limit), *_calls(queue, handler),
                      *_database(queue, handler, around.database),
                      *_attempt(queue, handler, timeout), *_drain(queue, handler, around.grace),
                      *_retention(queue, handler, around.deploy_grace)]
        found += _hand_over(queue, timeout)
    return found


def longest_return(handler: AuditedHandler, deploy_grace: timedelta) -> timedelta:
    """How long after a command's first attempt a copy of it can still arrive."""
    return handler.longest_way_back + deploy_grace + LONGEST_PARK


def _finding(
    code: Code, severity: Severity, message: str, remedy: str, queue: AuditedQueue,
    handler: AuditedHandler, dependency: str | None = None,
) -> Finding:
    return Finding(code, severity, f"{handler.name}: {message}", remedy, queue.name, handler.name,
                   dependency)


def _paths(queue: AuditedQueue, handler: AuditedHandler, limit: int) -> Iterator[Finding]:
    for path in handler.paths:
        if path.attempts > limit:
            layers = f" {TIMES} ".join(f"{attempts} {layer}" for layer, attempts in path.layers)
            yield _finding(
                Code.RETRIES_MULTIPLY, Severity.VIOLATION,
                f"{path.attempts} attempts for one command{_towards(path)} ({layers}), more than "
                f"{limit}", _one_owner(path), queue, handler, path.to.name)
        if not path.to.budgeted and handler.policy.max_attempts > 1:
            yield _finding(
                Code.UNLIMITED_RETRIES, Severity.WARNING,
                f"no budget limits its retries{_towards(path)}: while they fail, load can grow "
                f"{path.attempts} times",
                f"give Dependency({path.to.name!r}) a budget" if path.to.declared
                else "give App(retry_budget=…) a Budget", queue, handler, path.to.name)


def _towards(path: Path) -> str:
    return f" on the way to {path.to.name!r}" if path.to.declared else ""


def _one_owner(path: Path) -> str:
    inner = [layer for layer, attempts in path.layers[1:] if attempts > 1]
    accept = f"or accept them with --limit {path.attempts}"
    if not inner:
        return f"lower max_attempts, {accept}"
    return (f"retry in one place: switch retries off in {' and '.join(map(repr, inner))}, so that "
            f"max_attempts and the budget of {path.to.name!r} are all there is; {accept}")


def _calls(queue: AuditedQueue, handler: AuditedHandler) -> Iterator[Finding]:
    limit, too_long = handler.attempt_timeout, False
    for called in handler.named:
        calls = called.calls
        if called.timeout * calls > limit:
            too_long = True
            yield _finding(
                Code.CALL_TIMEOUT, Severity.VIOLATION,
                f"{calls} {TIMES} {in_words(called.timeout)} for calls to {called.name!r} is more "
                f"than attempt_timeout ({in_words(limit)}): attempts end while a call is under way",
                f"lower the timeout of Dependency({called.name!r}) to {in_words(limit / calls)} "
                f"or raise attempt_timeout to {in_words(called.timeout * calls)}",
                queue, handler, called.name)
    if handler.calls_timeout > limit and not too_long:
        yield _finding(
            Code.CALL_TIMEOUT, Severity.WARNING,
            f"calls to all its dependencies, one after the other, may take "
            f"{in_words(handler.calls_timeout)}, more than attempt_timeout ({in_words(limit)})",
            "lower their timeouts, unless they are called at the same time", queue, handler)


def _of_database(around: Surroundings) -> Iterator[Finding]:
    if around.database is not None and not around.database.statement:
        yield Finding(Code.STATEMENT_TIMEOUT, Severity.NOTE,
                      "the database sets no statement_timeout: attempt timeouts cancel statements")


def _database(queue: AuditedQueue, handler: AuditedHandler, limits: DatabaseTimeouts | None
              ) -> Iterator[Finding]:
    if limits is None:
        return
    if limits.statement >= handler.attempt_timeout:
        yield _finding(
            Code.STATEMENT_TIMEOUT, Severity.VIOLATION,
            f"statement_timeout of the database ({in_words(limits.statement)}) is not below "
            f"attempt_timeout ({in_words(handler.attempt_timeout)})",
            "lower it: ALTER ROLE … SET statement_timeout = …; or raise attempt_timeout",
            queue, handler)
    waiting = min(handler.calls_timeout, handler.attempt_timeout)
    if waiting and limits.idle_in_transaction and limits.idle_in_transaction <= waiting:
        yield _finding(
            Code.IDLE_IN_TRANSACTION, Severity.VIOLATION,
            f"its transaction may idle for {in_words(waiting)} while dependencies are called, but "
            "idle_in_transaction_session_timeout of the database is "
            f"{in_words(limits.idle_in_transaction)}",
            "raise it: ALTER ROLE … SET idle_in_transaction_session_timeout = …; or lower the "
            "timeouts of the dependencies", queue, handler)


def _attempt(queue: AuditedQueue, handler: AuditedHandler, timeout: ConsumerTimeout
             ) -> Iterator[Finding]:
    if handler.attempt_timeout >= timeout.after:
        yield _finding(
            Code.ATTEMPT_TIMEOUT, Severity.VIOLATION,
            f"attempt_timeout ({in_words(handler.attempt_timeout)}) is not below the consumer "
            f"timeout ({in_words(timeout.after)}, {timeout.source}): the broker delivers again "
            "what still runs",
            "lower attempt_timeout, or raise consumer-timeout by a policy for the queue",
            queue, handler)


def _drain(queue: AuditedQueue, handler: AuditedHandler, grace: timedelta) -> Iterator[Finding]:
    if grace >= handler.attempt_timeout:
        return
    message = (f"a drain ends after {in_words(grace)}, before an attempt must "
               f"({in_words(handler.attempt_timeout)})")
    remedy = (f"raise CONSUMER_GRACE, or --grace, to {in_words(handler.attempt_timeout)} (and how "
              "long whoever stops workers waits), or lower attempt_timeout")
    if handler.names_dependencies:
        yield _finding(Code.DRAIN_GRACE, Severity.VIOLATION,
                       f"{message}, and calls to other systems cannot be rolled back", remedy,
                       queue, handler)
    else:
        yield _finding(Code.DRAIN_GRACE, Severity.NOTE,
                       f"{message}; it is rolled back and delivered again", remedy, queue, handler)


def _retention(queue: AuditedQueue, handler: AuditedHandler, deploy_grace: timedelta
               ) -> Iterator[Finding]:
    longest = longest_return(handler, deploy_grace)
    if handler.retention <= longest:
        yield _finding(
            Code.RETENTION, Severity.VIOLATION,
            f"retention ({in_words(handler.retention)}) does not cover the longest way back of a "
            f"message: {in_words(handler.longest_way_back)} of attempts and waits, "
            f"{in_words(deploy_grace)} of deploy grace, {in_words(LONGEST_PARK)} parked",
            f"raise retention above {in_words(longest)}", queue, handler)


def _hand_over(queue: AuditedQueue, timeout: ConsumerTimeout) -> Iterator[Finding]:
    """One finding at most, about the handler that is worst."""
    if not queue.handlers:
        return
    held = queue.prefetch + queue.replay_prefetch
    handler = max(queue.handlers, key=queue.handed_over_after)
    after = queue.handed_over_after(handler)
    if after >= timeout.after:
        fitting = queue.prefetch_within(handler, timeout.after)
        remedy = (f"set Queue({queue.name!r}, prefetch={fitting}, "
                  f"replay_prefetch={queue.replay_prefetch}) or lower"
                  if fitting >= queue.concurrency else "lower")
        yield _finding(
            Code.HAND_OVER, Severity.VIOLATION,
            f"the last of {held} deliveries in hand is held for up to {in_words(after)}, not less "
            f"than the consumer timeout ({in_words(timeout.after)}, {timeout.source}): the broker "
            "delivers again what waits here", f"{remedy} attempt_timeout", queue, handler)
        return
    handler = max(queue.handlers, key=queue.one_by_one_after)
    if queue.one_by_one_after(handler) >= timeout.after:
        yield _finding(
            Code.HAND_OVER, Severity.NOTE,
            f"groups of up to {handler.group_size}: the last of {held} deliveries in hand stays "
            f"within the consumer timeout ({in_words(timeout.after)}, {timeout.source}) while "
            f"commands take less than {in_words(queue.longest_command_within(timeout.after))} on "
            "average", f"if they can be slower, lower the prefetch of Queue({queue.name!r})",
            queue, handler)
