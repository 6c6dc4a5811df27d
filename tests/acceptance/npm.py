"""Packages of npm, fetched when a test needs them. Without npm these tests fail."""

import subprocess
from pathlib import Path


def installed(folder: Path, *packages: str) -> Path:
    """The `node_modules` in `folder` that holds these packages (`name@version`).

    Their scripts are not run. All go in one call, for npm removes what a call does not name.
    """
    subprocess.run(
        ["npm", "install", "--prefix", str(folder), "--no-save", "--no-package-lock",
         "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", *packages],
        check=True, timeout=180, stdout=subprocess.DEVNULL)
    return folder / "node_modules"


def node(script: str, folder: Path) -> str:
    """What an ES module prints that may import the packages installed in `folder`."""
    done = subprocess.run(["node", "--input-type=module", "-e", script], cwd=folder, check=True,
                          timeout=60, capture_output=True, text=True, encoding="utf-8")
    return done.stdout
