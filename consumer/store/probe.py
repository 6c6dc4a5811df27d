"""Is Postgres there, and does it keep what it confirms?"""

from datetime import timedelta

from consumer.core.findings import DatabaseTimeouts
from consumer.store.sql import Driver, Schema

_SETTINGS = """
SELECT current_schema() AS default_schema, current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS commits,
       current_setting('full_page_writes') AS pages, pg_is_in_recovery() AS standby,
       current_setting('synchronous_standby_names') AS synchronous,
       (SELECT count(*) FROM pg_stat_replication) AS standbys
"""

_TIMEOUTS_MS = """
SELECT (SELECT setting FROM pg_settings WHERE name = 'statement_timeout')::bigint AS statement,
       (SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout')::bigint
       AS idle
"""


async def answers(driver: Driver) -> None:
    """Postgres answers a statement. Raises what the driver does where it does not."""
    await driver.fetchval("SELECT 1")


async def timeouts(driver: Driver) -> DatabaseTimeouts:
    """The timeouts that role and database set for connections like this one."""
    row = await driver.fetchrow(_TIMEOUTS_MS)
    assert row is not None
    return DatabaseTimeouts(timedelta(milliseconds=row["statement"]),
                            timedelta(milliseconds=row["idle"]))


async def warnings(driver: Driver, schema: Schema) -> list[str]:
    """One line for each setting under which a confirmed COMMIT may be lost, or cannot be made, or
    tables of the application come to lie among ours.
    """
    row = await driver.fetchrow(_SETTINGS)
    assert row is not None
    found = []
    if row["standby"]:
        found.append("this Postgres is a standby and takes no writes; connect to the primary")
    for setting in ("fsync", "pages"):
        if row[setting] == "off":
            name = "full_page_writes" if setting == "pages" else setting
            found.append(f"{name}=off: a crash of the server's machine can corrupt all data")
    if row["commits"] == "off":
        found.append("synchronous_commit=off: commits of the last moments are lost in a crash, so "
                     "a command can take effect, be acknowledged and then never have happened")
    if row["standbys"] and not row["synchronous"]:
        found.append(f"{row['standbys']} asynchronous standby(s): a fail-over loses the last "
                     "commits; set synchronous_standby_names if that must not be")
    if row["default_schema"] == schema.name:
        found.append(f"tables named without a schema are created in {schema.name!r}, "
                     "the framework's own: it comes first in the role's search_path, perhaps "
                     "because the role has the same name; name one of them otherwise")
    return found
