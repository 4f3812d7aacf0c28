"""A catalog in memory: topics, ledgers, cursors, group commits and deletions under one lock.

It keeps the promises of the ports' docstrings and nothing else. A writing method is one effect of the name that the
SQL has, so that tests can die before and after it; faults of a commit are played by `Misfortune`.
"""

from tests.fakes.catalog.commits import Misfortune, Moment
from tests.fakes.catalog.state import Copy, FakeCatalog

__all__ = ["Copy", "FakeCatalog", "Misfortune", "Moment"]
