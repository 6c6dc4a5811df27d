"""Payments: captures, refunds and receipts, each taking effect once."""
