"""A private RabbitMQ node: its own epmd, cookie, data and ports, nothing shared."""

from pathlib import Path

from consumer.testing.services.account import (
    Account,
    account_for,
    hand_over,
    make_private,
    write_private,
)
from consumer.testing.services.binaries import Binaries
from consumer.testing.services.spawn import Server
from consumer.testing.services.state import USER, ServicesState

# Small enough for a laptop, large enough for a million waiting messages; a low disc limit,
# because the default blocks publishers on a disc that is merely full of other things.
_CONFIGURATION = """\
listeners.tcp.local = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
distribution.listener.interface = 127.0.0.1
distribution.listener.port_range.min = {distribution}
distribution.listener.port_range.max = {distribution}
default_user = {user}
default_pass = {password}
default_user_tags.administrator = true
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
raft.wal_max_size_bytes = 64000000
log.console = true
log.console.level = info
log.console.use_colors = off
log.file = false
"""


def prepare_rabbitmq(state: ServicesState, data: Path, binaries: Binaries) -> list[Server]:
    """Write the node's files, all of them inside `data`.

    Returns:
        epmd and the broker, to be started in this order.
    """
    account = account_for("rabbitmq")
    home = data / "rabbitmq"
    make_private(home, account)
    _write_files(state, home, account)
    # A link of ours names the process: epmd takes no argument that could tell it from others.
    epmd = home / "epmd"
    epmd.unlink(missing_ok=True)
    epmd.symlink_to(_found(binaries.epmd))
    port = str(state.ports.epmd)
    word = f"consumer-{state.instance}"
    environment = _environment(state, home)
    return [
        Server(
            "epmd",
            (str(epmd), "-address", "127.0.0.1", "-port", port),
            str(epmd),
            account,
            home,
            home / "epmd.log",
            environment,
        ),
        Server(
            "rabbitmq",
            (str(_found(binaries.rabbitmq_server)), "-consumer_instance", word),
            word,
            account,
            home,
            home / "rabbitmq.log",
            environment,
        ),
    ]


def _write_files(state: ServicesState, home: Path, account: Account) -> None:
    for name in ("mnesia", "log", "conf.d"):
        make_private(home / name, account)
    configuration = _CONFIGURATION.format(
        user=USER, password=state.password, **state.ports.model_dump()
    )
    write_private(home / "rabbitmq.conf", configuration, account)
    write_private(home / "enabled_plugins", "[rabbitmq_management].\n", account)
    write_private(home / "rabbitmq-env.conf", "", account)
    cookie = home / ".erlang.cookie"
    if not cookie.exists():
        write_private(cookie, state.instance, account)
        cookie.chmod(0o400)
    hand_over(cookie, account)


def _environment(state: ServicesState, home: Path) -> dict[str, str]:
    return {
        # Makes the start script replace itself by the node, so that signals reach the node.
        "RUNNING_UNDER_SYSTEMD": "true",
        "RABBITMQ_NODENAME": f"consumer-{state.instance}@localhost",
        "RABBITMQ_DIST_PORT": str(state.ports.distribution),
        "ERL_EPMD_PORT": str(state.ports.epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONFIG_FILES": str(home / "conf.d"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        # An empty file: the machine's own must not be read.
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "rabbitmq.pid"),
    }


def _found(program: Path | None) -> Path:
    # `local.py` has refused to go on when a program is missing.
    assert program is not None
    return program
