"""Addresses of the broker: what is one, and that nothing of their secrets comes out."""

import traceback

import pytest

from consumer.broker.address import describe, parse_address, vhost_of
from consumer.errors import ConfigurationError


@pytest.mark.parametrize(("text", "vhost"), [
    ("amqp://localhost", "/"),
    ("amqp://u:p@localhost:5672/", "/"),
    ("amqp://u:p@localhost/%2F", "/"),
    ("amqps://u:s3cr%23t%40%2F%3A@[::1]:5671/shop?heartbeat=10&cafile=/etc/ca.pem", "shop"),
    ("amqp://app@127.0.0.1:1/a%2Fb", "a/b"),
])
def test_an_address_leads_to_a_virtual_host(text: str, vhost: str) -> None:
    assert vhost_of(parse_address(text)) == vhost


@pytest.mark.parametrize("text", [
    "amqp://app:s3cr#t@127.0.0.1:1/", "amqp://app:s3c@ret/x@127.0.0.1:1/",
    "amqp://app:s3cr:et@127.0.0.1:1/", "amqp://app:s3cr?et@127.0.0.1:1/",
    "amqp://app:s3cr%et@127.0.0.1:1/", "amqp://app:s3cr[et@127.0.0.1:1/",
    "amqp://app:12/s3cret@127.0.0.1:1/", "amqp://127.0.0.1:99999/s3cret", "amqp:///s3cret",
    "s3cret", "http://app:s3cret@127.0.0.1/", "amqp://127.0.0.1:1/?password=s3cret",
    "amqp://app:s3cret@127.0.0.1:1/?heartbeat=1#s3cret", "",
])
def test_what_is_no_address_is_refused_without_an_echo(text: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid URL") as caught:
        parse_address(text)
    shown = "".join(traceback.format_exception(caught.value)).replace(repr(text), "")
    for secret in ("s3c", "cret", "app:"):
        assert secret not in str(caught.value)
        assert secret not in shown or secret in __file__


def test_the_question_is_asked_whether_the_password_is_encoded() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_address("amqp://app:s3cr#t@127.0.0.1:1/")
    assert str(caught.value) == "invalid URL, is the password percent-encoded?"


def test_a_description_of_an_error_is_one_line_without_the_password() -> None:
    url = parse_address("amqp://app:s3cr%23t@host/")
    error = OSError("login s3cr#t or s3cr%23t failed\nat host")
    assert describe(error, url) == "OSError: login *** or *** failed"
