"""The settings as a Markdown table: `python -m consumer.settings_reference > docs/settings.md`."""

import sys
from datetime import timedelta

from pydantic import SecretStr

from consumer.settings import Settings

_HEAD = """# Settings

Read from the environment when a command starts. Durations are seconds, fractions allowed.

| variable | default | meaning |
| --- | --- | --- |
"""


def settings_table() -> str:
    """The page docs/settings.md."""
    return _HEAD + "".join(
        f"| `{field.validation_alias or 'CONSUMER_' + name.upper()}` | {_shown(field.default)} | "
        f"{field.description or ''} |\n"
        for name, field in Settings.model_fields.items())


def _shown(default: object) -> str:
    if default is None or isinstance(default, SecretStr):
        return "none"
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g}"
    return f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(settings_table())
