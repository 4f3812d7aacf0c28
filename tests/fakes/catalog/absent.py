"""Ports that nothing needs which runs on the catalog in memory: SQLite serves the tests of those."""

from collections.abc import Sequence
from typing import Any

from logstore.errors import Unsupported


class Absent:
    """A port of which each call is refused."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"the catalog in memory has no {self._what}: {name}")


class Unrecorded(Absent):
    """The `RecordOutbox` port of a catalog of which nothing is recorded."""

    def find_unflushed_ledgers(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """None: no delete is durable here."""
        del ledger_ids
        return frozenset()
