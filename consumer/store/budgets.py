"""The fleet's retry budgets: one row of `retry_budget` a dependency. One function per statement.

The arithmetic is that of `consumer.core.budget.exchange`, by the database's clock.
"""

from collections.abc import Sequence

from consumer.core.budget import Wish
from consumer.errors import StoreUnavailable
from consumer.store.sql import Driver, Schema
from consumer.store.statements import Statements

_TRIES = 5

# The snapshot may be older than the locks; what FOR UPDATE returns is not. The time is read from
# rows that are locked already: read beside them it would be the time before the wait.
_EXCHANGE = """
WITH wish AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                         $6::bigint[], $7::bigint[], $8::interval[])
    AS w (dependency, originals, given_back, wanted, earned, cost, most_credits, floor_interval)
), account AS MATERIALIZED (
    SELECT * FROM {schema}.retry_budget WHERE dependency = ANY ($1) ORDER BY dependency FOR UPDATE
), met AS MATERIALIZED (
    SELECT w.*, a.credits * w.cost / a.cost AS saved, a.floor_at, clock_timestamp() AS now,
           least(w.given_back, a.granted - a.returned) AS returned
    FROM account a JOIN wish w USING (dependency)
    WHERE (SELECT count(*) FROM account) = cardinality($1)
), paid AS (
    SELECT *, least(most_credits, saved + originals * earned + returned * cost) AS credits
    FROM met
), bought AS (
    SELECT *, least(wanted, credits / cost) AS bought FROM paid
), granted AS MATERIALIZED (
    SELECT *, (bought < wanted AND floor_interval IS NOT NULL
               AND coalesce(floor_at <= now, true))::int AS by_floor
    FROM bought
), settled AS (
    UPDATE {schema}.retry_budget b
    SET credits = g.credits - g.bought * g.cost,
        floor_at = CASE WHEN g.by_floor = 1 THEN g.now + g.floor_interval
                        WHEN g.floor_at IS NOT NULL
                        THEN least(g.floor_at, g.now + g.floor_interval) END,
        originals = b.originals + g.originals, granted = b.granted + g.bought + g.by_floor,
        granted_by_floor = b.granted_by_floor + g.by_floor, returned = b.returned + g.returned,
        denied = b.denied + g.wanted - g.bought - g.by_floor,
        earned = g.earned, cost = g.cost, most_credits = g.most_credits,
        floor_interval = g.floor_interval, updated_at = g.now
    FROM granted g WHERE b.dependency = g.dependency
    RETURNING b.dependency, g.bought + g.by_floor AS granted
)
SELECT dependency, granted FROM settled
"""

_OPEN = """
INSERT INTO {schema}.retry_budget (dependency, updated_at)
SELECT dependency, clock_timestamp() FROM unnest($1::text[]) AS w (dependency)
ORDER BY dependency COLLATE "C"
ON CONFLICT (dependency) DO NOTHING
"""


async def exchange(
    driver: Driver, schema: Schema, wishes: Sequence[Wish]
) -> dict[str, int] | None:
    """Credits are paid in and retries granted: how many, by dependency. All of it or nothing.

    One statement. Locks: the rows, in the order of dependencies; waits for them. Index: primary
    key.

    Args:
        wishes: Of distinct dependencies, sorted by them.

    Returns:
        None where a row is missing; then nothing changed.
    """
    assert len({wish.dependency for wish in wishes}) == len(wishes), "dependencies must be distinct"
    rows = await driver.fetch(
        schema.sql(_EXCHANGE), [w.dependency for w in wishes], [w.originals for w in wishes],
        [w.returned for w in wishes], [w.wanted for w in wishes],
        [w.budget.earned for w in wishes], [w.budget.cost for w in wishes],
        [w.budget.most_credits for w in wishes], [w.budget.floor_interval for w in wishes])
    return {row["dependency"]: row["granted"] for row in rows} if rows else None


async def open_accounts(driver: Driver, schema: Schema, dependencies: Sequence[str]) -> None:
    """Each dependency has an account; new ones are empty. Idempotent."""
    await driver.execute(schema.sql(_OPEN), dependencies)


class PostgresBudgets:
    """`BudgetStore` on Postgres.

    No clock but the database's counts: restarts and clocks of workers grant nothing.
    """

    def __init__(self, statements: Statements, schema: Schema) -> None:
        self._statements, self._schema = statements, schema

    async def exchange(self, wishes: Sequence[Wish]) -> list[int]:
        """Credits are paid in and retries granted, in one go; how many are granted, per wish.

        One statement; three where an account is missing, which then begins empty. Waits for other
        exchanges of these dependencies.

        Args:
            wishes: Of distinct dependencies.

        Raises:
            StoreUnavailable: Postgres failed. The exchange may stand all the same, so what was
                brought must not be brought again.
            SerializationConflict: A timeout of Postgres ended the wait; nothing changed.
        """
        if not wishes:
            return []
        ordered = sorted((wish.clamped() for wish in wishes), key=lambda wish: wish.dependency)
        for _ in range(_TRIES):
            async with self._statements.driver() as driver:
                granted = await exchange(driver, self._schema, ordered)
            if granted is not None:
                return [granted[wish.dependency] for wish in wishes]
            async with self._statements.driver() as driver:
                await open_accounts(driver, self._schema, [w.dependency for w in ordered])
        raise StoreUnavailable("rows of retry_budget are deleted as fast as they are made")
