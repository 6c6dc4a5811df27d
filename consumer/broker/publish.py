"""Publishing with confirms, `mandatory` and a time limit, pipelined."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from consumer.broker.confirms import Confirm, ConfirmChannel, Window
from consumer.broker.connection import ConnectionOptions, Session
from consumer.broker.frames import return_id
from consumer.broker.limits import FRAME_MAX, MAX_MESSAGE_BYTES, refusal
from consumer.broker.link import Link, Urls
from consumer.broker.verdict import LATE, answer_of, blame
from consumer.errors import BrokerUnavailable, ConsumerError
from consumer.message import Outgoing
from consumer.ports import Published, Receipt


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """Limits of a publisher.

    Args:
        timeout_s: A call of `publish` answers within this many seconds.
        connect_wait_s: How much of that it waits for a connection.
        max_message_bytes: Larger bodies are refused without being sent.
        window: How much may be unconfirmed at once.
    """

    timeout_s: float = 30.0
    connect_wait_s: float = 5.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    window: Window = field(default_factory=Window)


@dataclass(frozen=True, slots=True)
class _Item:
    index: int
    message: Outgoing
    return_id: str


class RabbitPublisher:
    """Publishes on a connection of its own, which is opened again when it is lost.

    Args:
        urls: The broker's addresses, read again at each reconnect and tried in turn.
        options: How to connect.
        limits: Time and size limits.
    """

    def __init__(
        self, urls: Urls, options: ConnectionOptions | None = None,
        limits: PublishLimits | None = None,
    ) -> None:
        self._link = Link(urls, options or ConnectionOptions(name="consumer: publishing"))
        self._limits = limits or PublishLimits()
        self._channel: ConfirmChannel | None = None
        self._opening: asyncio.Task[ConfirmChannel] | None = None
        self._quarantine = asyncio.Lock()
        self._retired: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Connecting begins, in the background.

        Raises:
            ConfigurationError: A URL is not valid.
        """
        self._link.open()

    @property
    def connected(self) -> bool:
        """Whether the publishing connection is up."""
        return self._link.session is not None

    async def wait_connected(self, timeout_s: float | None = None) -> None:
        """The publishing connection is up.

        Raises:
            BrokerUnavailable: It was not within `timeout_s` seconds.
        """
        await self._link.wait(timeout_s)

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """One answer per message, in order, within `timeout_s` seconds, whatever happens.

        A message that makes the broker close the channel gets its own answer; the others that
        were unconfirmed on it are published again, one at a time.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s
        answers: dict[int, Published] = {}
        items = list[_Item]()
        for index, message in enumerate(messages):
            if (reason := self._refusal(message)) is not None:
                answers[index] = Published(Receipt.UNSENDABLE, reason)
            else:
                key = return_id(message.properties)
                assert key is not None
                items.append(_Item(index, message, key))
        suspects = await self._publish_together(items, answers, deadline)
        if suspects:
            answers |= await self._publish_alone(suspects, deadline)
        return [answers[index] for index in range(len(messages))]

    async def close(self) -> None:
        """The connection is closed; publishes under way end as unknown. Idempotent."""
        if self._channel is not None and self._channel.session.flowing.is_set():
            await self._channel.drain(1.0)
        tasks = [*self._retired, *([self._opening] if self._opening else [])]
        for task in tasks:
            task.cancel()
        await self._link.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _refusal(self, message: Outgoing) -> str | None:
        session = self._link.session
        return refusal(
            message, max_message_bytes=self._limits.max_message_bytes,
            frame_max=FRAME_MAX if session is None else session.frame_max,
        )

    async def _publish_together(
        self, items: Sequence[_Item], answers: dict[int, Published], deadline: float
    ) -> list[_Item]:
        """Publish all, fill in `answers`; returns those that shared a channel with a culprit."""
        sent: list[tuple[_Item, ConfirmChannel, Confirm]] = []
        unsent = ""
        try:
            async with asyncio.timeout_at(deadline):
                for item in items:
                    channel = await self._open_channel()
                    sent.append((item, channel, await channel.send(item.message, item.return_id)))
                if sent:
                    await asyncio.wait([confirm for _, _, confirm in sent])
        except TimeoutError:
            unsent = self._why_late()
        except BrokerUnavailable as error:
            unsent = str(error)
        suspects = []
        for item, channel, confirm in await self._settled(sent, deadline):
            answer = answer_of(channel, confirm)
            if answer is None:
                suspects.append(item)
            else:
                answers[item.index] = answer
        for item in items[len(sent):]:
            answers[item.index] = Published(Receipt.UNKNOWN, f"not sent: {unsent}")
        return suspects

    def _why_late(self) -> str:
        session = self._link.session
        if session is not None and not session.flowing.is_set():
            return "RabbitMQ blocks the connection, it is short of memory or disk"
        return f"not confirmed within {self._limits.timeout_s:g} s"

    async def _settled(
        self, sent: list[tuple[_Item, ConfirmChannel, Confirm]], deadline: float
    ) -> list[tuple[_Item, ConfirmChannel, Confirm]]:
        """`sent`, once it is confirmed or the deadline is over. Late channels are given up."""
        late = [confirm for _, _, confirm in sent if not confirm.done()]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                if late:
                    await asyncio.wait(late)
        for channel in {channel for _, channel, confirm in sent if not confirm.done()}:
            self._retire(channel)
        return sent

    async def _publish_alone(
        self, items: Sequence[_Item], deadline: float
    ) -> dict[int, Published]:
        """Publish one at a time on a connection with nothing else, so that blame is certain."""
        answers = {item.index: LATE for item in items}
        session: Session | None = None
        channel: ConfirmChannel | None = None
        try:
            async with asyncio.timeout_at(deadline), self._quarantine:
                for item in items:
                    if session is None or channel is None or not channel.open:
                        if session is not None:
                            await session.close()
                        session = await self._link.extra_session()
                        opened = await session.channel(confirms=True)
                        channel = ConfirmChannel(session, opened, self._limits.window)
                    confirm = await channel.send(item.message, item.return_id)
                    await asyncio.wait([confirm])
                    answers[item.index] = answer_of(channel, confirm) or blame(channel)
        except TimeoutError:
            pass
        except (ConsumerError, OSError) as error:
            unknown = Published(Receipt.UNKNOWN, str(error))
            answers = {i: unknown if a is LATE else a for i, a in answers.items()}
        finally:
            if session is not None:
                await session.close()
        return answers

    async def _open_channel(self) -> ConfirmChannel:
        """The channel all calls share.

        Raises:
            BrokerUnavailable: There is no connection.
        """
        if self._channel is not None:
            if self._channel.open:
                return self._channel
            # After an error on a channel its number is not safe to be used again: where the
            # library was busy, the broker still waits for an answer on it.
            self._link.renew(self._channel.session)
            self._channel = None
        if self._opening is None:
            self._opening = asyncio.create_task(self._new_channel())
        opening = self._opening
        try:
            # A caller's time limit must not cancel it: a channel half open cannot be used.
            self._channel = await asyncio.shield(opening)
        finally:
            if opening.done() and self._opening is opening:
                self._opening = None
        return self._channel

    async def _new_channel(self) -> ConfirmChannel:
        session = self._link.session or await self._link.wait(self._limits.connect_wait_s)
        channel = await session.channel(confirms=True)
        return ConfirmChannel(session, channel, self._limits.window)

    def _retire(self, channel: ConfirmChannel) -> None:
        """Nothing more is published on it: an id that is unconfirmed there may be sent again."""
        if channel is self._channel:
            self._channel = None
        task = asyncio.create_task(channel.drain(self._limits.timeout_s))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
