"""The application: `consumer worker examples.payments.app:app` runs it."""

from consumer import App, Queue
from examples.payments.handlers import Capture, Refund, WriteReceipt

QUEUES = (Queue("payments", concurrency=2), Queue("receipts", concurrency=1))

app = App("payments", handlers=[Capture, Refund, WriteReceipt], queues=QUEUES)
