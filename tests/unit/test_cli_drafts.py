"""What `consumer send` makes of what an operator types."""

from datetime import UTC, datetime, timedelta

import pytest

from consumer import App, Command, ConsumerError, Context, Handler
from consumer.cli.drafts import Drafter, deadline_in, header_pairs
from consumer.errors import ConfigurationError, UnsendableMessage
from consumer.message import DEADLINE_MS, IDEMPOTENCY_KEY, TIMEOUT_MS
from consumer.wire import Properties


class Capture(Command, type="payments.capture"):
    order_id: str
    amount: int


class CaptureHandler(Handler[Capture]):
    name = "payments.capture"
    queue = "payments"

    async def handle(self, command: Capture, context: Context) -> None:
        """Nothing."""

    def key(self, command: Capture) -> object:
        return command.order_id


APP = App("shop", handlers=[CaptureHandler], prefix="shop")
BODY = b' {"amount": 1,  "order_id": "\xc3\xa9"}\n'


def test_the_body_is_sent_byte_for_byte() -> None:
    draft = Drafter("payments.capture", "shop", APP).draft(BODY, None, {})
    message = draft.message
    assert message.body == BODY
    assert (message.exchange, message.routing_key) == ("shop.commands", "payments.capture")
    properties = Properties.from_wire(message.properties)
    assert (properties.type, properties.message_id) == ("payments.capture", message.message_id)
    assert properties.delivery_mode == 2


@pytest.mark.parametrize(("app", "key", "expected"), [
    (APP, "mine", "mine"), (APP, None, "é"), (None, "mine", "mine"), (None, None, None)])
def test_the_key_is_the_given_one_or_the_handlers_or_new(
    app: App | None, key: str | None, expected: str | None
) -> None:
    drafter = Drafter("payments.capture", "shop", app)
    draft = drafter.draft(BODY, key, {"tenant": "a"})
    assert draft.key == (expected or draft.message.message_id)
    assert Properties.from_wire(draft.message.properties).headers.decoded() == {
        "tenant": "a", IDEMPOTENCY_KEY: draft.key}
    assert drafter.draft(BODY, key, {}).message.message_id != draft.message.message_id


@pytest.mark.parametrize("body", [
    b"", b"[]", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b'"\xff"', b'{"order_id": "a"}',
    b'{"order_id": "a", "amount": "many"}', b'{"order_id": "", "amount": 1}'])
def test_what_could_not_be_handled_is_not_sent(body: bytes) -> None:
    with pytest.raises(UnsendableMessage):
        Drafter("payments.capture", "shop", APP).draft(body, None, {})


def test_without_an_app_any_object_is_sent() -> None:
    assert Drafter("x.y", "shop", None).draft(b"{}", None, {}).message.routing_key == "x.y"


def test_a_refusal_names_the_field_and_not_its_value() -> None:
    with pytest.raises(UnsendableMessage, match="amount") as caught:
        Drafter("payments.capture", "shop", APP).draft(
            b'{"order_id": "a", "amount": "secret"}', None, {})
    assert "secret" not in str(caught.value)


def test_a_type_the_app_does_not_handle_is_a_wrong_argument() -> None:
    with pytest.raises(ConfigurationError, match=r"payments\.captur'.*payments\.capture"):
        Drafter("payments.captur", "shop", APP)


@pytest.mark.parametrize("command_type", ["", "a.*", "#", "x" * 256, "a\nb"])
def test_a_type_that_could_not_be_routed_is_refused(command_type: str) -> None:
    with pytest.raises(ConsumerError):
        Drafter(command_type, "shop", None).draft(b"{}", None, {})


def test_headers_of_ours_cannot_be_set() -> None:
    with pytest.raises(UnsendableMessage, match="reserved"):
        Drafter("x.y", "shop", None).draft(b"{}", None, {"consumer-ticket": "1"})


def test_headers_are_name_and_value() -> None:
    assert header_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(ConfigurationError):
            header_pairs(wrong)


def test_a_deadline_is_stated_as_a_time_and_as_what_is_left_of_it() -> None:
    deadline = datetime.now(UTC) + timedelta(minutes=1)
    message = Drafter("x.y", "shop", None).draft(b"{}", None, {}, deadline).message
    headers = Properties.from_wire(message.properties).headers.decoded()
    left_ms = headers[TIMEOUT_MS]
    assert headers[DEADLINE_MS] == int(deadline.timestamp() * 1000)
    assert isinstance(left_ms, int)
    assert 0 < left_ms <= 60_000


def test_without_a_deadline_none_is_stated() -> None:
    message = Drafter("x.y", "shop", None).draft(b"{}", None, {}).message
    headers = Properties.from_wire(message.properties).headers.decoded()
    assert not {DEADLINE_MS, TIMEOUT_MS} & set(headers)


@pytest.mark.parametrize("header", [DEADLINE_MS, TIMEOUT_MS])
def test_a_deadline_is_stated_by_option_or_by_header_and_not_by_both(header: str) -> None:
    with pytest.raises(UnsendableMessage, match=header):
        Drafter("x.y", "shop", None).draft(b"{}", None, {header: "1"}, datetime.now(UTC))


def test_a_deadline_counts_from_now() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert deadline_in(1.5, now) == now + timedelta(seconds=1.5)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e12, 1e300])
def test_a_deadline_no_calendar_knows_is_a_wrong_argument(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="--deadline"):
        deadline_in(seconds, datetime.now(UTC))
