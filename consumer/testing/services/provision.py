"""Services for one run of a test suite."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from consumer.testing.services.binaries import find_binaries
from consumer.testing.services.containers import containers_lack, throwaway_containers
from consumer.testing.services.endpoints import Endpoints, from_environment
from consumer.testing.services.errors import INSTALL_SOMETHING, ServicesError
from consumer.testing.services.lifecycle import down, up

TEST_SERVICES = "CONSUMER_TEST_SERVICES"
Source = Literal["auto", "docker", "local"]
SOURCES: tuple[Source, ...] = get_args(Source)


def chosen_source(option: str | None, environment: Mapping[str, str] = os.environ) -> Source:
    """Where services shall come from: the option, else `CONSUMER_TEST_SERVICES`, else `auto`.

    Raises:
        ServicesError: The variable holds another word.
    """
    wanted = option or environment.get(TEST_SERVICES) or "auto"
    for source in SOURCES:
        if source == wanted:
            return source
    raise ServicesError(f"{TEST_SERVICES} is not one of {', '.join(SOURCES)}")


@contextmanager
def provision(source: Source, new_folder: Callable[[], Path]) -> Iterator[Endpoints]:
    """Services for the length of a `with` block.

    What was started for the block is stopped at its end, with its data, whatever ends it.

    Args:
        source: `auto` takes the environment's URLs, else containers, else local processes.
        new_folder: Makes an empty folder, for local processes.

    Raises:
        ServicesError: There are no services to be had.
    """
    named = from_environment() if source == "auto" else None
    if named is not None:
        yield named
        return
    lacks = {"docker": containers_lack(), "local": find_binaries().missing()}
    ways = [way for way in lacks if source in ("auto", way)]
    way = next((way for way in ways if not lacks[way]), None)
    if way is None:
        words = ", no ".join(word for way in ways for word in lacks[way])
        raise ServicesError(f"tests need services: there is no {words}", remedy=INSTALL_SOMETHING)
    with throwaway_containers() if way == "docker" else _local(new_folder()) as endpoints:
        yield endpoints


@contextmanager
def _local(folder: Path) -> Iterator[Endpoints]:
    try:
        yield up(folder, mode="local")
    finally:
        down(folder, remove_data=True)
