"""How findings about the broker's topology are shown."""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from consumer.broker.check import Finding, State
from consumer.cli.tables import cell, console, table

_STYLES = {State.DECLARED: "green", State.UNCHECKED: "yellow"}


def is_fine(finding: Finding) -> bool:
    """Whether nothing is known to be wrong; what could not be checked is no failure."""
    return finding.state in _STYLES


def print_findings(findings: Sequence[Finding], *, prefix: str, everything: bool) -> None:
    """A table of them, and how many there are of each state.

    Args:
        findings: All of them.
        prefix: The app's prefix.
        everything: List all objects of the delay ladder, not only those held otherwise.
    """
    shown = table("object", "name", "state", "argument", "needed", "there", "remedy")
    folded = Counter[tuple[State, str]]()
    for finding in findings:
        ladder = f"{prefix}.delay." in finding.name and finding.argument is None
        if ladder and not everything:
            folded[finding.state, finding.remedy or ""] += 1
            continue
        shown.add_row(
            cell(finding.kind), cell(finding.name), _state(finding.state),
            *(cell(text or "") for text in (finding.argument, finding.expected, finding.actual,
                                            finding.remedy)))
    for (state, remedy), count in folded.items():
        shown.add_row(cell("delay ladder"), cell(f"{count} objects of {prefix}.delay.*"),
                      _state(state), "", "", "", cell(remedy))
    out = console()
    out.print(shown)
    states = Counter(finding.state for finding in findings)
    out.print(cell(", ".join(f"{count} {state.value}" for state, count in states.items())))
    if any(f.kind == "binding" and f.state is State.UNCHECKED for f in findings):
        out.print(cell("bindings are seen through the management API only: set "
                       "CONSUMER_MANAGEMENT_URL"))


def _state(state: State) -> Text:
    return cell(state.value, _STYLES.get(state, "bold red"))
