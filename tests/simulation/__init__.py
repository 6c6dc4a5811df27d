"""Workers, relay, broker and database in one thread, under the control of a test.

`loop.py` is an event loop with time of its own, `stage.py` what plays on it, `explorer.py` walks
through the interleavings of it all.
"""
