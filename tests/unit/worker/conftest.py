"""Silence, and a stage to play on."""

from collections.abc import Iterator

import pytest
import structlog
from simulation.stage import Stage


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def silent_logs() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage
