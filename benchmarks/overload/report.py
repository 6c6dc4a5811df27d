"""The report: Markdown tables of the results, and the bars."""

from collections.abc import Mapping, Sequence

from benchmarks.overload.bars import Bar
from benchmarks.overload.plan import CONFIGURATIONS, Phases
from benchmarks.overload.results import Latency, Result

_COLUMNS = (
    "configuration", "provider", "originals (slow)", "attempts (slow)",
    "amplification healthy / slow / restored", "useful per s healthy / slow / restored",
    "recovery", "most calls at provider", "excess work", "dead", "parked", "still waiting", "lost",
)
_LATENCY_COLUMNS = ("configuration", "provider", "success healthy", "success slow",
                    "success restored", "refusal slow", "refusal restored")


def report(results: Sequence[Result], bars: Sequence[Bar], phases: Phases,
           plots: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        results: In the order they are shown.
        plots: File names of pictures, by their titles.
    """
    lines = [
        "# Overload: results", "",
        f"Made by `make overload`; [overload.md](../overload.md) tells what is measured. Phases of "
        f"{phases.before:g}, {phases.slow:g} and {phases.after:g} seconds: healthy, slow, "
        "restored.", "",
    ]
    for rate in sorted({result.rate for result in results}):
        at_rate = [result for result in results if result.rate == rate]
        lines += [f"## {rate:g} commands a second", "",
                  *_table(_COLUMNS, [_row(r) for r in at_rate]), "",
                  "Latency from publishing, p50 / p95 / p99 in milliseconds, of the commands "
                  "published in a phase:", "",
                  *_table(_LATENCY_COLUMNS, [_latency_row(r) for r in at_rate]), ""]
    for title, file in plots.items():
        lines += [f"## {title}", "", f"![{title}]({file})", ""]
    lines += ["## What must hold", "", *_table(
        ("", "run", "claim", "measured"),
        [("holds" if bar.holds else "**missed**", bar.run, bar.claim, bar.detail) for bar in bars])]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}",
            *(f"| {' | '.join(row)} |" for row in rows)]


def _row(result: Result) -> Sequence[str]:
    slow = result.phases["slow"]
    during = [result.phases[name] for name in ("healthy", "slow", "restored")]
    excess_calls = sum(phase.excess_calls for phase in result.phases.values())
    excess_seconds = sum(phase.excess_seconds for phase in result.phases.values())
    return (
        CONFIGURATIONS[result.configuration].title, result.variant,
        str(slow.originals), str(slow.attempts),
        " / ".join(f"{phase.amplification:.2f}" for phase in during),
        " / ".join(f"{phase.goodput:.1f}" for phase in during),
        "never" if result.recovery_seconds is None else f"{result.recovery_seconds:.1f} s",
        str(result.most_in_flight), f"{excess_calls} calls, {excess_seconds:.1f} s",
        _counts(result.refused), _counts(result.parks), str(result.waiting), str(result.lost),
    )


def _latency_row(result: Result) -> Sequence[str]:
    healthy, slow, restored = (result.phases[name] for name in ("healthy", "slow", "restored"))
    return (CONFIGURATIONS[result.configuration].title, result.variant, _milliseconds(
        healthy.success), _milliseconds(slow.success), _milliseconds(restored.success),
        _milliseconds(slow.refusal), _milliseconds(restored.refusal))


def _milliseconds(latency: Latency) -> str:
    if latency.p50_ms is None or latency.p95_ms is None or latency.p99_ms is None:
        return "–"  # noqa: RUF001 - a dash for "none"
    return f"{latency.p50_ms:.0f} / {latency.p95_ms:.0f} / {latency.p99_ms:.0f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "0"
