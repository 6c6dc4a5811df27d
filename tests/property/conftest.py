"""Silence: thousands of walks would log millions of lines."""

from collections.abc import Iterator

import pytest
import structlog


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


@pytest.fixture(autouse=True, scope="session")
def silent_logs() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)
