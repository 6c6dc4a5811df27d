"""Names of handlers, queues and commands are checked when they are registered (B37)."""

from datetime import timedelta
from typing import Any, Generic, TypeVar

import pytest

from consumer import App, Command, ConsumerError, Context, Handler, Queue
from consumer.core.names import MAX_QUEUE_BYTES, check_command_type, check_queue_name
from consumer.errors import RegistrationError

GOOD = ["o'rders", 'a"b', "x; DROP TABLE claims;--", "orders.v1", "Orders", "orders", "日本",
        "a" * MAX_QUEUE_BYTES, "日" * (MAX_QUEUE_BYTES // 3), "orders dead", "a.dead.b", "*a", "#a"]
BAD = ["", "a" * 250, "日" * 70, "amq.mine", "amq.", "a\nb", "a\x00", "a\x7f", "a\x85b",
       "orders.dead", "orders.replay", ".dead", "*", "#", "a.*", "#.b", "a.#.b", "\ud800"]


class Pay(Command, type="pay"):
    order: str


class PayHandler(Handler[Pay]):
    name, queue = "pay", "payments"

    async def handle(self, command: Pay, context: Context) -> None: ...


def handler(**attributes: Any) -> type[Handler[Any]]:
    """A handler like PayHandler, but for `attributes`."""
    return type("Other", (PayHandler,), attributes)


@pytest.mark.parametrize("name", GOOD)
def test_odd_names_are_names(name: str) -> None:
    check_queue_name(name)
    App("shop", handlers=[handler(queue=name)])
    App("shop", queues=[Queue(name)])


@pytest.mark.parametrize("name", BAD)
def test_what_the_broker_or_we_could_not_hold_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError):
        check_queue_name(name)
    with pytest.raises(RegistrationError):
        Queue(name)
    with pytest.raises(RegistrationError):
        App("shop", handlers=[handler(queue=name)])


@pytest.mark.parametrize("name", ["shop.unroutable", "shop.delay.05", "shop.delay.deliver"])
def test_names_of_our_own_queues_are_refused_under_their_prefix(name: str) -> None:
    with pytest.raises(RegistrationError, match="collides"):
        App("shop", queues=[Queue(name)], prefix="shop")
    App("shop", queues=[Queue(name)], prefix="other")


def test_names_equal_in_their_first_63_bytes_are_two_names() -> None:
    names = ["q" * 63 + "a", "q" * 63 + "b"]
    app = App("shop", handlers=[handler(queue=names[0], name="one"),
                                handler(queue=names[1], name="two")])
    assert set(app.bindings()) == set(names)


def test_names_that_differ_in_case_are_two_names() -> None:
    app = App("shop", queues=[Queue("Orders"), Queue("orders")])
    assert list(app.queues) == ["Orders", "orders"]


@pytest.mark.parametrize("prefix", ["", "amq", "amq.x", "a b", "é", "a/b", "x" * 114, "a\n", "a*"])
def test_bad_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(RegistrationError, match="prefix"):
        App("shop", prefix=prefix)


@pytest.mark.parametrize("type_", ["a" * 256, "é" * 128, "a.*", "#", "a\nb", "\ud800"])
def test_bad_command_types_are_refused_at_the_class(type_: str) -> None:
    with pytest.raises(RegistrationError, match="command type"):
        type("Bad", (Command,), {}, type=type_)
    with pytest.raises(RegistrationError):
        check_command_type(type_)


@pytest.mark.parametrize("options", [
    {"concurrency": 0}, {"concurrency": -1}, {"replay_prefetch": 0}, {"prefetch": 1}])
def test_bad_options_of_a_queue_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(RegistrationError, match="orders"):
        Queue("orders", **options)


@pytest.mark.parametrize(("attributes", "message"), [
    ({"name": ""}, "no name"), ({"name": "a\nb"}, "no name"), ({"name": "é" * 101}, "200 bytes"),
    ({"queue": ""}, "no queue"), ({"command": None}, "no command"),
    ({"command": Command}, "no command"),
    ({"handle": lambda self, command, context: None}, "async"),
    ({"handle_group": lambda self, commands, contexts: None}, "async"),
])
def test_a_handler_that_cannot_run_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistrationError, match=message) as caught:
        App("shop", handlers=[handler(**attributes)])
    assert isinstance(caught.value, ConsumerError)


def test_a_generator_is_no_handler() -> None:
    async def handle(self: Any, command: Pay, context: Context) -> Any:
        yield

    with pytest.raises(RegistrationError, match="async"):
        App("shop", handlers=[handler(handle=handle)])


def test_a_handler_without_methods_is_refused() -> None:
    class Idle(Handler[Pay]):
        name, queue = "idle", "payments"

    with pytest.raises(RegistrationError, match="neither"):
        App("shop", handlers=[Idle])


def test_a_group_handler_needs_no_other_method() -> None:
    class Grouped(Handler[Pay]):
        name, queue = "grouped", "payments"

        async def handle_group(self, commands: Any, contexts: Any) -> None: ...

    [registration] = App("shop", handlers=[Grouped]).registrations
    assert registration.groups


def test_two_handlers_of_one_type_on_one_queue_are_refused() -> None:
    with pytest.raises(RegistrationError, match="two handlers"):
        App("shop", handlers=[PayHandler, handler(name="other")])


def test_two_handlers_of_one_name_are_refused() -> None:
    with pytest.raises(RegistrationError, match="named"):
        App("shop", handlers=[PayHandler, handler(queue="elsewhere")])


def test_two_handlers_of_one_type_on_two_queues_both_run() -> None:
    app = App("shop", handlers=[PayHandler, handler(queue="audit", name="audit")])
    assert app.bindings() == {"payments": ["pay"], "audit": ["pay"]}


def test_a_queue_that_is_declared_twice_is_refused() -> None:
    with pytest.raises(RegistrationError, match="twice"):
        App("shop", queues=[Queue("a"), Queue("a")])


def test_a_negative_grace_is_refused() -> None:
    with pytest.raises(RegistrationError, match="deploy_grace"):
        App("shop", deploy_grace=timedelta(seconds=-1))


def test_the_command_is_found_through_any_line_of_bases() -> None:
    C = TypeVar("C", bound=Command)

    class Audited(Handler[C], Generic[C]):
        async def handle(self, command: C, context: Context) -> None: ...

    class PayAudited(Audited[Pay]):
        name, queue = "pay", "payments"

    class Renamed(PayAudited):
        name = "renamed"

    for kind in (PayAudited, Renamed):
        [registration] = App("shop", handlers=[kind]).registrations
        assert registration.command is Pay


def test_register_decorates_a_class() -> None:
    app = App("shop")
    assert app.register(PayHandler) is PayHandler
    assert app.handler_for("payments", "pay") is not None
    assert app.handler_for("payments", "other") is None
