"""From a delivery to a request: decoded, addressed to a handler, validated and identified."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from pydantic import ValidationError

from consumer.app import App
from consumer.claim import Claim, ClaimRequest, Fingerprint
from consumer.command import Command
from consumer.core import copies, replies
from consumer.core.backoff import LONGEST_PARK
from consumer.core.deadline import deadline_of, first_seen
from consumer.core.decode import Malformed, decode
from consumer.core.fingerprint import fingerprint, matches
from consumer.core.identity import BadKey, as_key, command_type, stated_key
from consumer.core.ladder import UNIT
from consumer.handler import Registration
from consumer.message import Delivery, Lane, Outgoing
from consumer.outcome import AckReason, DeadLetter, DeadReason, Delay, Outcome, ParkReason
from consumer.ports import Clock
from consumer.worker.passage import Passage

log = structlog.get_logger("consumer.worker")

_PARK_FIRST = timedelta(seconds=1)
_PARK_LONGEST = timedelta(seconds=60)
_SHARE_OF_ROOM = 0.8


@dataclass(frozen=True, slots=True)
class Request:
    """A delivery that may become an attempt.

    Args:
        seen: When the command was first seen by any worker.
        deadline: When it has to be done, by the wall clock; None: whenever.
        expires_s: The same in monotonic seconds, so that a clock that is set changes nothing.
        passage: What the delivery holds on its way; shared by requests made of one delivery.
    """

    delivery: Delivery
    registration: Registration
    command: Command
    key: str
    fingerprint: Fingerprint
    ticket: UUID | None
    claim: ClaimRequest
    seen: datetime
    deadline: datetime | None = None
    expires_s: float | None = None
    passage: Passage = field(default_factory=Passage, compare=False)

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the deadline, negative after it; None without one."""
        return None if self.expires_s is None else self.expires_s - now_s

    def ends_s(self, starts_s: float) -> float:
        """When an attempt that starts then must end: after its timeout, or at the deadline."""
        ends_s = starts_s + self.registration.options.attempt_timeout.total_seconds()
        return ends_s if self.expires_s is None else min(ends_s, self.expires_s)

    def same(self, claim: Claim | None) -> bool:
        """Whether `claim` is of a payload that means the same; read from the original bytes."""
        if claim is None:
            return False
        payload = {} if claim.fingerprint.algorithm == self.fingerprint.algorithm \
            else _payload(self.delivery)
        return matches(claim.fingerprint, payload, self.fingerprint)


def _payload(delivery: Delivery) -> Mapping[str, Any]:
    payload = decode(delivery.message)
    assert not isinstance(payload, Malformed)  # it was decoded before
    return payload


