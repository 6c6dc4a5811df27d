"""One retry budget for a whole fleet of processes, whatever else is in the queue, and whoever is
restarted or killed (B26).
"""

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import pika  # type: ignore[import-untyped]
import pytest
from database import fetch
from processes import Fleet, environment, run, wait_until
from rabbit import DeadLetter, Publication, dead_letters, publish

from consumer.testing.plugin import Database, Vhost

pytestmark = pytest.mark.acceptance

# 150 commands run for the first time, each earns a fifteenth of a retry, and there is no floor.
TRANSIENT, PERMANENT, DUPLICATES, CONFLICTS, RETRIES = 100, 50, 50, 20, 10
APP = """
import os
from datetime import timedelta
from consumer import App, Budget, Command, Context, Dependency, Handler, Options, Queue

class Do(Command, type="work.do"):
    what: str
    note: str = ""

class Doing(Handler[Do]):
    name, queue = "work.do", "work"
    options = Options(max_attempts=12, group_size=1,
                      backoff_base=timedelta(milliseconds=50),
                      backoff_cap=timedelta(milliseconds=200))

    async def handle(self, command: Do, context: Context) -> None:
        with open(os.environ["RUNS"], "a") as runs:  # no transaction takes it back
            runs.write(f"{context.key} {context.attempt}\\n")
        raise {"transient": ConnectionError, "permanent": KeyError}[command.what](context.key)

app = App("work", handlers=[Doing], queues=[Queue("work", concurrency=2, prefetch=10)],
          dependencies=[Dependency("work", budget=Budget(1 / 15, 10, floor_per_minute=0))])
"""
KEYS = [f"t-{n}" for n in range(TRANSIENT)]
DOOMED = [f"p-{n}" for n in range(PERMANENT)]


def command(key: str, note: str = "") -> Publication:
    what = "transient" if key.startswith("t") else "permanent"
    body = f'{{"what": "{what}", "note": "{note}"}}'
    return Publication("work.do", body.encode(), headers={"idempotency-key": key})


def firsts() -> list[Publication]:
    """One message for each key."""
    return [command(key) for key in KEYS + DOOMED]


def others() -> list[Publication]:
    """Duplicates, and conflicts: the same keys with another payload."""
    half = DUPLICATES // 2
    return [*map(command, KEYS[:half] + DOOMED[:half]),
            *(command(key, "differs") for key in KEYS[-CONFLICTS:])]


def mixed(messages: list[Publication]) -> list[Publication]:
    return random.Random(26).sample(messages, len(messages))


