"""Command line of the experiment. Exit code 1: a bar was missed; 2: it was called wrongly."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.overload import archive
from benchmarks.overload.bars import check
from benchmarks.overload.measure import measure
from benchmarks.overload.plan import Phases, RunPlan, Variant, plans
from benchmarks.overload.plots import plot_all
from benchmarks.overload.report import report
from benchmarks.overload.run import perform
from consumer.testing.services.provision import chosen_source, provision

BUSY_LOAD = 0.7


def main() -> int:
    """Make the runs, write the report, check the bars. Returns the exit code."""
    options = _options()
    phases, folder = options.phases, options.out
    with tempfile.TemporaryDirectory(prefix="overload-") as scratch:
        _run_all(options.plans, phases, folder, Path(scratch))
    results = archive.load(phases, folder)
    bars = check(results)
    shown = list(results.values())
    (folder / "report.md").write_text(report(shown, bars, phases, plot_all(shown, phases, folder)))
    _say(f"report: {folder / 'report.md'}")
    missed = [bar for bar in bars if not bar.holds]
    for bar in missed:
        _say(f"MISSED {bar.run}: {bar.claim}: {bar.detail}")
    _say(f"{len(bars) - len(missed)} of {len(bars)} bars hold")
    return 1 if missed else 0


def _run_all(plans: Sequence[RunPlan], phases: Phases, folder: Path, scratch: Path) -> None:
    services_folder = scratch / "services"
    services_folder.mkdir()
    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        _say(f"this machine is busy (load {load:.1f}): the figures will not be what they should")
    _say("starting services")
    with provision(chosen_source(None), lambda: services_folder) as services:
        for number, plan in enumerate(plans, 1):
            _say(f"run {number} of {len(plans)}: {plan.name}")
            logs = scratch / plan.name
            logs.mkdir()
            records = asyncio.run(perform(plan, services, logs, _say))
            result = measure(plan, records, datetime.now(UTC).isoformat(timespec="seconds"))
            archive.save(result, phases, folder)
            slow = result.phases["slow"]
            recovery = result.recovery_seconds
            _say(f"{plan.name}: slow: {slow.goodput:.1f} useful a second, amplification "
                 f"{slow.amplification:.2f}; recovery "
                 f"{'never' if recovery is None else f'{recovery:.1f} s'}; {result.lost} lost")


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201 - progress


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload",
        description="Publishes commands at a fixed rate while their provider slows down and "
        "recovers, once for each configuration, and checks what the protections promise.")
    parser.add_argument("--only", default="a,celery,b,c,d,control",
                        help="configurations  [a,celery,b,c,d,control]")
    parser.add_argument("--rates", default="50,70", help="commands a second  [50,70]")
    parser.add_argument("--variants", default="honours,ignores",
                        help="what the provider does when a client hangs up  [honours,ignores]")
    parser.add_argument("--phases", default="20,30,40",
                        help="seconds healthy, slow, healthy again  [20,30,40]")
    parser.add_argument("--out", type=Path, default=Path("docs/overload"),
                        help="where results and report go; a run replaces its earlier result and "
                        "the report covers all runs of these phases found there  [docs/overload]")
    options = parser.parse_args()
    try:
        before, slow, after = map(float, options.phases.split(","))
        options.phases = Phases(before, slow, after)
        options.plans = plans(
            options.only.split(","), [float(rate) for rate in options.rates.split(",")],
            [Variant(variant) for variant in options.variants.split(",")], options.phases)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main())
