"""Dependencies as `consumer status` shows them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from consumer.cli.dependency_state import BreakerState, DependencyState
from consumer.cli.resting import of_workers
from consumer.cli.tables import cell, table

WINDOW_SECONDS = 300

_LONGEST = "amplification (5 min)"
_COLUMNS = ("dependency", _LONGEST, "attempts", "originals", "budget", "denied", "breaker",
            "in flight", "slots")
_TEXTS = ("dependency", "breaker")
_COUNTS = ("attempts", "originals", "succeeded", "failed", "retries_granted", "retries_denied")
_NONE = "-"


def as_dict(dependency: DependencyState) -> dict[str, Any]:
    """What programs get. Counts are of the last `window_seconds`, those of the budget of all time.

    null: `amplification` without originals, `budget` without an account, `slots` without a limit.
    """
    amplification = dependency.amplification
    return {
        "dependency": dependency.name, "workers": dependency.workers,
        "window_seconds": WINDOW_SECONDS,
        "amplification": None if amplification is None else round(amplification, 3),
        **{count: dependency.window.get(count, 0) for count in _COUNTS},
        "budget": dependency.budget and asdict(dependency.budget),
        "breaker": [{"state": b.state, "workers": b.workers, "why": b.why,
                     "since_seconds": None if b.since_seconds is None else round(b.since_seconds, 1)
                     } for b in dependency.breakers],
        "in_flight": dependency.in_flight, "slots": dependency.slots,
    }


def rendered(dependencies: Sequence[DependencyState]) -> RenderableType:
    """What people get: a table, then a line for each breaker that is not closed, and why."""
    shown = table(*_COLUMNS, numbers=tuple(name for name in _COLUMNS if name not in _TEXTS))
    shown.collapse_padding = True
    rows = [_row(each) for each in dependencies]
    for row in rows:
        shown.add_row(*row)
    # Where it is narrow, words are broken and numbers are not.
    for column, name, *cells in zip(shown.columns, _COLUMNS, *rows, strict=True):
        if name not in (*_TEXTS, _LONGEST):
            column.width = max(len(word) for text in (name, *map(str, cells))
                               for word in text.split())
    return Group(shown, *(line for each in dependencies for line in _alarms(each)))


def _row(dependency: DependencyState) -> list[Text]:
    amplification, budget, window = dependency.amplification, dependency.budget, dependency.window
    return [
        cell(dependency.name),
        cell(_NONE if amplification is None else f"{amplification:.2f}"),
        cell(window.get("attempts", 0)), cell(window.get("originals", 0)),
        cell(f"{budget.left}/{budget.capacity}" if budget else _NONE),
        cell(window.get("retries_denied", 0)), _breaker(dependency), cell(dependency.in_flight),
        cell(_NONE if dependency.slots is None else dependency.slots)]


def _breaker(dependency: DependencyState) -> Text:
    alarms = _not_closed(dependency)
    if not alarms:
        closed = any(b.state == "closed" for b in dependency.breakers)
        return cell("closed" if closed else _NONE)
    return cell("\n".join(f"{_words(b)} {b.workers}/{dependency.workers}" for b in alarms),
                _style(alarms))


def _alarms(dependency: DependencyState) -> list[Text]:
    return [cell(f"{dependency.name}: breaker is {_words(b)} in "
                 f"{of_workers(b.workers, dependency.workers)}{b.why and f': {b.why}'}",
                 _style([b])) for b in _not_closed(dependency)]


def _not_closed(dependency: DependencyState) -> list[BreakerState]:
    return [b for b in dependency.breakers if b.state not in {"closed", "none"}]


def _words(breaker: BreakerState) -> str:
    return breaker.state.replace("_", " ")


def _style(breakers: Sequence[BreakerState]) -> str:
    return "bold red" if any(b.state == "open" for b in breakers) else "yellow"
