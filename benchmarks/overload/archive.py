"""Results as files, one for each run, so that a single run can be made again."""

import json
from pathlib import Path

from benchmarks.overload.plan import CONFIGURATIONS, Phases
from benchmarks.overload.results import Result, from_json, to_json


def save(result: Result, phases: Phases, folder: Path) -> None:
    """The result is kept; an earlier one of the same run is gone."""
    runs = folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    content = {"phases": [phases.before, phases.slow, phases.after], "result": to_json(result)}
    (runs / f"{result.name}.json").write_text(json.dumps(content, indent=1) + "\n")


def load(phases: Phases, folder: Path) -> dict[str, Result]:
    """All results kept that had these phases, by name, in the order of the report."""
    kept: list[Result] = []
    for file in (folder / "runs").glob("*.json"):
        content = json.loads(file.read_text())
        if content["phases"] == [phases.before, phases.slow, phases.after]:
            kept.append(from_json(content["result"]))
    order = list(CONFIGURATIONS)
    kept.sort(key=lambda r: (r.rate, order.index(r.configuration), r.variant))
    return {result.name: result for result in kept}
