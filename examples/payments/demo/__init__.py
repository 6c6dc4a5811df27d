"""A demonstration that checks itself: `python -m examples.payments.demo`."""
