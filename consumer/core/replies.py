"""What a waiting requester is told when its command is refused or given up.

A reply is a hint and no promise: the requester may be gone, and nothing waits for it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from consumer.core.identity import derived_id
from consumer.message import Delivery, Outgoing
from consumer.outcome import DeadReason
from consumer.wire import MAX_SHORT_STRING_BYTES, Headers, Properties, WireError

TYPE = "consumer.refused"
REASON = "consumer-refused"
"""Header with the reason, for those that do not read the body."""

_REASONS = {
    DeadReason.KEY_CONFLICT: "conflict", DeadReason.DEADLINE: "deadline",
    DeadReason.MALFORMED: "malformed", DeadReason.INVALID: "malformed",
    DeadReason.UNKNOWN_TYPE: "malformed", DeadReason.NO_KEY: "malformed",
}
UNAVAILABLE = (DeadReason.DEADLINE, DeadReason.ATTEMPTS)
"""Deaths that a dependency may be to blame for: a handler can answer something of its own."""


def refusal(
    delivery: Delivery, key: str | None, why: DeadReason | None, message: str, *,
    patterns: Sequence[str], fallback: Mapping[str, Any] | None = None,
) -> Outgoing | None:
    """The reply to a delivery that will not be done, or None where nobody may get one.

    Args:
        why: Why it was given up; None where its command died before.
        message: One line for people. It must not tell what the requester may not know.
        patterns: `reply_to` must match one of these.
        fallback: What the handler says instead of a result.
    """
    sent = delivery.message.properties
    if delivery.message.defect is not None or not sent.reply_to \
            or not allowed(sent.reply_to, patterns):
        return None
    reason = "dead" if why is None else _REASONS.get(why, "dead")
    content: dict[str, Any] = {"reason": reason, "message": message}
    if why is not None:
        content["dead_reason"] = str(why)
    if key is not None:
        content["key"] = key
    body = json.dumps({"error": content, **({"fallback": fallback} if fallback else {})},
                      ensure_ascii=False, allow_nan=False, default=str).encode("utf-8", "replace")
    message_id = derived_id(f"{sent.reply_to}\0{reason}".encode("utf-8", "replace"),
                            (sent.correlation_id or "").encode("utf-8", "replace") + body)
    try:
        properties = Properties(
            content_type="application/json", correlation_id=sent.correlation_id,
            message_id=message_id, type=TYPE, headers=Headers.of({REASON: reason})).to_wire()
    except WireError:
        return None
    return Outgoing("", sent.reply_to, body, properties, message_id)


def allowed(reply_to: str, patterns: Sequence[str]) -> bool:
    """Whether replies may go there: it matches a pattern, in which `*` stands for any text."""
    if len(reply_to.encode("utf-8", "replace")) > MAX_SHORT_STRING_BYTES:
        return False
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), reply_to, re.DOTALL)
               for pattern in patterns)
