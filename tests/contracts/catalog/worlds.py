"""The worlds that the suite runs on."""

from tests.contracts.catalog.memory_world import MemoryWorld
from tests.contracts.catalog.sql_world import SqlWorld
from tests.contracts.catalog.world import CAUSE, World, claim

__all__ = ["CAUSE", "MemoryWorld", "SqlWorld", "World", "claim"]
