"""A catalog in memory: topics, ledgers, cursors and group commits under one lock.

It keeps the promises of the ports' docstrings and nothing else; phase one is played by `detach` and faults of a
commit by `Misfortune`.
"""

from tests.fakes.catalog.commits import Misfortune, Moment
from tests.fakes.catalog.state import FakeCatalog

__all__ = ["FakeCatalog", "Misfortune", "Moment"]
