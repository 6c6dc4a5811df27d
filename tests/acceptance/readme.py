"""Runs the commands a README shows, as a reader would type them."""

import re
from collections.abc import Mapping

from processes import PROJECT, run


def shell_blocks(readme: str) -> list[str]:
    """The shell commands in a README of this project, block by block."""
    text = (PROJECT / readme).read_text("utf-8")
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def typed(block: str, env: Mapping[str, str]) -> str:
    """What a block prints. It ends at the first command that fails, and so does the test."""
    return run(["bash", "-e", "-o", "pipefail", "-c", block], env)
