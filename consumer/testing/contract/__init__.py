"""Suites every implementation of a port passes: what the port promises, as tests.

Subclass a suite in your tests and give it the fixture it asks for.
"""
