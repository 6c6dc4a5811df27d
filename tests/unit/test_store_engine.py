"""Engines report the errors of their connections to us, each of them."""

import gc

from consumer.store.engine import create_engine
from consumer.store.failures import record_error


def test_every_engine_of_a_process_reports_its_errors() -> None:
    """Also one that has the memory address of an earlier one, and so its id."""
    seen: set[int] = set()
    reused = 0
    for _ in range(200):
        engine = create_engine("postgresql://app@127.0.0.1:1/app").sync_engine
        reused += id(engine) in seen
        seen.add(id(engine))
        assert list(engine.dialect.dispatch.handle_error) == [record_error]
        del engine
        gc.collect(0)
    assert reused, "no id was ever reused, so this test has shown nothing"
