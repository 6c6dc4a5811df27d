"""The folder that holds the state of one set of services."""

import os
from pathlib import Path

SERVICES_DIR = "CONSUMER_SERVICES_DIR"


def default_directory() -> Path:
    """`CONSUMER_SERVICES_DIR`, or `.consumer/services` in the project's top folder.

    The top folder is the nearest one upwards that holds `.consumer` or `pyproject.toml`, so
    that all folders of a project share one set of services; else the current folder.
    """
    chosen = os.environ.get(SERVICES_DIR)
    if chosen:
        return Path(chosen).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / ".consumer").is_dir() or (folder / "pyproject.toml").is_file():
            return folder / ".consumer" / "services"
    return here / ".consumer" / "services"


def prepare(directory: Path) -> Path:
    """Create the folder, if it is missing, and keep it out of version control.

    Other accounts may pass through it, since servers may have to run as one; what must stay
    private is private file by file.

    Returns:
        The folder as an absolute path without links.
    """
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    ignore = directory / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return directory.resolve()
