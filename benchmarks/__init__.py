"""Measurements of the framework under load. Not part of the package."""
