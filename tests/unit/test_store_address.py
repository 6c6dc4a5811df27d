"""Database addresses: what is accepted, and that refusals repeat nothing."""

from datetime import timedelta

import pytest

from consumer.errors import ConfigurationError
from consumer.store.address import address_of
from consumer.store.engine import create_engine, is_pooled

SECRET = "hunter2"


@pytest.mark.parametrize(("url", "dsn", "shown"), [
    ("postgresql://h/db", "postgresql://h/db", "h/db"),
    ("postgres://u:p@h:5433/db", "postgresql://u:p@h:5433/db", "h:5433/db"),
    ("postgresql+asyncpg://u@h/db", "postgresql://u@h/db", "h/db"),
    (" postgresql://u:p%40%23%2F%3A%25@h/db\n", "postgresql://u:p%40%23%2F%3A%25@h/db", "h/db"),
    ("postgresql://u:p@[::1]:5432/db", "postgresql://u:p@[::1]:5432/db", "[::1]:5432/db"),
    ("postgresql://u:p@a:1,b:2/db", "postgresql://u:p@a:1,b:2/db", "a:1,b:2/db"),
    ("postgresql:///db?host=/run/pg", "postgresql:///db?host=/run/pg", "local socket/db"),
    ("postgresql://h/db?ssl=require", "postgresql://h/db?sslmode=require", "h/db"),
    ("postgresql://h/db?sslmode=verify-full&application_name=x",
     "postgresql://h/db?sslmode=verify-full&application_name=x", "h/db"),
])
def test_it_reads(url: str, dsn: str, shown: str) -> None:
    address = address_of(url)
    assert (address.dsn, address.shown) == (dsn, shown)


@pytest.mark.parametrize("password", [
    f"{SECRET}@x", f"{SECRET}#x", f"{SECRET}/x", f"{SECRET}:x", f"{SECRET}?x", f"{SECRET}%x",
    f"@{SECRET}", f"#{SECRET}", f"/{SECRET}", f":{SECRET}", f"?{SECRET}", f"{SECRET} x",
    f"[{SECRET}",
])
def test_a_raw_password_is_refused_without_repeating_it(password: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encoded") as raised:
        create_engine(f"postgresql://user:{password}@db.internal:5432/orders")
    shown = str(raised.value) + repr(raised.value.__cause__) + repr(raised.value.__context__)
    assert SECRET not in shown
    assert "db.internal" not in shown


@pytest.mark.parametrize("url", ["", "mysql://u:hunter2@h/db", "hunter2", "postgresql:/h/db"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="postgresql://") as raised:
        address_of(url)
    assert SECRET not in str(raised.value)


def test_an_engine_shows_no_secret() -> None:
    engine = create_engine(f"postgresql://user:{SECRET}@h/db")
    assert SECRET not in repr(engine) + str(engine.url) + engine.url.render_as_string(False)


def test_timeouts_and_a_pooler_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="statement_timeout"):
        create_engine("postgresql://h/db", pooler="transaction",
                      statement_timeout=timedelta(seconds=1))
    assert is_pooled(create_engine("postgresql://h/db", pooler="transaction"))
    assert not is_pooled(create_engine("postgresql://h/db"))
