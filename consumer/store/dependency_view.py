"""What is left of the retry budgets, for operators."""

from dataclasses import dataclass

from consumer.store.sql import Driver, Schema


@dataclass(frozen=True, slots=True)
class BudgetLevel:
    """The account of one dependency.

    Args:
        left: Retries it can pay for now.
        capacity: Retries it can hold.
        originals: That were ever paid in.
        granted: Retries that were ever granted, those of the floor included.
        granted_by_floor: Of these, those the account could not have paid for.
        returned: Granted retries that were not begun.
        denied: How often a retry was wanted and not granted; one that asks again counts again.
    """

    left: int
    capacity: int
    originals: int = 0
    granted: int = 0
    granted_by_floor: int = 0
    returned: int = 0
    denied: int = 0


# A deploy may have lowered the capacity since credits were last paid in.
_LEVELS = """
SELECT dependency, least(credits, most_credits) / cost AS left, most_credits / cost AS capacity,
       originals, granted, granted_by_floor, returned, denied
FROM {schema}.retry_budget ORDER BY dependency
"""


async def budget_levels(driver: Driver, schema: Schema) -> dict[str, BudgetLevel]:
    """All accounts, by dependency. Takes no lock."""
    return {row["dependency"]: BudgetLevel(*list(row.values())[1:])
            for row in await driver.fetch(schema.sql(_LEVELS))}
