"""What an audit counts, and what it finds wrong: the arithmetic on both sides of each limit."""

from dataclasses import replace
from datetime import timedelta

import pytest

from consumer.core.audit import audit, longest_return
from consumer.core.decide import RetryPolicy
from consumer.core.durations import in_words
from consumer.core.findings import (
    Code,
    ConsumerTimeout,
    DatabaseTimeouts,
    Finding,
    Severity,
    Surroundings,
)
from consumer.core.inventory import AuditedHandler, AuditedQueue, Called

VIOLATION, WARNING, NOTE = Severity.VIOLATION, Severity.WARNING, Severity.NOTE
MINUTE = timedelta(minutes=1)
AROUND = Surroundings(deploy_grace=10 * MINUTE, grace=30 * timedelta(seconds=1))


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


PSP = Called("psp", (("client", 1),), calls=1, timeout=s(10), declared=True, budgeted=True,
             named=True)
UNDECLARED = replace(PSP, name="work", layers=(), declared=False, named=False)
CALLING = AuditedHandler(
    name="charge", policy=RetryPolicy(3, s(1), s(300)), attempt_timeout=s(30), max_age=None,
    retention=timedelta(days=30), longest_way_back=timedelta(hours=5), group_size=1,
    names_dependencies=True, dependencies=(PSP,))
GROUPED = replace(CALLING, name="book", group_size=50, names_dependencies=False,
                  dependencies=(UNDECLARED,))


def queue(*handlers: AuditedHandler, prefetch: int = 10, replay_prefetch: int = 10,
          concurrency: int = 2) -> AuditedQueue:
    return AuditedQueue("work", concurrency, prefetch, replay_prefetch, handlers)


def found(handler: AuditedHandler, around: Surroundings = AROUND, *, limit: int = 10,
          **options: int) -> list[Finding]:
    return audit([queue(handler, **options)], around, limit=limit)


def kinds(findings: list[Finding]) -> list[tuple[Code, Severity]]:
    return [(finding.code, finding.severity) for finding in findings]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert found(CALLING) == []
    assert audit([queue()], AROUND, limit=1) == []


@pytest.mark.parametrize(("layers", "calls", "attempts", "calls_in_all"), [
    ((), 1, 3, 3), ((), 4, 3, 12), ((3,), 1, 9, 9), ((3, 3), 1, 27, 27), ((2, 5, 7), 2, 210, 420),
])
def test_layers_multiply_and_calls_multiply_once_more(
    layers: tuple[int, ...], calls: int, attempts: int, calls_in_all: int
) -> None:
    called = replace(PSP, calls=calls, layers=tuple((f"layer {n}", n) for n in layers))
    [path] = replace(CALLING, dependencies=(called,)).paths
    assert (path.attempts, path.calls) == (attempts, calls_in_all)
    assert path.layers[0] == ("framework", 3)


def test_calls_of_all_dependencies_add_up_and_unknown_ones_are_not_zero() -> None:
    mail = replace(PSP, name="mail", calls=2)
    assert replace(CALLING, dependencies=(PSP, mail)).calls == 3 + 6
    assert GROUPED.calls is None
    assert [path.calls for path in GROUPED.paths] == [None]


@pytest.mark.parametrize(("limit", "expected"), [
    (26, [(Code.RETRIES_MULTIPLY, VIOLATION)]), (27, [])])
def test_more_attempts_than_the_limit_are_a_violation(
    limit: int, expected: list[tuple[Code, Severity]]
) -> None:
    called = replace(PSP, layers=(("client library", 3), ("proxy", 3)))
    findings = found(replace(CALLING, dependencies=(called,)), limit=limit)
    assert kinds(findings) == expected
    for finding in findings:
        assert (finding.queue, finding.handler, finding.dependency) == ("work", "charge", "psp")
        assert "27 attempts" in finding.message
        assert "'client library' and 'proxy'" in (finding.remedy or "")


def test_attempts_of_the_framework_alone_count_too() -> None:
    [finding] = found(replace(GROUPED, policy=RetryPolicy(11, s(1), s(300))))
    assert (finding.code, finding.severity) == (Code.RETRIES_MULTIPLY, VIOLATION)
    assert finding.remedy == "lower max_attempts, or accept them with --limit 11"


@pytest.mark.parametrize(("attempts", "expected"), [(3, [(Code.UNLIMITED_RETRIES, WARNING)]),
                                                    (1, [])])
