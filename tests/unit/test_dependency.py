"""What apps, handlers and dependencies may declare: nonsense is refused by name, with a remedy."""

from datetime import timedelta
from typing import Any

import pytest

from consumer import (
    App,
    Breaker,
    Budget,
    Command,
    Context,
    Dependency,
    Handler,
    Options,
    Queue,
)
from consumer.errors import ConfigurationError, RegistrationError
from consumer.guards import dependencies

SECOND = timedelta(seconds=1)


class Pay(Command, type="pay"):
    order_id: str


class PayHandler(Handler[Pay]):
    async def handle(self, command: Pay, context: Context) -> None: ...


def handler(name: str = "pay", queue: str = "payments", **attributes: Any) -> type[Handler[Any]]:
    return type("Other", (PayHandler,), {"name": name, "queue": queue, **attributes})


# --- Dependency, Budget, Breaker -------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "is named ''.*short printable name"),
    ({"name": "a\nb"}, "printable"), ({"name": 5}, "is named 5"), ({"name": None}, "is named None"),
    ({"name": "é" * 101}, "longer than 200 bytes"),
    ({"attempts": 0}, "attempts of 'call' is 0.*at least 1"),
    ({"attempts": True}, "attempts of 'call' is True.*whole number"),
    ({"attempts": "3"}, "attempts is '3'.*write attempts="),
    ({"attempts": 2.5}, "attempts is 2.5"), ({"attempts": None}, "attempts is None"),
    ({"attempts": {"sdk": 3, "proxy": 0}}, "attempts of 'proxy' is 0"),
    ({"attempts": {"sdk": 1.5}}, "attempts of 'sdk' is 1.5"),
    ({"timeout": timedelta(0)}, "timeout is .*above 0.*write timeout=timedelta"),
    ({"timeout": -SECOND}, "timeout"), ({"timeout": 10}, "timeout is 10"),
    ({"timeout": None}, "timeout is None"),
    ({"timeout": timedelta(hours=1, seconds=1)}, "at most an hour"),
    ({"calls": 0}, "calls is 0.*at least 1"), ({"calls": None}, "calls is None"),
    *(({limit: value}, f"{limit} is {value}.*at least 1")
      for limit in ("max_in_flight", "max_in_flight_fleet") for value in (0, -1, 2.5, True)),
    ({"budget": 0}, r"budget is 0.*write budget=Budget\("),
    ({"budget": Breaker()}, "budget is Breaker"),
    ({"breaker": True}, r"breaker is True.*write breaker=Breaker\("),
]


@pytest.mark.parametrize(("options", "says"), BAD, ids=lambda value: repr(value)[:60])
def test_a_dependency_that_makes_no_sense_is_refused_by_the_name_of_the_option(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RegistrationError, match=says) as caught:
        Dependency(**{"name": "psp", **options})
    assert isinstance(caught.value, ConfigurationError)
    assert "name" in options or "'psp'" in str(caught.value)


@pytest.mark.parametrize("options", [
    {}, {"name": "é" * 100}, {"attempts": 1, "calls": 1, "max_in_flight": 1},
    {"attempts": {}}, {"attempts": {"sdk": 3}}, {"max_in_flight_fleet": 1},
    {"timeout": timedelta(hours=1)}, {"timeout": timedelta.resolution},
    {"budget": None, "breaker": None}, {"max_in_flight": 5, "max_in_flight_fleet": 3}])
def test_options_at_their_limits_are_accepted(options: dict[str, Any]) -> None:
    assert Dependency(**{"name": "psp", **options}).timeout > timedelta(0)


@pytest.mark.parametrize(("attempts", "product"), [
    (1, 1), (4, 4), ({}, 1), ({"sdk": 3, "proxy": 2, "mesh": 2}, 12)])
def test_attempts_of_all_layers_multiply(attempts: Any, product: int) -> None:
    assert Dependency("psp", attempts=attempts).attempts_per_call == product


@pytest.mark.parametrize(("options", "limited"), [
    ({}, False), ({"max_in_flight": 1}, True), ({"max_in_flight_fleet": 1}, True)])
