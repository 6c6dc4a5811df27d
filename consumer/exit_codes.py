"""Exit codes of the command line, so that a deployment can branch on them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    """Done; for a worker: drained within its grace."""
    FAILED = 1
    """The command did its work and the answer is no: a check found something."""
    USAGE = 2
    """A setting, an option or an argument is wrong; trying again cannot help."""
    UNAVAILABLE = 3
    """The database or the broker cannot be reached; trying again may help."""
    SCHEMA = 4
    """The database schema does not fit this version."""
    TOPOLOGY = 5
    """The broker lacks an object, or holds it with other arguments."""
    GRACE_EXCEEDED = 6
    """A worker's drain took longer than its grace, or a second signal cut it short; what was
    unfinished was rolled back and will be delivered again."""
    CRASHED = 70
    """A defect in this package."""
