"""From a delivery to a request: decoded, addressed to a handler, validated and identified."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from pydantic import ValidationError

from consumer.app import App
from consumer.claim import Claim, ClaimRequest, Fingerprint
from consumer.command import Command
from consumer.core import copies
from consumer.core.decode import Malformed, decode
from consumer.core.fingerprint import fingerprint, matches
from consumer.core.identity import BadKey, as_key, command_type, stated_key
from consumer.handler import Registration
from consumer.message import Delivery, Lane
from consumer.outcome import DeadLetter, DeadReason, Delay, Outcome, ParkReason
from consumer.ports import Clock

log = structlog.get_logger("consumer.worker")

_PARK_FIRST = timedelta(seconds=1)
_PARK_LONGEST = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Request:
    """A delivery that may become an attempt."""

    delivery: Delivery
    registration: Registration
    command: Command
    key: str
    fingerprint: Fingerprint
    ticket: UUID | None
    claim: ClaimRequest

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
        """Postpone a request, longer each time."""
        return self._parked(request.delivery, request.key, why, _PARK_LONGEST)

    def die(self, delivery: Delivery, key: str | None, why: DeadReason, error: str,
            **more: Any) -> DeadLetter:
        """Dead-letter a delivery that owns no claim."""
        death = copies.Death(why, error, self._clock.now(), **more)
        return DeadLetter(why, error, copies.dead_letter(self._app.prefix, delivery, key, death))

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
        return Request(delivery, registration, command, key, print_,
                       copies.ticket_of(delivery.message), claim)

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
        return self._parked(delivery, None, why, min(left, _PARK_LONGEST))

    def _parked(self, delivery: Delivery, key: str | None, why: ParkReason,
                longest: timedelta) -> Delay:
        now: datetime = self._clock.now()
        exponent = min(copies.parks(delivery.message), 10)
        delay = min(_PARK_FIRST * 2**exponent, longest)
        since = copies.parked_since(delivery.message, now)
        copy = copies.parked_copy(self._app.prefix, delivery, key, delay, since)
        return Delay(why, delay, copy)


def _invalid(error: ValidationError) -> str:
    """What is wrong with which fields; never their values, which may be sensitive."""
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    shown = [f"{'.'.join(map(str, fault['loc'])) or 'command'}: {fault['msg']}"
             for fault in faults[:20]]
    return "; ".join(shown) + ("; …" if len(faults) > 20 else "")
