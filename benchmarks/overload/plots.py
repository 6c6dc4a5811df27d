"""Pictures of the runs, for the report."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.overload.plan import CONFIGURATIONS, Phases
from benchmarks.overload.results import Result, Second

_PANELS: tuple[tuple[str, Callable[[Second], int], str], ...] = (
    ("useful completions per s", lambda second: second.useful, "linear"),
    ("calls to the provider per s", lambda second: second.attempts, "linear"),
    ("calls queued or executing at the provider", lambda second: second.in_flight, "symlog"),
    ("commands given up per s", lambda second: second.refused, "linear"),
)


def plot_all(results: Sequence[Result], phases: Phases, folder: Path) -> dict[str, str]:
    """One picture for each rate and kind of provider. Returns file names by title."""
    plots: dict[str, str] = {}
    for rate, variant in sorted({(r.rate, r.variant) for r in results}):
        shown = [r for r in results if (r.rate, r.variant) == (rate, variant)
                 and CONFIGURATIONS[r.configuration].slows]
        if not shown:
            continue
        name = f"{rate:g}-{variant}.png"
        _plot(shown, phases, folder / name)
        plots[f"{rate:g} commands a second, a provider that {variant} hang-ups"] = name
    return plots


def _plot(results: Sequence[Result], phases: Phases, file: Path) -> None:
    figure = Figure(figsize=(9, 11), layout="tight")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for axes, (title, value, scale) in zip(panels, _PANELS, strict=True):
        _draw(axes, results, value)
        axes.axvspan(phases.before, phases.before + phases.slow, color="0.9")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_yscale(scale)
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=8, ncols=3)
    panels[-1].set_xlabel("seconds (grey: the provider is slow)")
    figure.savefig(file, dpi=100)


def _draw(axes: Axes, results: Sequence[Result], value: Callable[[Second], int]) -> None:
    for result in results:
        axes.plot([second.at for second in result.seconds],
                  [value(second) for second in result.seconds],
                  label=CONFIGURATIONS[result.configuration].title, linewidth=1.2)
