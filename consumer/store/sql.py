"""The schema our tables live in, and SQL text that names it.

All statements name their schema, so `search_path` never matters.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

from consumer.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncpg

    Driver: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Record: TypeAlias = asyncpg.Record
else:
    Driver = Record = Any

DEFAULT_SCHEMA = "consumer"
MAX_IDENTIFIER_BYTES = 63

# Seeds keep our advisory transaction locks apart from each other, and from other users' as well
# as 64 bits allow. Two keys of one hash only delay each other.
CLAIM_SEED = 7_303_014_001
ORDERING_SEED = 7_303_014_002
UPGRADE_LOCK = 7_303_014_003
SLOT_SEED = 7_303_014_004
_FRAGMENTS = {
    "{claim_lock}": f"hashtextextended(scope || chr(31) || key, {CLAIM_SEED})",
    "{ordering_lock}": f"hashtextextended(ordering_key, {ORDERING_SEED})",
    "{slot_lock}": f"hashtextextended(dependency, {SLOT_SEED})",
}


class Schema:
    """A schema by name; renders SQL in which `{schema}` stands for it.

    `{claim_lock}`, `{ordering_lock}` and `{slot_lock}` stand for the advisory locks of a scope and
    key, of an ordering key, and of a dependency's slots.

    Raises:
        ConfigurationError: Postgres could not hold the name, or would cut it.
    """

    __slots__ = ("_rendered", "name", "quoted")

    def __init__(self, name: str = DEFAULT_SCHEMA) -> None:
        self.name = checked_identifier(name)
        self.quoted = '"' + name.replace('"', '""') + '"'
        self._rendered: dict[str, str] = {}

    def sql(self, text: str) -> str:
        """`text` for this schema. The same object each time, so driver caches hit."""
        rendered = self._rendered.get(text)
        if rendered is None:
            rendered = text
            for name, fragment in _FRAGMENTS.items():
                rendered = rendered.replace(name, fragment)
            rendered = self._rendered[text] = rendered.replace("{schema}", self.quoted)
        return rendered

    def __repr__(self) -> str:
        return f"Schema({self.name!r})"


def checked_identifier(name: str) -> str:
    """`name`, if Postgres can hold it as an identifier.

    Raises:
        ConfigurationError: It is empty, holds NUL or a lone surrogate, is longer than 63 bytes
            (Postgres would cut it silently) or begins with `pg_`.
    """
    problem = _problem(name)
    if problem:
        raise ConfigurationError(f"schema name {name[:40]!r} {problem}",
                                 remedy="choose another CONSUMER_SCHEMA")
    return name


def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if "\0" in name:
        return "holds a NUL character"
    if any("\ud800" <= c <= "\udfff" for c in name):
        return "is not valid text"
    if len(name.encode()) > MAX_IDENTIFIER_BYTES:
        return f"is longer than {MAX_IDENTIFIER_BYTES} bytes"
    if name.startswith("pg_"):
        return "begins with pg_, which Postgres keeps for itself"
    return None
