"""Settings: read from the environment, checked, documented, and silent about secrets."""

from datetime import timedelta
from pathlib import Path

import pytest

from consumer.errors import ConfigurationError
from consumer.settings import read_settings
from consumer.settings_reference import settings_table

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMQP_URL", "AMQP_URL_FILE", "DATABASE_URL", "MANAGEMENT_URL", "SCHEMA"):
        monkeypatch.delenv(f"CONSUMER_{name}", raising=False)


def test_the_reference_is_up_to_date() -> None:
    """docs/settings.md is what the settings say of themselves."""
    assert (ROOT / "docs" / "settings.md").read_text() == settings_table()


def test_several_brokers_are_a_comma_separated_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks around the commas do not matter."""
    monkeypatch.setenv("CONSUMER_AMQP_URL", "amqp://a/ , amqps://b/,")
    assert read_settings().amqp_urls() == ["amqp://a/", "amqps://b/"]


def test_addresses_in_a_file_are_read_each_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Credentials that rotate take effect without a restart."""
    file = tmp_path / "amqp"
    file.write_text("amqp://old/\n")
    monkeypatch.setenv("CONSUMER_AMQP_URL_FILE", str(file))
    settings = read_settings()
    assert settings.amqp_urls() == ["amqp://old/"]
    file.write_text("amqp://new/\n")
    assert settings.amqp_urls() == ["amqp://new/"]


@pytest.mark.parametrize("url", ["amqp_urls", "database"])
def test_an_address_that_is_not_set_is_named_with_the_remedy(url: str) -> None:
    """The error says which variable, and how to get services for it."""
    with pytest.raises(ConfigurationError, match=r"CONSUMER_(AMQP|DATABASE)_URL.*services up"):
        getattr(read_settings(), url)()


def test_a_file_that_is_not_there_is_an_error_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is not taken for an empty address."""
    monkeypatch.setenv("CONSUMER_AMQP_URL_FILE", str(tmp_path / "absent"))
    with pytest.raises(ConfigurationError, match="CONSUMER_AMQP_URL_FILE"):
        read_settings().amqp_urls()


@pytest.mark.parametrize(("name", "value"), [
    ("CONSUMER_HEARTBEAT", "0"), ("CONSUMER_HEARTBEAT", "s3cret"), ("CONSUMER_GRACE", "-1"),
    ("CONSUMER_HEALTH_PORT", "70000"), ("CONSUMER_POOLER", "s3cret"),
    ("CONSUMER_LOG_LEVEL", "s3cret"),
])
def test_nonsense_is_refused_by_name_without_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """The error names the variable; the value may be a misplaced secret and is not shown."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name) as caught:
        read_settings()
    assert "s3cret" not in str(caught.value)


def test_durations_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare number, with or without a fraction."""
    monkeypatch.setenv("CONSUMER_GRACE", "2.5")
    assert read_settings().grace == timedelta(seconds=2.5)


def test_addresses_do_not_show_in_the_settings_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """`repr` of the settings is safe to log."""
    monkeypatch.setenv("CONSUMER_DATABASE_URL", "postgresql://app:s3cret@db/app")
    assert "s3cret" not in repr(read_settings())
