"""In-memory twins of the ports, for tests without services.

They keep the same promises as Postgres and RabbitMQ do, and pass the same contract suite.
"""

from consumer.testing.memory.broker import MemoryBroker
from consumer.testing.memory.clock import FakeClock
from consumer.testing.memory.database import MemoryDatabase, MemoryOutbox, MemoryStore

__all__ = ["FakeClock", "MemoryBroker", "MemoryDatabase", "MemoryOutbox", "MemoryStore"]