@pytest.mark.parametrize("handler", [CALLING, GROUPED])
def test_retries_without_a_budget_are_a_warning(
    handler: AuditedHandler, attempts: int, expected: list[tuple[Code, Severity]]
) -> None:
    [called] = handler.dependencies
    handler = replace(handler, policy=RetryPolicy(attempts, s(1), s(300)),
                      dependencies=(replace(called, budgeted=False),))
    assert kinds(found(handler)) == expected


@pytest.mark.parametrize(("timeout_s", "calls", "expected"), [
    (30, 1, []), (30.001, 1, [VIOLATION]), (15, 2, []), (15, 3, [VIOLATION])])
def test_calls_fit_into_the_attempt(timeout_s: float, calls: int, expected: list[Severity]) -> None:
    called = replace(PSP, timeout=s(timeout_s), calls=calls)
    findings = found(replace(CALLING, dependencies=(called,)))
    assert kinds(findings) == [(Code.CALL_TIMEOUT, severity) for severity in expected]


def test_dependencies_that_fit_alone_but_not_in_a_row_are_a_warning() -> None:
    two = (replace(PSP, timeout=s(20)), replace(PSP, name="mail", timeout=s(20)))
    assert kinds(found(replace(CALLING, dependencies=two))) == [(Code.CALL_TIMEOUT, WARNING)]


def test_the_timeout_of_a_dependency_that_no_handler_names_binds_nobody() -> None:
    assert found(replace(GROUPED, attempt_timeout=s(5)), prefetch=2) == []


@pytest.mark.parametrize(("statement_s", "idle_s", "expected"), [
    (0, 0, [(Code.STATEMENT_TIMEOUT, NOTE)]),
    (29.999, 0, []), (30, 0, [(Code.STATEMENT_TIMEOUT, VIOLATION)]),
    (5, 10.001, []), (5, 10, [(Code.IDLE_IN_TRANSACTION, VIOLATION)]),
])
def test_the_database_ends_statements_before_attempts_end_and_idles_while_calls_run(
    statement_s: float, idle_s: float, expected: list[tuple[Code, Severity]]
) -> None:
    around = replace(AROUND, database=DatabaseTimeouts(s(statement_s), s(idle_s)))
    assert kinds(found(CALLING, around)) == expected


def test_a_handler_that_calls_nobody_does_not_idle() -> None:
    around = replace(AROUND, database=DatabaseTimeouts(s(5), s(0.001)))
    assert found(GROUPED, around) == []


@pytest.mark.parametrize(("timeout_s", "expected"), [
    (30, [(Code.ATTEMPT_TIMEOUT, VIOLATION), (Code.HAND_OVER, VIOLATION)]),
    (30.001, []),
])
def test_attempts_end_before_the_broker_takes_them_back(
    timeout_s: float, expected: list[tuple[Code, Severity]]
) -> None:
    around = replace(AROUND, consumer_timeouts={"work": ConsumerTimeout(s(timeout_s), "policy")})
    assert kinds(found(CALLING, around, prefetch=2, replay_prefetch=0)) == expected
    other = replace(AROUND, consumer_timeouts={"other": ConsumerTimeout(s(1), "policy")})
    assert found(CALLING, other) == []


@pytest.mark.parametrize(("prefetch", "replays", "concurrency", "handler", "seconds"), [
    (200, 10, 2, GROUPED, 90),       # 210 deliveries are 3 rounds of 2 groups of 50
    (190, 10, 2, GROUPED, 60),
    (200, 10, 2, CALLING, 105 * 30),
    (8, 10, 4, CALLING, 5 * 30),
    (1, 1, 50, CALLING, 30),
])
def test_the_last_in_hand_waits_for_the_rounds_before_it(
    prefetch: int, replays: int, concurrency: int, handler: AuditedHandler, seconds: int
) -> None:
    held = queue(prefetch=prefetch, replay_prefetch=replays, concurrency=concurrency)
    assert held.handed_over_after(handler) == s(seconds)


@pytest.mark.parametrize("bound_s", [31, 59.9, 60, 60.1, 300, 1800])
@pytest.mark.parametrize("handler", [CALLING, GROUPED])
@pytest.mark.parametrize("concurrency", [1, 2, 7])
def test_the_prefetch_of_the_remedy_is_the_largest_that_passes(
    bound_s: float, handler: AuditedHandler, concurrency: int
) -> None:
    fitting = queue(concurrency=concurrency).prefetch_within(handler, s(bound_s))
    least, one_more = (queue(concurrency=concurrency, prefetch=n) for n in (fitting, fitting + 1))
    assert least.handed_over_after(handler) < s(bound_s) <= one_more.handed_over_after(handler)


