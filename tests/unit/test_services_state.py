"""The state file of development services."""

from pathlib import Path

import pytest

from consumer.testing.services.errors import ServicesError
from consumer.testing.services.process import ProcessRecord
from consumer.testing.services.state import Ports, new_state, read, write

PORTS = Ports(amqp=1, management=2, database=3, epmd=4, distribution=5)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    """A later command sees exactly what an earlier one has recorded."""
    state = new_state("local").model_copy(update={"ports": PORTS, "data": tmp_path})
    state = state.started("rabbitmq", ProcessRecord(pid=7, started="boot:9", marker="m"))
    write(tmp_path, state)
    assert read(tmp_path) == state


def test_writing_again_replaces_the_file_and_leaves_no_part(tmp_path: Path) -> None:
    """The state file changes in one step, also after a writer was killed half-way."""
    (tmp_path / "state.json.part").write_text("{ half a state")
    first, second = new_state("local"), new_state("docker")
    write(tmp_path, first)
    write(tmp_path, second)
    assert read(tmp_path) == second
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """The file holds a password."""
    write(tmp_path, new_state("local"))
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


def test_no_file_is_no_state(tmp_path: Path) -> None:
    """A folder in which nothing was started is not an error, nor is one that is not there."""
    assert read(tmp_path) is None
    assert read(tmp_path / "absent") is None


@pytest.mark.parametrize("content", ["", "{", '{"password": "s3cret"}', '{"version": 99}'])
def test_a_broken_file_is_named_and_not_echoed(tmp_path: Path, content: str) -> None:
    """The user learns which file to look at; its content may be a password."""
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(ServicesError) as caught:
        read(tmp_path)
    assert str(tmp_path / "state.json") in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_two_sets_of_services_share_neither_name_nor_password() -> None:
    """Every folder gets its own random instance word and password."""
    one, other = new_state("local"), new_state("local")
    assert one.instance != other.instance
    assert one.password != other.password


def test_passwords_are_not_in_representations() -> None:
    """What ends in a log by accident shows no password."""
    state = new_state("local").model_copy(update={"ports": PORTS})
    assert state.password not in repr(state)
    assert state.password not in repr(state.endpoints)
    assert state.password in state.endpoints.amqp_url
