"""From the records of a run to its figures. Pure."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.overload.plan import RunPlan
from benchmarks.overload.provider import Call
from benchmarks.overload.records import Publication, Records
from benchmarks.overload.results import Latency, PhaseResult, Result, Second

RECOVERED_SHARE, RECOVERY_WINDOW_SECONDS, RECOVERY_STEP_SECONDS = 0.95, 2.0, 0.1


def measure(plan: RunPlan, records: Records, finished_at: str) -> Result:
    """The figures of a run.

    Args:
        finished_at: When it ended, for the report.
    """
    times, done = records.times, records.completions
    bounds = [times.start, times.slowed, times.restored, times.end, math.inf]
    names = [*plan.phases.names, "drain"]
    keys = {p.key for p in records.publications}
    refused = {refusal.key: refusal for refusal in records.refusals if refusal.key in keys}
    useful = sum(is_useful(p, records) for p in records.publications)
    known = set(done) | set(refused) | records.waiting
    return Result(
        name=plan.name, configuration=plan.configuration.name, rate=plan.rate,
        variant=str(plan.variant), finished_at=finished_at,
        phases={name: phase_result(records, bounds[i], bounds[i + 1])
                for i, name in enumerate(names)},
        published=len(keys), useful=useful, late=len(keys & set(done)) - useful,
        refused=dict(Counter(refusal.reason for refusal in refused.values())),
        parks=dict(records.parks),
        waiting=len((keys & records.waiting) - set(done) - set(refused)),
        lost=sum(1 for p in records.publications
                 if p.confirmed is not None and p.key not in known),
        unconfirmed=sum(1 for p in records.publications if p.confirmed is None),
        recovery_seconds=recovery(records),
        lag=latency(p.published - p.planned for p in records.publications),
        seconds=seconds(records),
    )


def is_useful(publication: Publication, records: Records) -> bool:
    """Whether the command took effect before its deadline."""
    at = records.completions.get(publication.key)
    return at is not None and at <= publication.deadline


def phase_result(records: Records, begin: float, end: float) -> PhaseResult:
    """What happened in `[begin, end)`."""
    published = [p for p in records.publications if begin <= p.published < end]
    attempts = [call for call in records.calls if begin <= call.arrival < end]
    excess = [over for call in records.calls if (over := _excess(call, begin, end)) > 0]
    by_key = {p.key: p for p in records.publications}
    refused = {refusal.key: refusal.at for refusal in records.refusals}
    return PhaseResult(
        seconds=(min(end, _last(records)) - begin),
        published=len(published),
        originals=sum(begin <= at < end for at in _first_arrivals(records.calls).values()),
        attempts=len(attempts),
        useful=sum(begin <= at < end and key in by_key and at <= by_key[key].deadline
                   for key, at in records.completions.items()),
        excess_calls=len(excess), excess_seconds=sum(excess),
        most_in_flight=most_in_flight(records.calls, begin, end),
        success=latency(records.completions[p.key] - p.published for p in published
                        if p.key in records.completions),
        refusal=latency(refused[p.key] - p.published for p in published if p.key in refused),
    )


def _last(records: Records) -> float:
    """When the last thing happened."""
    return max([records.times.end, *(sample.at for sample in records.samples[-1:])])


def _first_arrivals(calls: Iterable[Call]) -> dict[str, float]:
    """When each command's first call arrived."""
    first: dict[str, float] = {}
    for call in calls:
        first[call.command] = min(call.arrival, first.get(call.command, math.inf))
    return first


def _excess(call: Call, begin: float, end: float) -> float:
    """Seconds in `[begin, end)` the provider worked on a call after its client had hung up."""
    if call.gone is None or call.start is None or call.end is None:
        return 0.0
    return max(0.0, min(call.end, end) - max(call.start, call.gone, begin))


def most_in_flight(calls: Iterable[Call], begin: float, end: float) -> int:
    """Calls queued or executing at once, at most, in `[begin, end)`; exact, not sampled."""
    changes = sorted(  # at one instant those who leave go first
        change for call in calls
        for change in ((call.arrival, 1), (math.inf if call.end is None else call.end, -1)))
    most = now = sum(change for at, change in changes if at < begin)
    for at, change in changes:
        if begin <= at < end:
            now += change
            most = max(most, now)
    return most


def recovery(records: Records) -> float | None:
    """Seconds from restoration until 95 % of the offered rate is done within its deadline.

    It is when the first window of two seconds begins of whose commands, by when they were
    published, 95 % take effect before their deadlines, if that holds for all published from then
    on taken together, too. A burst of old work therefore does not count, nor does a lucky moment.
    None if there is no such window before publishing ends.
    """
    since = sorted((p for p in records.publications if p.published >= records.times.restored),
                   key=lambda p: p.published)
    at = [p.published for p in since]
    good = [0]
    for p in since:
        good.append(good[-1] + is_useful(p, records))
    step = 0
    while True:
        begin = records.times.restored + step * RECOVERY_STEP_SECONDS
        if begin + RECOVERY_WINDOW_SECONDS > records.times.end:
            return None
        first, behind = (bisect_left(at, moment)
                         for moment in (begin, begin + RECOVERY_WINDOW_SECONDS))
        if all(last > first and good[last] - good[first] >= RECOVERED_SHARE * (last - first)
               for last in (behind, len(since))):
            return round(begin - records.times.restored, 3)
        step += 1


def latency(seconds: Iterable[float]) -> Latency:
    """Percentiles, by nearest rank."""
    ordered = sorted(seconds)
    if not ordered:
        return Latency(0)
    return Latency(len(ordered), *(_percentile(ordered, share) for share in (0.5, 0.95, 0.99)))


def _percentile(ordered: Sequence[float], share: float) -> float:
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 1)


def seconds(records: Records) -> list[Second]:
    """The run second by second, from the first command published."""
    start = records.times.start
    by_key = {p.key: p for p in records.publications}

    def count(moments: Iterable[float]) -> Counter[int]:
        return Counter(math.floor(moment - start) for moment in moments)

    published = count(p.published for p in records.publications)
    attempts = count(call.arrival for call in records.calls)
    useful = count(at for key, at in records.completions.items()
                   if key in by_key and at <= by_key[key].deadline)
    refused = count(refusal.at for refusal in records.refusals)
    load: dict[int, int] = {}
    for sample in records.samples:
        second = math.floor(sample.at - start)
        load[second] = max(load.get(second, 0), sample.queued + sample.executing)
    last = max([0, *published, *attempts, *useful, *refused])
    return [Second(at, published[at], attempts[at], useful[at], refused[at], load.get(at, 0))
            for at in range(last + 1)]