def test_a_call_needs_a_slot_where_there_is_a_limit(options: dict[str, Any], limited: bool) -> None:
    assert Dependency("psp", **options).limited is limited


@pytest.mark.parametrize(("options", "says"), [
    ({"failure_rate": 0}, "failure_rate is 0.*above 0"), ({"failure_rate": 50}, "failure_rate"),
    ({"failure_rate": None}, "failure_rate"), ({"slow_rate": 0}, "slow_rate"),
    ({"slow_rate": True}, "slow_rate"), ({"minimum_calls": 0}, "minimum_calls is 0"),
    ({"probes": 0}, "probes is 0"), ({"probes": 1.5}, "probes"),
    ({"window": 0}, "window is 0"), ({"window": timedelta(0)}, "window"),
    ({"window": "30s"}, "window"), ({"open_for": timedelta(0)}, "open_for"),
    ({"open_for": 15}, "open_for is 15.*timedelta"), ({"slow_after": -SECOND}, "slow_after"),
    ({"window": 10}, "minimum_calls.*raise window or lower minimum_calls"),
])
def test_a_breaker_that_makes_no_sense_is_refused_by_the_name_of_the_option(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RegistrationError, match=says):
        Breaker(**options)


# --- App -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "says"), [
    ({"dependencies": [Dependency("psp"), Dependency("psp", calls=2)]}, "'psp' is declared twice"),
    ({"dependencies": ["psp"]}, r"holds 'psp'.*write App\(dependencies="),
    ({"dependencies": "psp"}, "which is no Dependency"),
    ({"retry_budget": 0}, r"retry_budget is 0.*write retry_budget=Budget\("),
    ({"retry_budget": 0.1}, "retry_budget is 0.1"),
    ({"reply_patterns": "answers.*"}, r"reply_patterns is one string.*write reply_patterns=\["),
    ({"queues": [Queue("a"), Queue("a")]}, "'a' is declared twice"),
])
def test_an_app_that_makes_no_sense_is_refused_by_the_name_of_the_option(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RegistrationError, match=says):
        App("shop", **options)


@pytest.mark.parametrize(("options", "says"), [
    ({"concurrency": 0}, "concurrency must be at least 1"),
    ({"replay_prefetch": 0}, "replay_prefetch"),
    ({"concurrency": 5, "prefetch": 4}, "prefetch 4.*raise prefetch, or leave it at 0")])
def test_a_queue_that_makes_no_sense_is_refused_by_the_name_of_the_option(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RegistrationError, match=says):
        Queue("payments", **options)


# --- Handler ---------------------------------------------------------------------------------


async def _group(self: Any, commands: Any, contexts: Any) -> None: ...


@pytest.mark.parametrize(("attributes", "says"), [
    ({"dependencies": ("tax",)}, r"calls 'tax'.*not declared.*dependencies=\[Dependency\('tax'"),
    ({"dependencies": "psp"}, r'dependencies is \'psp\'.*write dependencies = \("…",\)'),
    ({"dependencies": (Dependency("psp"),)}, "must be a tuple of names"),
    ({"dependencies": ("psp", "psp")}, "names a dependency twice"),
    ({"options": Options(hold_slots="call")}, "hold_slots is 'call'.*set dependencies"),
    ({"dependencies": ("psp",), "handle_group": _group}, "has handle_group.*write handle"),
])
def test_a_handler_that_makes_no_sense_is_refused_and_told_the_remedy(
    attributes: dict[str, Any], says: str
) -> None:
    with pytest.raises(RegistrationError, match=says):
        App("shop", handlers=[handler(**attributes)], dependencies=[Dependency("psp")])


@pytest.mark.parametrize(("option", "value"), [
    ("unknown_errors", "ignore"), ("hold_slots", "never"), ("hold_slots", None)])
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(
    option: str, value: Any
) -> None:
    with pytest.raises(RegistrationError, match=f"{option} is {value!r}.*one of '"):
        Options(**{option: value})


