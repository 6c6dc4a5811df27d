"""The payments application over a bank that sometimes does not answer."""

from datetime import timedelta

from consumer import App, Budget, Context, Options, Retry
from examples.payments.app import QUEUES
from examples.payments.commands import CapturePayment
from examples.payments.handlers import Capture, Refund, WriteReceipt

FAILURES_HEADER = "demo-failures"


class FlakyCapture(Capture):
    """A capture whose first attempts fail, as many as a header of its message says.

    What it does depends on the attempt alone, so that the figures are the same whichever process
    runs it.
    """

    options = Options(backoff_base=timedelta(milliseconds=500), backoff_cap=timedelta(seconds=2))

    async def handle(self, command: CapturePayment, context: Context) -> None:
        await super().handle(command, context)
        failures = context.headers.get(FAILURES_HEADER, 0)
        if isinstance(failures, int) and context.attempt <= failures:
            # After the work, so that it shows if a failed attempt left anything behind.
            raise Retry("the bank did not answer")


# All its commands come at once and many fail at first: more than the default budget saves up for.
app = App("payments-demo", handlers=[FlakyCapture, Refund, WriteReceipt], queues=QUEUES,
          deploy_grace=timedelta(seconds=3), retry_budget=Budget(ratio=0.5, capacity=500))
