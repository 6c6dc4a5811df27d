"""The application: `consumer worker examples.webhooks.app:app` runs it."""

from collections.abc import Sequence

from pydantic import ConfigDict
from sqlalchemy import insert

from consumer import App, Command, Context, Handler, Options, Queue
from examples.webhooks.tables import Webhook


class GithubWebhook(Command, type="github.webhook"):
    """What GitHub sent: any JSON object, for each event has a shape of its own.

    GitHub's headers become the message's: `X-GitHub-Delivery` its idempotency key, so that a
    delivery GitHub repeats is stored once, and `X-GitHub-Event` the header `x-github-event`.
    """

    model_config = ConfigDict(extra="allow")


class StoreWebhook(Handler[GithubWebhook]):
    """The payload is stored, letter by letter, as it came."""

    name = "github.webhook"
    queue = "webhooks"
    options = Options(group_size=10)

    async def handle_group(
        self, commands: Sequence[GithubWebhook], contexts: Sequence[Context]
    ) -> None:
        """All of them are stored in one statement."""
        await contexts[0].session.execute(insert(Webhook), [
            {"delivery_id": context.key, "event": str(context.headers.get("x-github-event", "")),
             "payload": context.message.body.decode("utf-8-sig")}
            for context in contexts
        ])


app = App("webhooks", handlers=[StoreWebhook], queues=[Queue("webhooks", concurrency=2)])
