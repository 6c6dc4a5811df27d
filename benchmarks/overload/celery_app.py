"""The same charge as a Celery application, the way Celery's documentation advises.

Late acknowledgement, automatic retries with exponential backoff and jitter
(https://docs.celeryq.dev/en/stable/userguide/tasks.html#automatic-retry-for-known-exceptions), a
quorum queue with what it needs (topic exchange for native delayed delivery, no global QoS:
https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/rabbitmq.html), confirmed
publishing of retries, no result backend. Events, gossip and remote control are off: they need
transient queues, which RabbitMQ 4.3 refuses.
"""

import os
import queue
import time
from typing import Any, LiteralString

import httpx
import psycopg
from celery import Celery, Task  # type: ignore[import-untyped]

from benchmarks.overload.plan import (
    CALL_TIMEOUT_SECONDS,
    MAX_ATTEMPTS,
    MIN_ATTEMPT_SECONDS,
    NAIVE_CONCURRENCY,
)

QUEUE = "charges"
TASK = "overload.charge"
DELAY_QUEUES = [f"celery_delayed_{level}" for level in range(28)]

app = Celery("overload", broker=os.environ.get("CONSUMER_AMQP_URL", "amqp://"))
app.conf.update(
    task_default_queue=QUEUE,
    task_default_exchange=QUEUE,
    task_default_routing_key=QUEUE,
    task_default_queue_type="quorum",
    task_default_exchange_type="topic",
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
)

_PROVIDER = os.environ.get("OVERLOAD_PROVIDER_URL", "")
_client = httpx.Client(base_url=_PROVIDER, timeout=CALL_TIMEOUT_SECONDS, trust_env=False,
                       limits=httpx.Limits(max_connections=NAIVE_CONCURRENCY))
_idle: "queue.LifoQueue[psycopg.Connection[Any]]" = queue.LifoQueue()


class Recorded(Task):  # type: ignore[misc]
    """A task whose final failure leaves a row, since a task without result would leave nothing."""

    def on_failure(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        refuse(task_id, "attempts")


@app.task(bind=True, base=Recorded, name=TASK, acks_late=True, autoretry_for=(httpx.HTTPError,),
          retry_backoff=True, max_retries=MAX_ATTEMPTS - 1)  # type: ignore[untyped-decorator]
def charge(task: Task, key: str, deadline_ms: int) -> None:
    """The card is charged and the charge written once, unless it is too late."""
    if time.time() + MIN_ATTEMPT_SECONDS > deadline_ms / 1000:
        refuse(key, "deadline")
        return
    _client.post("/charge", headers={"x-command": key}).raise_for_status()
    _execute("INSERT INTO charge (key) VALUES (%s) ON CONFLICT DO NOTHING", (key,))


def refuse(key: str, reason: str) -> None:
    """It is on record that the command was given up."""
    _execute("INSERT INTO refusal (key, reason) VALUES (%s, %s)", (key, reason))


def _execute(statement: LiteralString, arguments: tuple[str, ...]) -> None:
    """The statement has run and is committed, on a connection kept for the next."""
    try:
        connection = _idle.get_nowait()
    except queue.Empty:
        url = os.environ["CONSUMER_DATABASE_URL"].replace("+asyncpg", "", 1)
        connection = psycopg.connect(url, autocommit=True)
    connection.execute(statement, arguments)
    _idle.put(connection)
