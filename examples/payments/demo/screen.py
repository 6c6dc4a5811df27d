"""What is seen of the demonstration: progress while it runs, a table when it ends."""

import json
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.payments.demo.evidence import Progress as Seen
from examples.payments.demo.identities import Identity
from examples.payments.demo.plan import Plan


class Screen:
    """Live progress, on standard error."""

    def __init__(self, plan: Plan) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), console=self._console)
        good = len(plan.good)
        self._sent = self._bars.add_task("sent", total=len(plan.deliveries))
        self._effects = self._bars.add_task("effects", total=good)
        self._receipts = self._bars.add_task("receipts", total=good)
        self._dead = self._bars.add_task("dead letters", total=None)
        self._outbox = self._bars.add_task("in outbox", total=None)

    def __enter__(self) -> "Screen":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bars.stop()

    def say(self, line: str) -> None:
        """One line above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, sent: int, seen: Seen) -> None:
        """The bars stand where the work stands."""
        for bar, completed in ((self._sent, sent), (self._effects, seen.effects),
                               (self._receipts, seen.receipts), (self._dead, seen.dead),
                               (self._outbox, seen.outbox)):
            self._bars.update(bar, completed=completed)


def print_tables(
    figures: dict[str, int], identities: list[Identity], times: dict[str, float]
) -> None:
    """The result for people, on standard output."""
    console = Console()
    counts = Table("figure", "count")
    counts.columns[1].justify = "right"
    for name, number in [*figures.items(), *times.items()]:
        counts.add_row(name, f"{number:,}")
    console.print(counts)
    for identity in identities:
        mark = "[green]✓[/]" if identity.holds else "[red]✗[/]"
        console.print(mark, identity.claim, f"[dim]{identity.detail}[/]", soft_wrap=True)


def print_json(
    figures: dict[str, int], identities: list[Identity], times: dict[str, float]
) -> None:
    """The result for programs, on standard output."""
    print(json.dumps({  # noqa: T201 - this is what was asked for
        "figures": figures,
        "times": times,
        "identities": [{"claim": i.claim, "holds": i.holds, "detail": i.detail}
                       for i in identities],
    }, indent=2))
