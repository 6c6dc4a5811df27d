"""A private Postgres server: its own data folder and port, TCP on loopback only."""

import shutil
from pathlib import Path
from secrets import token_hex

from consumer.testing.services.account import account_for, make_private, write_private
from consumer.testing.services.binaries import Binaries
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.postgres_admin import create_database, query
from consumer.testing.services.process import any_titled, wait_until
from consumer.testing.services.spawn import Server, run_as
from consumer.testing.services.state import DATABASE, MAX_CONNECTIONS, USER, ServicesState

_PATIENCE_SECONDS = 15.0


def prepare_postgres(state: ServicesState, data: Path, binaries: Binaries) -> Server:
    """Create the data folder, if it is missing, inside `data`; blocks for about 1 s then.

    Raises:
        ServicesError: `initdb` failed; with what it said.
    """
    # `local.py` has refused to go on when a program is missing.
    assert binaries.postgres is not None
    assert binaries.initdb is not None
    account = account_for("postgres")
    home = data / "postgres"
    make_private(home, account)
    word = f"cluster_name=consumer-{state.instance}"
    settings = (
        "listen_addresses=127.0.0.1",
        f"port={state.ports.database}",
        # Paths of sockets are limited to about 100 bytes, project folders are not.
        "unix_socket_directories=",
        "fsync=on",
        f"max_connections={MAX_CONNECTIONS}",
        word,
    )
    options = [part for setting in settings for part in ("-c", setting)]
    command = (str(binaries.postgres), "-D", str(home / "data"), *options)
    server = Server("postgres", command, word, account, home, home / "postgres.log", {})
    if not (home / "data").exists():
        _initialise(server, binaries.initdb, state.password)
    if server.name not in state.processes:
        _clear_remains(state, home / "data")
    return server


def ensure_database(state: ServicesState) -> None:
    """Create the database of the URL in a server that is ready, unless it is there."""
    server = state.endpoints.database_url.rpartition("/")[0] + "/postgres"
    there = query(server, "SELECT 1 FROM pg_database WHERE datname = $1", DATABASE)
    if there is None:
        create_database(server, DATABASE)


def _initialise(server: Server, initdb: Path, password: str) -> None:
    # Under another name first: a data folder that is there is a complete one. A name of its own,
    # for the initdb of an `up` that was killed may still be writing.
    for remains in server.home.glob("data.part*"):
        shutil.rmtree(remains, ignore_errors=True)
    part, secret = server.home / f"data.part-{token_hex(4)}", server.home / "password"
    write_private(secret, password, server.account)
    command = [str(initdb), "-D", str(part), "-U", USER, f"--pwfile={secret}"]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
    try:
        done = run_as(server, command)
    finally:
        secret.unlink()
    if done.returncode != 0:
        raise ServicesError(f"initdb failed as user {server.account.name}:\n{done.stderr.strip()}")
    part.rename(server.home / "data")


def _clear_remains(state: ServicesState, data: Path) -> None:
    """Clear the way for a new server after one that was killed.

    Its children notice by themselves and end; a new server refuses to start beside them. It
    also refuses while the pid in the lock file exists, which may by now be a zombie or somebody
    else's process: of ours it is known that nothing runs any more.
    """
    title = f"postgres: consumer-{state.instance}: "
    if wait_until(lambda: not any_titled(title), timeout_seconds=_PATIENCE_SECONDS):
        (data / "postmaster.pid").unlink(missing_ok=True)
