"""Which account a local server runs as, and where its files have to be for that."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Account:
    """A user of the operating system."""

    name: str
    uid: int
    gid: int


def account_for(server: str) -> Account:
    """The account a server runs as.

    That is the current user; as root it is the user named after the server, or `nobody`,
    because Postgres refuses to run as root and RabbitMQ has no need to.

    Args:
        server: `postgres` or `rabbitmq`.
    """
    if os.getuid() != 0:
        return _account(pwd.getpwuid(os.getuid()))
    try:
        return _account(pwd.getpwnam(server))
    except KeyError:
        return _account(pwd.getpwnam("nobody"))


def can_reach(account: Account, directory: Path) -> bool:
    """Whether the account may pass through a folder and all folders above it."""
    return all(_may_pass(account, folder) for folder in (directory, *directory.parents))


def make_private(directory: Path, account: Account) -> None:
    """Create a folder, if it is missing, that only the account can enter."""
    directory.mkdir(mode=0o700, exist_ok=True)
    hand_over(directory, account)


def hand_over(path: Path, account: Account) -> None:
    """Make the account the owner of a file or folder; needs root only if it is not already."""
    if path.stat().st_uid != account.uid:
        os.chown(path, account.uid, account.gid)


def write_private(file: Path, content: str, account: Account) -> None:
    """Replace a file that only the account can read."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(content)
    hand_over(file, account)


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _may_pass(account: Account, folder: Path) -> bool:
    found = folder.stat()
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)