@dataclass
class Works:
    """Three worker processes on one queue, and what they leave behind."""

    fleet: Fleet
    amqp_url: str
    database_url: str
    runs_file: Path

    def send(self, messages: list[Publication]) -> None:
        """They are in the queue."""
        assert publish(self.amqp_url, messages) == len(messages)

    def start(self) -> None:
        for _ in range(3):
            self.fleet.worker("budget_app:app")

    def stop(self) -> None:
        """All have ended as a deploy ends them."""
        assert [self.fleet.stop(process) for process in list(self.fleet.running)] == [0, 0, 0]

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Key and attempt of each run of the handler that has begun."""
        written = self.runs_file.read_text() if self.runs_file.exists() else ""
        return [(key, int(attempt)) for key, attempt in map(str.split, written.splitlines())]

    @property
    def retries(self) -> int:
        return sum(attempt > 1 for _, attempt in self.runs)

    def others_are_settled(self) -> bool:
        """Whether each conflict and each duplicate has come to its end."""
        why = Counter(line["why"] for line in self.fleet.lines() if line["event"] == "settled")
        return (why["key_conflict"], why["superseded"] + why["dead"]) == (CONFLICTS, DUPLICATES)

    def parked(self) -> dict[str, list[datetime]]:
        """When each command was parked for want of budget, as often as it was."""
        found = defaultdict(list)
        for line in self.fleet.lines():
            if line["event"] == "settled" and line["why"] == "budget":
                found[line["key"]].append(datetime.fromisoformat(line["timestamp"]))
        return {key: sorted(times) for key, times in found.items()}

    def each_parked(self, times: int, before: Mapping[str, Sized] = MappingProxyType({})) -> bool:
        """Whether each command that can be retried was parked so often, `before` not counted."""
        assert self.fleet.all_alive()
        parked = self.parked()
        return all(len(parked.get(key, ())) >= len(before.get(key, ())) + times for key in KEYS)

    def claims(self) -> Counter[str]:
        """How many are in which state, by the first letter of their keys."""
        found = fetch(self.database_url, "SELECT left(key, 1), state FROM consumer.claim")
        return Counter(f"{kind} {state}" for kind, state in found)

    def letters(self, number: int) -> list[DeadLetter]:
        """All dead letters, once there are so many distinct ones."""
        found: list[DeadLetter] = []

        def there() -> bool:
            found[:] = dead_letters(self.amqp_url, "work")
            return len({(letter.reason, letter.message_id) for letter in found}) == number

        wait_until(there, f"{number} dead letters")
        return found

    def copies(self) -> list[str]:
        """Keys of the copies that wait in delay queues; they are taken out."""
        keys: list[str] = []
        with pika.BlockingConnection(pika.URLParameters(self.amqp_url)) as connection:
            channel = connection.channel()

            def all_found() -> bool:
                for queue in ("work", *(f"consumer.delay.{level:02}" for level in range(24))):
                    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                        keys.append(got[1].headers["idempotency-key"])
                return set(keys) >= set(KEYS)

            wait_until(all_found, "a copy of each command that waits")
        return keys


@pytest.fixture
def works(consumer_vhost: Vhost, consumer_database: Database, tmp_path: Path) -> Iterator[Works]:
    """The queue is there, and nobody works yet."""
    (tmp_path / "budget_app.py").write_text(APP)
    runs = tmp_path / "runs"
    env = environment(consumer_vhost.url, consumer_database.url, PYTHONPATH=str(tmp_path),
                      RUNS=str(runs))
    run(["consumer", "topology", "apply", "budget_app:app"], env)
    with Fleet(env, tmp_path) as fleet:
        yield Works(fleet, consumer_vhost.url, consumer_database.url, runs)


def test_a_fleet_makes_as_many_retries_as_its_budget_allows_and_no_more(works: Works) -> None:
    """Each command runs once, whatever its budget, and ten retries are made, not ten in each of
    three processes. Permanent failures, duplicates and conflicts take none. The others wait in
    delay queues, longer each time, and a restart of all processes grants nothing.
    """
    works.send(mixed(firsts()))
    works.start()
    wait_until(lambda: works.claims().total() == TRANSIENT + PERMANENT, "each has run")
    # A duplicate that comes in the instant between a rollback and its record runs as an original.
    works.send(mixed(others()))
    wait_until(works.others_are_settled, "conflicts and duplicates are settled")
    wait_until(lambda: works.each_parked(2), "all that can be retried wait for budget")
    reasons = Counter(letter.reason for letter in works.letters(PERMANENT + CONFLICTS))
    assert reasons == {"permanent": PERMANENT, "key_conflict": CONFLICTS}
    assert Counter(attempt for _, attempt in works.runs)[1] == TRANSIENT + PERMANENT
    assert works.retries == RETRIES
    works.stop()
    before = works.parked()
    works.start()
    wait_until(lambda: works.each_parked(1, before), "the new workers have met each of them")
    works.stop()
    assert len(works.runs) == TRANSIENT + PERMANENT + RETRIES, "a restart is no reason to retry"
    assert works.claims() == {"t retrying": TRANSIENT, "p dead": PERMANENT}
    [account] = fetch(works.database_url, "SELECT originals, granted - returned AS spent "
                      "FROM consumer.retry_budget WHERE dependency = 'work'")
    assert tuple(account) == (TRANSIENT + PERMANENT, RETRIES)
    retried = {key for key, attempt in works.runs if attempt > 1}
    for times in (times for key, times in works.parked().items() if key not in retried):
        for number, (sooner, later) in enumerate(itertools.pairwise(times)):
            # Waits of 1, 2 and 4 seconds, seen from when the broker's confirm was logged.
            assert (later - sooner).total_seconds() > 0.5 * 2**number, "none comes back hot"
    assert sorted(works.copies()) == sorted(KEYS)


def test_a_worker_killed_at_any_moment_neither_lifts_the_bound_nor_loses_a_message(
    works: Works
) -> None:
    """What it had begun comes again, and earns nothing a second time; what it had been granted and
    had not used is lost. The dead are dead, and all others wait.
    """
    works.send(mixed(firsts() + others()))
    moment = random.SystemRandom().randint(1, TRANSIENT + PERMANENT + RETRIES - 5)
    works.start()
    wait_until(lambda: len(works.runs) >= moment, f"{moment} runs")
    works.fleet.kill(works.fleet.running[0])
    killed = f"one worker was killed after {moment} runs"
    works.fleet.worker("budget_app:app")
    wait_until(lambda: works.each_parked(2), f"{killed}; all wait for budget")
    letters = {(letter.reason, letter.message_id)
               for letter in works.letters(PERMANENT + CONFLICTS)}
    works.stop()
    assert works.retries <= RETRIES, killed
    assert {key for key, _ in works.runs} == {*KEYS, *DOOMED}, killed
    assert works.claims() == {"t retrying": TRANSIENT, "p dead": PERMANENT}, killed
    assert Counter(reason for reason, _ in letters) == {
        "permanent": PERMANENT, "key_conflict": CONFLICTS}, killed
    assert set(works.copies()) == set(KEYS), killed
