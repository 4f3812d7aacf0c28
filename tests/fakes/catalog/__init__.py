"""A catalog in memory: topics, ledgers, cursors, group commits and deletions under one lock.

It keeps the promises of the ports' docstrings and nothing else. A writing method is one effect of the name that the
SQL has, so that tests can die before and after it; faults of a commit are played by `Misfortune`.
"""

from tests.fakes.catalog.fake_catalog import Copy, FakeCatalog
from tests.fakes.catalog.group_commits import Misfortune, Moment

__all__ = ["Copy", "FakeCatalog", "Misfortune", "Moment"]
