"""How an audit is shown: tables and sentences for people, one object for programs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console

from consumer.cli.tables import cell, console, table
from consumer.core.audit import longest_return
from consumer.core.durations import in_words
from consumer.core.findings import Finding, NotChecked, Severity, Surroundings
from consumer.core.inventory import TIMES, AuditedHandler, AuditedQueue, Path

_STYLES = {Severity.VIOLATION: "bold red", Severity.WARNING: "yellow", Severity.NOTE: ""}


@dataclass(frozen=True, slots=True)
class Report:
    """An audit and its findings.

    Args:
        app: Name of the app.
        limit: Most attempts on one path.
    """

    app: str
    limit: int
    queues: Sequence[AuditedQueue]
    around: Surroundings
    findings: Sequence[Finding]
    not_checked: Sequence[NotChecked]

    @property
    def violations(self) -> int:
        """How many findings fail the audit."""
        return sum(finding.severity is Severity.VIOLATION for finding in self.findings)


def print_report(report: Report) -> None:
    """A table for each queue, then what was found, then what could not be checked."""
    out = console()
    for queue in report.queues:
        _print_queue(out, queue, report.around)
    for severity in Severity:
        for finding in report.findings:
            if finding.severity is severity:
                out.print(cell(f"{severity}: {finding.message} [{finding.code}]",
                               _STYLES[severity]), soft_wrap=True)
                if finding.remedy:
                    out.print(cell(f"    {finding.remedy}"), soft_wrap=True)
    for unchecked in report.not_checked:
        out.print(cell(f"not checked: {unchecked.what}: {unchecked.why}; {unchecked.remedy}"),
                  soft_wrap=True)
    out.print(cell(_summary(report)), soft_wrap=True)


def _print_queue(out: Console, queue: AuditedQueue, around: Surroundings) -> None:
    timeout = around.consumer_timeout(queue.name)
    out.print(cell(
        f"queue {queue.name}: concurrency {queue.concurrency}, prefetch {queue.prefetch} + "
        f"{queue.replay_prefetch} for replays, consumer timeout {in_words(timeout.after)} "
        f"({timeout.source})"), soft_wrap=True)
    shown = table("handler", "dependency", "layers", "attempts", "calls", "an attempt",
                  "a command", "returns within", "remembered", numbers=("calls",))
    for handler in queue.handlers:
        for number, path in enumerate(handler.paths):
            first = number == 0
            shown.add_row(
                cell(handler.name if first else ""),
                cell(path.to.name if path.to.declared else "none declared"),
                cell(f" {TIMES} ".join(layer for layer, _ in path.layers)), cell(_attempts(path)),
                cell(path.calls if path.calls is not None else "-"),
                cell(in_words(handler.attempt_timeout) if first else ""),
                cell(_longest(handler) if first else ""),
                cell(in_words(longest_return(handler, around.deploy_grace)) if first else ""),
                cell(in_words(handler.retention) if first else ""))
    out.print(shown)
    out.print()


def _attempts(path: Path) -> str:
    factors = f" {TIMES} ".join(str(attempts) for _, attempts in path.layers)
    return f"{factors} = {path.attempts}" if len(path.layers) > 1 else factors


def _longest(handler: AuditedHandler) -> str:
    """Longest time of a command, and what it is made of."""
    parts = [f"{in_words(handler.running)} running"]
    if handler.backoffs:
        parts.append(f"{in_words(handler.backoffs)} backoff")
    if handler.retry_afters:
        parts.append(f"{in_words(handler.retry_afters)} Retry-After")
    whole = " + ".join(parts)
    capped = handler.max_age is not None and handler.longest == handler.max_age
    return f"{in_words(handler.longest)} (max_age)" if capped else whole


def _summary(report: Report) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    parts = [f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}"
             for severity in Severity]
    return f"{report.app}: {', '.join(parts)}, {len(report.not_checked)} not checked"


def as_dict(report: Report) -> dict[str, Any]:
    """What programs get. Durations are in seconds; what is not known is null."""
    database = report.around.database
    return {
        "app": report.app, "ok": not report.violations, "limit": report.limit,
        "grace_seconds": _s(report.around.grace),
        "deploy_grace_seconds": _s(report.around.deploy_grace),
        "statement_timeout_seconds": database and _s(database.statement),
        "idle_in_transaction_timeout_seconds": database and _s(database.idle_in_transaction),
        "queues": [_queue_dict(queue, report.around) for queue in report.queues],
        "findings": [_finding_dict(finding) for finding in report.findings],
        "not_checked": [{"what": n.what, "why": n.why, "remedy": n.remedy}
                        for n in report.not_checked],
    }


def _queue_dict(queue: AuditedQueue, around: Surroundings) -> dict[str, Any]:
    timeout = around.consumer_timeout(queue.name)
    return {
        "queue": queue.name, "concurrency": queue.concurrency, "prefetch": queue.prefetch,
        "replay_prefetch": queue.replay_prefetch,
        "consumer_timeout_seconds": _s(timeout.after), "consumer_timeout_source": timeout.source,
        "handlers": [_handler_dict(queue, handler, around) for handler in queue.handlers],
    }


def _handler_dict(queue: AuditedQueue, handler: AuditedHandler, around: Surroundings
                  ) -> dict[str, Any]:
    return {
        "handler": handler.name, "max_attempts": handler.policy.max_attempts,
        "group_size": handler.group_size, "calls": handler.calls,
        "paths": [
            {"dependency": path.to.name if path.to.declared else None,
             "layers": [{"layer": layer, "attempts": count} for layer, count in path.layers],
             "attempts": path.attempts, "calls": path.calls, "budgeted": path.to.budgeted,
             "call_timeout_seconds": _s(path.to.timeout) if path.to.declared else None}
            for path in handler.paths],
        "attempt_timeout_seconds": _s(handler.attempt_timeout),
        "running_seconds": _s(handler.running), "backoff_seconds": _s(handler.backoffs),
        "retry_after_seconds": _s(handler.retry_afters),
        "max_age_seconds": None if handler.max_age is None else _s(handler.max_age),
        "longest_seconds": _s(handler.longest), "retention_seconds": _s(handler.retention),
        "longest_return_seconds": _s(longest_return(handler, around.deploy_grace)),
        "handed_over_after_seconds": _s(queue.handed_over_after(handler)),
    }


def _finding_dict(finding: Finding) -> dict[str, str | None]:
    return {"code": finding.code.value, "severity": finding.severity.value,
            "queue": finding.queue, "handler": finding.handler, "dependency": finding.dependency,
            "message": finding.message, "remedy": finding.remedy}


def _s(duration: timedelta) -> float:
    return duration.total_seconds()