class RequestReader:
    """Reads deliveries of one app. Never raises for anything a producer can send.

    Args:
        worker: Name of this process, stored with claims.
    """

    def __init__(self, app: App, clock: Clock, worker: str) -> None:
        self._app, self._clock, self._worker = app, clock, worker

    def read(self, delivery: Delivery) -> Request | Outcome:
        """The request in `delivery`, or what becomes of it instead."""
        try:
            return self._read(delivery)
        except Exception as error:
            log.error("defect", queue=delivery.queue, error=type(error).__name__, exc_info=True)
            return self.die(delivery, None, DeadReason.MALFORMED,
                            f"reading it raised {type(error).__name__}, a defect of ours")

    def _read(self, delivery: Delivery) -> Request | Outcome:
        size = len(delivery.message.raw_properties)
        if size > copies.MAX_HEADER_FRAME_BYTES:
            size = copies.sent_bytes(delivery.message)
        payload = decode(delivery.message) if size <= copies.MAX_HEADER_FRAME_BYTES else Malformed(
            f"properties and headers take {size} bytes, more than {copies.MAX_HEADER_FRAME_BYTES}: "
            "no copy of the message could be sent")
        if isinstance(payload, Malformed):
            return self.die(delivery, None, DeadReason.MALFORMED, payload.detail)
        type_ = command_type(delivery)
        registration = self._app.handler_for(delivery.queue, type_)
        if registration is None:
            return self._wait_for_deploy(
                delivery, ParkReason.UNKNOWN_TYPE, DeadReason.UNKNOWN_TYPE,
                f"no handler of queue {delivery.queue!r} takes command type {type_[:200]!r}")
        try:
            command = registration.command.model_validate(payload)
        except ValidationError as error:
            return self._wait_for_deploy(
                delivery, ParkReason.INVALID, DeadReason.INVALID, _invalid(error))
        except Exception as error:  # a validator of the application's
            return self._wait_for_deploy(
                delivery, ParkReason.INVALID, DeadReason.INVALID,
                f"a validator of {type_} raised {type(error).__name__}")
        return self._identified(delivery, registration, command, payload)

    def again(self, request: Request) -> Request:
        """The same request with a fresh command: a handler may have changed the one it had."""
        command = request.registration.command.model_validate(_payload(request.delivery))
        return replace(request, command=command)

    def park(self, request: Request, why: ParkReason) -> Delay:
        """Postpone a request, longer each time; but not beyond the last hour an attempt can begin,
        where there is one.
        """
        longest = LONGEST_PARK if why is ParkReason.BUDGET else _PARK_LONGEST
        room = self._room(request)
        if room is not None and room > timedelta(0):
            longest = min(longest, room)
        return self._parked(request.delivery, request.key, why, longest, request.seen)

    def can_wait(self, request: Request) -> bool:
        """Whether it could be parked and come back in time for an attempt."""
        room = self._room(request)
        return room is None or room >= UNIT

    def _room(self, request: Request) -> timedelta | None:
        """How long it may be parked: the way through the delay queues takes a little longer."""
        left_s = request.left_s(self._clock.monotonic())
        if left_s is None:
            return None
        shortest_s = request.registration.options.min_attempt.total_seconds()
        return timedelta(seconds=max(0.0, (left_s - shortest_s) * _SHARE_OF_ROOM))

    def die(self, delivery: Delivery, key: str | None, why: DeadReason, error: str, *,
            fallback: Mapping[str, Any] | None = None, **more: Any) -> DeadLetter:
        """Dead-letter a delivery that owns no claim; its requester is told so, and `fallback`."""
        death = copies.Death(why, error, self._clock.now(), **more)
        letter = copies.dead_letter(self._app.prefix, delivery, key, death)
        return DeadLetter(why, error, letter, self.refusal(delivery, key, why, error, fallback))

    def refusal(self, delivery: Delivery, key: str | None, why: DeadReason | None, message: str,
                fallback: Mapping[str, Any] | None = None) -> Outgoing | None:
        """What the requester is told, if one waits where replies may go."""
        if not delivery.message.properties.reply_to:
            return None
        return replies.refusal(delivery, key, why, message, patterns=self._app.reply_patterns,
                               fallback=fallback)

    def reply_to_drop(self, request: Request, why: AckReason) -> Outgoing | None:
        """What the requester of a command that died before is told."""
        if why is not AckReason.DEAD:
            return None
        return self.refusal(request.delivery, request.key, None, "the command was given up before")

    def _identified(self, delivery: Delivery, registration: Registration, command: Command,
                    payload: Mapping[str, Any]) -> Request | Outcome:
        key = stated_key(delivery.message)
        if key is None:
            source = f"key() of handler {registration.scope}"
            try:
                own = registration.handler.key(command)
                key = None if own is None else as_key(own, source)
            except Exception as error:
                return self._wait_for_deploy(delivery, ParkReason.INVALID, DeadReason.INVALID,
                                             f"{source} raised {type(error).__name__}")
            if key is None:
                return self.die(
                    delivery, None, DeadReason.NO_KEY, "neither the header idempotency-key nor "
                    "message_id is set, and the handler derives no key")
        if isinstance(key, BadKey):
            return self.die(delivery, None, DeadReason.INVALID, key.detail)
        print_ = fingerprint(payload, registration.fingerprint_algorithm)
        retention = registration.options.retention
        claim = ClaimRequest(
            registration.scope, key, print_, self._worker, delivery.lane,
            copies.logical_id(delivery, key), retention,
            may_create=delivery.lane is Lane.LIVE and not self._older(delivery, retention))
        now = self._clock.now()
        deadline = deadline_of(delivery, registration.options.max_age, now)
        expires_s = None if deadline is None else \
            self._clock.monotonic() + (deadline - now).total_seconds()
        return Request(delivery, registration, command, key, print_,
                       copies.ticket_of(delivery.message), claim,
                       first_seen(delivery.message, now), deadline, expires_s)

    def _older(self, delivery: Delivery, retention: timedelta) -> bool:
        """Whether the producer dates the message before the oldest key we still remember."""
        sent = delivery.message.properties.timestamp
        oldest = self._clock.now().timestamp() - retention.total_seconds()
        return sent is not None and sent < oldest

    def _wait_for_deploy(self, delivery: Delivery, why: ParkReason, dead: DeadReason,
                         error: str) -> Outcome:
        now = self._clock.now()
        left = self._app.deploy_grace - (now - copies.parked_since(delivery.message, now))
        if left <= timedelta(0):
            return self.die(delivery, None, dead, error)
        return self._parked(delivery, None, why, min(left, _PARK_LONGEST),
                            first_seen(delivery.message, now))

    def _parked(self, delivery: Delivery, key: str | None, why: ParkReason, longest: timedelta,
                seen: datetime) -> Delay:
        now: datetime = self._clock.now()
        exponent = min(copies.parks(delivery.message), 10)
        delay = min(_PARK_FIRST * 2**exponent, longest)
        since = copies.parked_since(delivery.message, now)
        copy = copies.parked_copy(self._app.prefix, delivery, key, delay, since, seen)
        return Delay(why, delay, copy)


def _invalid(error: ValidationError) -> str:
    """What is wrong with which fields; never their values, which may be sensitive."""
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    shown = [f"{'.'.join(map(str, fault['loc'])) or 'command'}: {fault['msg']}"
             for fault in faults[:20]]
    return "; ".join(shown) + ("; …" if len(faults) > 20 else "")
