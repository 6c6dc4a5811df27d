"""Invoices priced by a provider's exchange rates, which are limited and sometimes away."""
