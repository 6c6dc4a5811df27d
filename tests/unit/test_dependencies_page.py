"""docs/dependencies.md is true where a machine can tell: options, classification, numbers, code."""

import re
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from consumer import App, Breaker, Budget, Dependency, Handler, Options
from consumer.core.breaker import CallOutcome, Circuit, State
from consumer.core.budget import Account, Wish, exchange
from consumer.core.classify import FailureKind, classify
from consumer.core.durations import in_words
from consumer.core.known_failures import _PROGRAMMING
from consumer.core.replies import refusal
from consumer.message import Delivery, Message
from consumer.outcome import DeadReason
from consumer.wire import Properties

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "dependencies.md").read_text("utf-8")
MESSAGES = (DOCS / "messages.md").read_text("utf-8")


def section(heading: str, page: str = PAGE) -> str:
    """What is between a heading and the next one."""
    [found] = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    return str(found)


def rows(text: str) -> list[list[str]]:
    """The cells of the tables of a text, without their heads."""
    lines = [[cell.strip() for cell in line.strip("| ").split(" | ")]
             for line in text.splitlines() if line.startswith("|")]
    return [cells for place, cells in enumerate(lines)
            if not cells[0].startswith("---") and not (
                place + 1 < len(lines) and lines[place + 1][0].startswith("---"))]


def shown(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, timedelta):
        return in_words(value)
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, Budget | Breaker):
        return f"`{type(value).__name__}()`"
    return "none" if value == frozenset() else f"`{value}`"


def defaults(options: Any) -> dict[str, str]:
    """Name and default of each option, as the page writes them."""
    found = {}
    for field in fields(options):
        value = field.default_factory() if field.default_factory is not MISSING else field.default
        found[field.name] = "required" if value is MISSING else shown(value)
    return found


@pytest.mark.parametrize(("heading", "options"), [
    ("Dependency", Dependency), ("Budget", Budget), ("Breaker", Breaker),
    ("Options of a handler", Options)])
def test_the_options_and_their_defaults_are_those_of_the_code(heading: str, options: Any) -> None:
    documented = {name.strip("`"): default for name, default, _ in rows(section(heading))}
    assert documented == defaults(options)


def http_error(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://provider.test/")
    return httpx.HTTPStatusError("", request=request,
                                 response=httpx.Response(status, headers=headers, request=request))


def kind_of(status: int, **headers: str) -> str:
    """As the page calls it: a kind that `unknown_errors` changes is unknown."""
    error = http_error(status, **headers)
    kinds = {classify(error, unknown=kind).kind for kind in FailureKind}
    return "unknown" if len(kinds) > 1 else kinds.pop().value


def statuses() -> dict[int, str]:
    """What each HTTP status that the page names means, by the page."""
    return {int(status): meaning.partition(";")[0]
            for what, meaning in rows(section("Classification"))
            if "HTTP" in what and "with" not in what
            for status in re.findall(r"\d{3}", what)}


@pytest.mark.parametrize("status", sorted(range(400, 600)))
def test_an_http_status_means_what_the_page_says(status: int) -> None:
    assert kind_of(status) == statuses().get(status, "unknown")


def test_413_with_retry_after_can_pass() -> None:
    assert ["HTTP 413 with `Retry-After`", "transient"] in rows(section("Classification"))
    assert kind_of(413, **{"retry-after": "1"}) == "transient"


def test_the_exceptions_that_are_mistakes_are_all_named() -> None:
    [named] = [what for what, _ in rows(section("Classification")) if "`TypeError`" in what]
    assert set(re.findall(r"`(\w+)`", named)) == {
        *(kind.__name__ for kind in _PROGRAMMING), "ValidationError"}


def test_each_way_to_die_has_the_reason_in_a_reply_that_the_page_says() -> None:
    told = {dead: reason.strip("`") for reason, deads in rows(section("Replies", MESSAGES))
            for dead in re.findall(r"`(\w+)`", deads) if reason.strip("`") in {
                "conflict", "deadline", "malformed"}}
    asked = Delivery(Message(b"{}", Properties(reply_to="r")), "q")
    for why in DeadReason:
        reply = refusal(asked, None, why, "", patterns=["r"])
        assert reply is not None
        reason = Properties.from_wire(reply.properties).headers.decoded()["consumer-refused"]
        assert reason == told.get(why, "dead")


def test_the_code_of_the_page_is_an_app() -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    # Annotations of handlers are read from the module they stand in.
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(code, namespace)
    app = namespace["app"]
    assert isinstance(app, App)
    [entry] = app.registrations
    assert isinstance(entry.handler, Handler)
    assert type(entry.handler.classify(http_error(402))).__name__ == "Permanent"
    assert entry.handler.classify(http_error(503)) is None


def retries_granted(originals_per_s: int, seconds: int) -> int:
    """What the account of a default budget that is full grants in that time, at most."""
    budget, granted = Budget(), 0
    account = Account(budget.most_credits, None, budget.cost)
    for tenth in range(seconds * 10):
        wish = Wish("psp", budget, originals=originals_per_s // 10, wanted=originals_per_s)
        account, more = exchange(account, wish, tenth / 10)
        granted += more
    return granted


@pytest.mark.parametrize(("seconds", "most"), [(60, 627), (15, 172)])
def test_the_worked_example_has_as_many_retries_as_the_budget_grants(
    seconds: int, most: int
) -> None:
    assert f"at most {most}" in section("Numbers")
    # A bound, reached but for the 1 of the floor, and what a full account cannot take in.
    assert most - 2 <= retries_granted(100, seconds) <= most


def test_the_breaker_of_the_worked_example_opens_when_it_says() -> None:
    assert "**15 s**" in section("Numbers")
    circuit, now, calls_per_s = Circuit(Breaker(), timedelta(seconds=10)), 0.0, 25
    for call in range(120 * calls_per_s):
        permit = circuit.try_enter(now)
        if permit is None:
            break
        failing = call >= 60 * calls_per_s
        circuit.leave(permit, now, CallOutcome.FAILURE if failing else CallOutcome.SUCCESS, 0.1)
        now = (call + 1) / calls_per_s
    assert circuit.state(now) is State.OPEN
    assert 14 <= now - 60 <= 15.1


def test_links_lead_somewhere() -> None:
    for name in ("dependencies.md", "messages.md", "metrics.md", "audit.md"):
        for file, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)",
                                       (DOCS / name).read_text("utf-8")):
            text = (DOCS / (file or name)).read_text("utf-8")
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
                       for heading in re.findall(r"^#+ (.*)$", text, re.M)}
            assert not anchor or anchor in anchors, (name, file, anchor)
