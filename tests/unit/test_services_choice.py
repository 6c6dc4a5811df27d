"""Where services come from, and what a user is told when they come from nowhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from consumer.testing.services import choice, provision
from consumer.testing.services.binaries import Binaries, find_binaries
from consumer.testing.services.choice import Mode, StartedMode, choose_mode
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.lifecycle import down, env, status, up

HERE = Path("/bin/true")
ALL = Binaries(HERE, HERE, HERE, HERE)
NONE = Binaries(None, None, None, None)
NO_ENGINE = "Docker engine that answers"

Machine = Callable[[list[str], Binaries], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets what this machine seems to lack."""

    def set_up(docker_lacks: list[str], binaries: Binaries) -> None:
        monkeypatch.setattr(choice, "_docker_lacks", lambda: docker_lacks)
        monkeypatch.setattr(choice, "find_binaries", lambda: binaries)
        monkeypatch.setattr(provision, "containers_lack", lambda: docker_lacks)
        monkeypatch.setattr(provision, "find_binaries", lambda: binaries)

    for name in ("CONSUMER_AMQP_URL", "CONSUMER_DATABASE_URL", "CONSUMER_TEST_SERVICES"):
        monkeypatch.delenv(name, raising=False)
    return set_up


def choose(
    wanted: Mode, used_before: StartedMode | None = None, *, install: bool = False
) -> StartedMode:
    return choose_mode(
        wanted, used_before=used_before, install=install, progress=lambda _line: None
    )


def test_docker_goes_before_local_programs(machine: Machine) -> None:
    """With both at hand, `auto` takes the official images."""
    machine([], ALL)
    assert choose("auto") == "docker"
    assert choose("local") == "local"


def test_a_folder_keeps_its_way_while_that_works(machine: Machine) -> None:
    """The data of a folder stays in use when another way becomes possible."""
    machine([], ALL)
    assert choose("auto", "local") == "local"
    machine([NO_ENGINE], ALL)
    assert choose("auto", "docker") == "local"


def test_one_error_names_everything_missing_and_every_remedy(machine: Machine) -> None:
    """A user without anything learns all four ways out at once."""
    machine([NO_ENGINE], NONE)
    with pytest.raises(ServicesError) as caught:
        choose("auto")
    for word in (
        NO_ENGINE,
        "rabbitmq-server",
        "postgres",
        "Docker",
        "apt-get install",
        "--install",
    ):
        assert word in str(caught.value)
    assert "CONSUMER_AMQP_URL" in str(caught.value)
    assert "CONSUMER_DATABASE_URL" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_forced_way_is_not_replaced_by_the_other(machine: Machine) -> None:
    """`docker` without Docker is an error also where local programs are at hand."""
    machine([NO_ENGINE], ALL)
    with pytest.raises(ServicesError, match=NO_ENGINE):
        choose("docker")
    machine([], NONE)
    with pytest.raises(ServicesError, match="rabbitmq-server") as caught:
        choose("local")
    assert NO_ENGINE not in str(caught.value)


def test_only_the_program_that_is_missing_is_named(machine: Machine) -> None:
    """Half an installation does not send the user looking for the other half."""
    machine([NO_ENGINE], Binaries(HERE, HERE, None, None))
    with pytest.raises(ServicesError) as caught:
        choose("local")
    assert str(caught.value).partition("(install")[0].count("rabbitmq") == 0


def test_packages_are_installed_only_on_demand(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--install` is the last way, taken when it is allowed and nothing else works."""
    calls: list[str] = []

    def install(_progress: Callable[[str], None]) -> None:
        calls.append("install")
        machine([NO_ENGINE], ALL)

    monkeypatch.setattr(choice, "install_packages", install)
    machine([], NONE)
    assert choose("auto", install=True) == "docker"
    assert calls == []
    machine([NO_ENGINE], NONE)
    assert choose("auto", install=True) == "local"
    assert calls == ["install"]


def test_the_environment_wins_and_nothing_is_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With both URLs set, `up` returns them, `status` shows no password, `down` does nothing."""
    machine([NO_ENGINE], NONE)
    monkeypatch.setenv("CONSUMER_AMQP_URL", "amqp://app:s3cret@127.0.0.1:1/")
    monkeypatch.setenv("CONSUMER_DATABASE_URL", "postgresql://app:s3cret@127.0.0.1:1/x")
    lines: list[str] = []
    assert up(tmp_path, progress=lines.append).amqp_url == "amqp://app:s3cret@127.0.0.1:1/"
    assert env(tmp_path)["CONSUMER_AMQP_URL"] == "amqp://app:s3cret@127.0.0.1:1/"
    found = status(tmp_path)
    assert (found.mode, found.ready) == ("env", False)
    assert "s3cret" not in f"{lines}{found}{found.as_dict()}"
    down(tmp_path)
    assert not (tmp_path / "state.json").exists()


def test_nothing_started_is_said_so(machine: Machine, tmp_path: Path) -> None:
    """Before `up`, `env` names the command to run, and `status` and `down` do no harm."""
    machine([NO_ENGINE], NONE)
    with pytest.raises(ServicesError, match="consumer services up"):
        env(tmp_path / "absent")
    assert status(tmp_path / "absent").mode is None
    down(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(ServicesError, match="set both"):
        up(tmp_path, mode="env")


def test_a_test_suite_without_services_fails(machine: Machine, tmp_path: Path) -> None:
    """A missing service is an error for the plugin too, with the remedies."""
    machine([NO_ENGINE], NONE)
    with (
        pytest.raises(ServicesError, match="tests need services") as caught,
        provision.provision("auto", lambda: tmp_path),
    ):
        pytest.fail("there are no services")
    assert "apt-get install" in str(caught.value)


def test_the_option_goes_before_the_variable() -> None:
    """`--consumer-services` is nearer than `CONSUMER_TEST_SERVICES`; a wrong word is refused."""
    variable = {"CONSUMER_TEST_SERVICES": "docker"}
    assert provision.chosen_source("local", variable) == "local"
    assert provision.chosen_source(None, variable) == "docker"
    assert provision.chosen_source(None, {}) == "auto"
    with pytest.raises(ServicesError, match="auto, docker, local"):
        provision.chosen_source(None, {"CONSUMER_TEST_SERVICES": "podman"})


def test_debians_wrapper_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own start script is preferred, and the highest Postgres is taken."""
    monkeypatch.setenv("PATH", str(tmp_path / "usr/sbin"))
    programs = [
        "usr/sbin/rabbitmq-server",
        "usr/lib/rabbitmq/bin/rabbitmq-server",
        "usr/lib/erlang/erts-13.1/bin/epmd",
        "usr/lib/postgresql/9/bin/postgres",
        "usr/lib/postgresql/18/bin/postgres",
        "usr/lib/postgresql/18/bin/initdb",
    ]
    for program in programs:
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch(mode=0o755)
    found = find_binaries(tmp_path)
    assert found.missing() == []
    assert found.rabbitmq_server == tmp_path / programs[1]
    assert found.postgres == tmp_path / programs[4]
