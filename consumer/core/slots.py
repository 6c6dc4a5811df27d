"""How the slots of a dependency, calls in flight at most, are shared out over live workers."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class SlotWish:
    """One worker's renewal of its share.

    Args:
        limit: Slots of the whole fleet.
        in_flight: Slots in use in this process now; its share never falls below that.
        lease: How long the share is held without another renewal. It must outlast what is in
            flight when the worker dies.
    """

    dependency: str
    limit: int
    in_flight: int
    lease: timedelta


def shares(dependency: str, limit: int, members: Iterable[str]) -> dict[str, int]:
    """The slots each member should hold: as even as can be, `limit` in all.

    Whoever computes it gets the same. The slots left over, or all where there are fewer than
    members, go one each to the first by rank, which differs from dependency to dependency so that
    not the same member gets them all. When a member joins, no other gains; when one goes, no other
    loses: only the share of that one moves.

    Args:
        limit: Slots of the whole fleet, at least 0.
        members: Live workers, in any order.
    """
    ranked = sorted(set(members), key=lambda member: rank(dependency, member))
    if not ranked:
        return {}
    each, left_over = divmod(limit, len(ranked))
    return {member: each + (place < left_over) for place, member in enumerate(ranked)}


def rank(dependency: str, member: str) -> bytes:
    """What members are ordered by, byte by byte: SHA-256 of both names in UTF-8, NUL between."""
    return sha256(f"{dependency}\0{member}".encode()).digest()


def renewed(limit: int, target: int, others_held: int, in_flight: int) -> int:
    """The slots a worker holds after its renewal, at least what it has in flight.

    That cannot be taken back; beyond it, it gets no more than its target and what others have left
    free. So as long as no worker has more in flight than it holds, all together hold no more than
    the limit, and a share moves only once its holder has let go of it.

    Args:
        limit: Slots of the whole fleet.
        target: What `shares` says it should hold.
        others_held: Slots all others hold, the dead among them until their lease ends.
        in_flight: Slots it has in use.
    """
    return max(in_flight, min(target, limit - others_held))
