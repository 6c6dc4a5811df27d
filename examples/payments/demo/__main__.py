"""Command line of the demonstration. Exit code 1: an identity does not hold."""

import argparse
import asyncio
import sys

from examples.payments.demo.identities import check, figures
from examples.payments.demo.plan import draw
from examples.payments.demo.play import NotDone, perform
from examples.payments.demo.screen import Screen, print_json, print_tables
from examples.payments.demo.stage import stage


def main() -> int:
    """Run it. Returns the exit code."""
    options = _options()
    plan = draw(options.commands, options.seed)
    with Screen(plan) as screen, stage(screen.say, keep=options.keep) as place:
        try:
            done = asyncio.run(perform(plan, place, screen, options.limit))
        except NotDone as error:
            screen.say(str(error))
            return 1
    counts = figures(plan, done.evidence)
    identities = check(plan, done.evidence, done.exit_codes)
    times = {
        "seconds to last effect": round(done.effect_seconds, 1),
        "seconds in all": round(done.seconds, 1),
        "deliveries a second": round(counts["deliveries"] / done.effect_seconds),
    }
    (print_json if options.json else print_tables)(counts, identities, times)
    return 0 if all(identity.holds for identity in identities) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.payments.demo",
        description="Sends payment commands, some of them doubled, spoiled or failing, kills a "
        "worker half way, and checks that each took effect once.")
    parser.add_argument("--commands", type=int, default=2000, help="how many  [2000]")
    parser.add_argument("--seed", type=int, default=1, help="of the draw  [1]")
    parser.add_argument("--limit", type=float, default=170, metavar="SECONDS",
                        help="give up after so long  [170]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--keep", action="store_true",
                        help="leave database and virtual host behind, to look around")
    options = parser.parse_args()
    if options.commands < 400:
        parser.error("--commands must be at least 400, so that each kind of trouble occurs")
    return options


if __name__ == "__main__":
    sys.exit(main())
