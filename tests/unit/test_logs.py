"""Logs are one clean JSON object a line, whoever writes them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SETUP = """
import logging, sys, threading, warnings, structlog
from consumer.telemetry.logs import configure
log = structlog.get_logger("consumer.test")
"""

URLS = {
    "percent-encoded": ("amqp://app:s3cr%23t@127.0.0.1:1/", ["s3cr%23t", "s3cr"]),
    "hash": ("amqp://app:s3cr#t@127.0.0.1:1/", ["s3cr#t", "s3cr"]),
    "at and slash": ("amqps://app:s3c@ret/x@127.0.0.1:1/", ["s3c@ret", "ret/x"]),
    "colon": ("postgresql://app:p:ss@127.0.0.1:1/db", ["p:ss", ":ss@"]),
    "query": ("postgresql://127.0.0.1:1/db?user=app&password=s3cret", ["s3cret"]),
    "driver": ("postgresql+asyncpg://app:s3cret@127.0.0.1/db", ["s3cret"]),
}


def run(script: str, *arguments: str) -> str:
    """What the script writes to stderr; logging is a matter of whole processes."""
    done = subprocess.run([sys.executable, "-c", SETUP + script, *arguments], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


def events(script: str, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(script, *arguments).splitlines()]


def test_an_event_is_a_json_object_with_time_level_app_and_pid() -> None:
    [event] = events('configure(app="shop"); log.info("paid", queue="payments", amount=3)')
    assert event["event"] == "paid"
    assert (event["queue"], event["amount"]) == ("payments", 3)
    assert (event["level"], event["logger"], event["app"]) == ("info", "consumer.test", "shop")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", event["timestamp"])
    assert isinstance(event["pid"], int)
    assert event["pid"] != os.getpid()


def test_records_of_the_standard_library_look_the_same() -> None:
    ours, theirs = events(
        'configure(app="shop"); log.warning("x"); logging.getLogger("lib").warning("%s!", "hey")')
    assert ours.keys() == theirs.keys()
    assert (theirs["event"], theirs["logger"]) == ("hey!", "lib")


def test_what_is_below_the_level_is_not_written() -> None:
    found = events('configure("warning"); log.info("no"); log.warning("yes"); '
                   'logging.getLogger("lib").info("no")')
    assert [event["event"] for event in found] == ["yes"]


@pytest.mark.parametrize("name", ["aiormq.connection", "aio_pika.robust"])
def test_what_the_broker_client_logs_is_left_to_us(name: str) -> None:
    found = events(f'configure("debug"); logging.getLogger("{name}").error("a frame, a url"); '
                   'log.debug("ours")')
    assert [event["event"] for event in found] == ["ours"]


@pytest.mark.parametrize("name", ["sqlalchemy.engine", "asyncio", "httpx"])
def test_client_libraries_stay_quiet_at_the_lowest_level(name: str) -> None:
    found = events(f'configure("debug"); lib = logging.getLogger("{name}"); lib.info("chatter"); '
                   'lib.error("trouble"); log.debug("ours")')
    assert [event["event"] for event in found] == ["trouble", "ours"]


def test_a_library_that_was_made_quieter_before_stays_so() -> None:
    found = events('logging.getLogger("asyncio").setLevel(logging.CRITICAL); configure("debug"); '
                   'logging.getLogger("asyncio").error("not wanted")')
    assert found == []


def test_a_second_call_replaces_the_first() -> None:
    [event] = events('configure(app="a"); configure(app="b"); log.info("once")')
    assert event["app"] == "b"


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize(("url", "secrets"), URLS.values(), ids=URLS.keys())
def test_no_way_of_logging_shows_a_secret(url: str, secrets: list[str], format: str) -> None:
    written = run("""
import sys
url, format = sys.argv[1:]
configure("debug", format)
class Client:
    def __repr__(self): return f"<Client {url}>"
log.info("text " + url, value=url, nested={"urls": [url, (url,)]}, thing=Client(),
         error=OSError(url))
logging.getLogger("lib").error("text %s", url, extra={"url": url})
try:
    try: raise OSError(url)
    except OSError as error: raise ValueError("wrapped " + url) from error
except ValueError:
    log.exception("failed"); logging.getLogger("lib").exception("failed too")
warnings.warn("careful with " + url)
def die(): raise RuntimeError(url)
thread = threading.Thread(target=die); thread.start(); thread.join()
logging.getLogger("lib").error("no number: %d", url)
""", url, format)
    assert "127.0.0.1" in written
    assert "wrapped" in written
    assert "thread_died" in written
    assert "log_record_failed" in written
    for secret in secrets:
        assert secret not in written


def test_tracebacks_say_where_without_local_variables() -> None:
    written = run("""
configure("info", "console")
def handle(payload):
    raise LookupError("nothing there")
try: handle(sys.argv[1])
except LookupError: log.exception("failed")
""", "4111-1111-1111-1111")
    assert "LookupError: nothing there" in written
    assert "in handle" in written
    assert "4111" not in written


def test_errors_do_not_quote_the_data_they_choked_on() -> None:
    written = run("""
import pydantic
from sqlalchemy.exc import IntegrityError
configure()
class Card(pydantic.BaseModel): number: int
try: Card(number=sys.argv[1])
except pydantic.ValidationError: log.exception("failed")
log.info("refused", error=IntegrityError("INSERT", {"card": sys.argv[1]}, Exception("dup")))
""", "4111-1111, input_type=\n5111")
    assert "int_parsing" in written
    assert "dup" in written
    assert "111" not in written


def test_bytes_are_counted_and_not_shown() -> None:
    [event] = events('configure(); log.info("got", body=b"secret order", more=[b"12"])')
    assert (event["body"], event["more"]) == ("<12 bytes>", ["<2 bytes>"])


def test_a_value_that_has_no_text_does_not_cost_the_event() -> None:
    [event] = events("""
configure()
class Odd:
    def __str__(self): raise RuntimeError
log.info("kept", odd=Odd(), number=float("nan"), half="\\ud800")
""")
    assert event["event"] == "kept"
    assert event["number"] == "nan"


def test_a_closed_stderr_ends_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run("""
import io, pathlib, sys
real, sys.stderr = sys.stderr, io.StringIO()
sys.stderr.close()
configure(); log.error("lost"); logging.getLogger("lib").error("lost")
pathlib.Path(sys.argv[1]).touch()
sys.stderr = real
""", str(mark))
    assert mark.exists()