def test_the_default_queue_passes_with_groups_and_not_with_calls() -> None:
    [note] = found(GROUPED, prefetch=200)
    assert (note.code, note.severity) == (Code.HAND_OVER, NOTE)
    assert "17.143 s on average" in note.message  # 30 min for 105 commands in a row
    [finding] = found(CALLING, prefetch=200)
    assert (finding.code, finding.severity) == (Code.HAND_OVER, VIOLATION)
    assert "prefetch=108, replay_prefetch=10)" in (finding.remedy or "")
    assert found(CALLING, prefetch=108) == []


def test_of_several_handlers_the_worst_is_named() -> None:
    slow = replace(CALLING, name="slow", attempt_timeout=3 * MINUTE)
    [finding] = [f for f in audit([queue(CALLING, slow, prefetch=20)], AROUND, limit=10)
                 if f.code is Code.HAND_OVER]
    assert (finding.handler, finding.severity) == ("slow", VIOLATION)


@pytest.mark.parametrize(("grace_s", "severities"), [(30, []), (29.9, [VIOLATION, NOTE])])
def test_a_drain_waits_for_what_cannot_be_rolled_back(
    grace_s: float, severities: list[Severity]
) -> None:
    around = replace(AROUND, grace=s(grace_s))
    findings = audit([queue(CALLING, GROUPED)], around, limit=10)
    assert kinds(findings) == [(Code.DRAIN_GRACE, severity) for severity in severities]
    assert [finding.handler for finding in findings] == ["charge", "book"][:len(severities)]


@pytest.mark.parametrize(("more", "expected"), [
    (timedelta(0), [(Code.RETENTION, VIOLATION)]), (timedelta.resolution, [])])
def test_keys_are_remembered_longer_than_the_longest_return(
    more: timedelta, expected: list[tuple[Code, Severity]]
) -> None:
    longest = longest_return(CALLING, AROUND.deploy_grace)
    assert longest == timedelta(hours=5, minutes=15)
    assert kinds(found(replace(CALLING, retention=longest + more))) == expected


@pytest.mark.parametrize(("attempts", "base_s", "cap_s", "seconds"), [
    (1, 1, 300, 0), (2, 1, 300, 1), (5, 1, 300, 1 + 2 + 4 + 8), (5, 1, 3, 1 + 2 + 3 + 3),
    (3, 0, 0, 0), (101, 1, 1, 100), (3, 0.15, 10, 0.2 + 0.3),
])
def test_backoffs_are_the_sum_of_their_ceilings_as_the_broker_rounds_them(
    attempts: int, base_s: float, cap_s: float, seconds: float
) -> None:
    handler = replace(CALLING, policy=RetryPolicy(attempts, s(base_s), s(cap_s)))
    assert handler.backoffs == s(seconds)


def test_backoffs_of_a_million_attempts_are_counted_at_once() -> None:
    policy = RetryPolicy(1_000_000, s(1), s(1))
    assert replace(CALLING, policy=policy).backoffs == s(999_999)


@pytest.mark.parametrize(("max_age_s", "seconds"), [(None, 7293), (7300, 7293), (60, 60)])
def test_a_command_takes_its_attempts_and_waits_unless_it_is_too_old_before(
    max_age_s: float | None, seconds: float
) -> None:
    handler = replace(CALLING, max_age=None if max_age_s is None else s(max_age_s))
    assert handler.running == s(90)
    assert handler.backoffs == s(3)
    assert handler.retry_afters == s(7200)
    assert handler.longest == s(seconds)


@pytest.mark.parametrize(("seconds", "words"), [
    (0, "0 s"), (0.25, "250 ms"), (1, "1 s"), (2.5, "2.5 s"), (59.9994, "59.999 s"),
    (60, "1 min"), (90, "1 min 30 s"), (3600, "1 h"), (3605, "1 h"), (5400.4, "1 h 30 min"),
    (86_400 * 30, "30 d"), (90_000, "1 d 1 h"), (59.9999, "60 s"),
])
def test_durations_read_well(seconds: float, words: str) -> None:
    assert in_words(s(seconds)) == words