@pytest.mark.parametrize(("options", "says"), [
    ({"max_age": timedelta(0)}, "max_age must be positive.*None for no limit"),
    ({"min_attempt": -SECOND}, "min_attempt is negative"),
    ({"min_attempt": 31 * SECOND}, "longer than attempt_timeout.*raise attempt_timeout"),
    ({"min_attempt": 2 * SECOND, "max_age": SECOND}, "longer than max_age.*raise max_age"),
    ({"retry_after_cap": timedelta(days=11)}, "10 days.*lower retry_after_cap"),
    ({"max_age": 60}, r"max_age is 60.*write max_age=timedelta"),
])
def test_times_that_exclude_each_other_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RegistrationError, match=says):
        Options(**options)


def test_dependencies_may_be_named_in_any_order_and_are_taken_in_one() -> None:
    declared = [Dependency("psp"), Dependency("mail")]
    app = App("shop", dependencies=declared, handlers=[handler(dependencies=("psp", "mail"))])
    [entry] = app.registrations
    assert entry.dependencies == ("mail", "psp")
    assert app.dependencies_of(entry) == (declared[1], declared[0])


def test_a_handler_with_dependencies_runs_each_command_in_a_transaction_of_its_own() -> None:
    app = App("shop", dependencies=[Dependency("psp")],
              handlers=[handler(dependencies=("psp",)), handler("other", "others")])
    assert [entry.group_size for entry in app.registrations] == [1, 50]


# --- the dependency of handlers that name none -----------------------------------------------

OWN = Budget(capacity=5)


@pytest.mark.parametrize(("options", "budget"), [
    ({}, Budget()), ({"retry_budget": None}, None), ({"retry_budget": OWN}, OWN),
    ({"dependencies": [Dependency("payments", budget=OWN)]}, OWN),
    ({"dependencies": [Dependency("payments", budget=None)]}, None),
])
def test_a_handler_that_names_none_has_one_named_after_its_queue(
    options: dict[str, Any], budget: Budget | None
) -> None:
    app = App("shop", handlers=[handler()], **options)
    [own] = app.dependencies_of(app.registrations[0])
    assert (own.name, own.budget, own.breaker, own.limited) == ("payments", budget, None, False)


def test_a_process_has_each_dependency_of_its_handlers_once_and_no_other() -> None:
    app = App("shop", dependencies=[Dependency("psp"), Dependency("mail"), Dependency("unused")],
              handlers=[handler(dependencies=("psp",)),
                        handler("both", "b", dependencies=("psp", "mail")),
                        handler("none", "c"), handler("none2", "d")])
    assert sorted(d.name for d in dependencies(app)) == ["c", "d", "mail", "psp"]


@pytest.mark.parametrize("first", ["names it", "is of its queue"])
def test_a_dependency_named_like_a_queue_keeps_its_limits_for_those_who_name_it(first: str) -> None:
    """Its breaker and slots are not lost to a handler of that queue that names nothing."""
    payments = Dependency("payments", max_in_flight=1)
    handlers = [handler("naming", "others", dependencies=("payments",)), handler("plain")]
    if first != "names it":
        handlers.reverse()
    assert dependencies(App("shop", dependencies=[payments], handlers=handlers)) == [payments]


@pytest.mark.parametrize(("handlers", "queue", "prefetch"), [
    ([handler(dependencies=("psp",))], Queue("payments", concurrency=3), (5, 5)),
    ([handler(dependencies=("psp",))], Queue("payments", concurrency=20), (22, 10)),
    ([handler(dependencies=("psp",))], Queue("payments", prefetch=40), (40, 10)),
    ([handler()], Queue("payments", concurrency=3), (300, 10)),
    ([], Queue("payments"), (200, 10)),
])
def test_where_all_handlers_call_dependencies_little_is_held_in_advance(
    handlers: list[type[Handler[Any]]], queue: Queue, prefetch: tuple[int, int]
) -> None:
    app = App("shop", dependencies=[Dependency("psp")], handlers=handlers, queues=[queue])
    assert app.prefetch("payments") == prefetch
