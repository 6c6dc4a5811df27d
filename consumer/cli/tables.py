"""Tables for people, on a terminal or in a file."""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_OF_FILES = 200


def console() -> Console:
    """Standard output. In a file, lines are long rather than broken."""
    return Console(file=sys.stdout, highlight=False,
                   width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """An empty table; columns of `numbers` are set to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def cell(value: object, style: str = "") -> Text:
    """`value` as it is: names may look like markup. None is shown as unknown."""
    return Text("?" if value is None else str(value), style=style)
