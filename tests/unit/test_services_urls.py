"""URLs from the environment: which are taken, and that none of them leaks its password."""

import pytest

from consumer.testing.services import urls
from consumer.testing.services.endpoints import Endpoints, from_environment
from consumer.testing.services.errors import ServicesError

AMQP = "amqp://app:s3cr%23t@broker.example:5673/orders"
DATABASE = "postgresql+asyncpg://app:s3cr%23t@db.example/app"


def test_both_variables_are_taken_as_they_are() -> None:
    """Two URLs in the environment are the services."""
    named = from_environment({"CONSUMER_AMQP_URL": AMQP, "CONSUMER_DATABASE_URL": DATABASE})
    management = "http://app:s3cr%23t@broker.example:15672"
    assert named == Endpoints(AMQP, DATABASE, management)


def test_the_management_url_can_be_given() -> None:
    """A management API on another host or port has a variable of its own."""
    management = "https://admin:x@other.example"
    named = from_environment(
        {
            "CONSUMER_AMQP_URL": AMQP,
            "CONSUMER_DATABASE_URL": DATABASE,
            "CONSUMER_MANAGEMENT_URL": management,
        }
    )
    assert named is not None
    assert named.management_url == management


def test_a_database_url_without_driver_gets_the_projects_driver() -> None:
    """What every Postgres tool calls a URL is understood."""
    plain = "postgresql://app@db.example/app"
    named = from_environment({"CONSUMER_AMQP_URL": AMQP, "CONSUMER_DATABASE_URL": plain})
    assert named is not None
    assert named.database_url == "postgresql+asyncpg://app@db.example/app"


def test_neither_variable_names_nothing() -> None:
    """An empty variable is one that is not set."""
    assert from_environment({}) is None
    assert from_environment({"CONSUMER_AMQP_URL": "", "CONSUMER_DATABASE_URL": ""}) is None


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ("CONSUMER_AMQP_URL", "CONSUMER_DATABASE_URL"),
        ("CONSUMER_DATABASE_URL", "CONSUMER_AMQP_URL"),
    ],
)
def test_one_variable_alone_is_an_error_that_names_the_other(there: str, missing: str) -> None:
    """Half of the services from the environment and half from elsewhere is a mistake."""
    url = {"CONSUMER_AMQP_URL": AMQP, "CONSUMER_DATABASE_URL": DATABASE}[there]
    with pytest.raises(ServicesError, match=f"{there} is set but {missing} is not"):
        from_environment({there: url})


@pytest.mark.parametrize(
    "password", ["s3c#ret", "s3c@ret/x", "s3c/ret", "s3c?ret", "12#s3cret", "s3c[ret"]
)
def test_an_unencoded_password_is_refused_without_being_echoed(password: str) -> None:
    """The error asks about percent-encoding and shows no part of the URL."""
    url = f"amqp://app:{password}@127.0.0.1:5672/"
    with pytest.raises(ServicesError, match="percent-encoded") as caught:
        from_environment({"CONSUMER_AMQP_URL": url, "CONSUMER_DATABASE_URL": DATABASE})
    for part in ("s3c", "ret", "127.0.0.1", "app"):
        assert part not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_url_of_another_scheme_is_refused() -> None:
    """A MySQL URL is not a Postgres one; the password is not shown."""
    with pytest.raises(ServicesError, match="CONSUMER_DATABASE_URL has a scheme") as caught:
        from_environment(
            {"CONSUMER_AMQP_URL": AMQP, "CONSUMER_DATABASE_URL": "mysql://a:s3cret@h/d"}
        )
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (AMQP, ("broker.example", 5673)),
        (DATABASE, ("db.example", 5432)),
        ("amqps://broker.example", ("broker.example", 5671)),
        ("amqp://[::1]/", ("::1", 5672)),
    ],
)
def test_the_address_of_a_url_has_the_port_of_its_scheme(
    url: str, expected: tuple[str, int]
) -> None:
    """Where to connect is clear also when the URL names no port."""
    assert urls.address(url) == expected


def test_names_are_percent_encoded() -> None:
    """A virtual host or database of any name makes a valid URL, and keeps the query."""
    url = urls.with_path("amqp://u:p@h:1/old?heartbeat=5", "a/b c%")
    assert url == "amqp://u:p@h:1/a%2Fb%20c%25?heartbeat=5"


def test_credentials_are_decoded_and_encoded() -> None:
    """A password comes out of a URL as it went in."""
    url = urls.build("amqp", user="a@b", password="p:/#@ ?", port=1)
    assert urls.credentials(url) == ("a@b", "p:/#@ ?")
    assert urls.credentials("amqp://host") == ("guest", "guest")
