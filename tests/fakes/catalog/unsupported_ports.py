"""Ports that nothing needs which runs on the catalog in memory: SQLite serves the tests of those."""

from collections.abc import Sequence
from typing import Any

from logstore.errors import Unsupported


class UnsupportedPort:
    """A port of which each call is refused."""

    def __init__(self, port_name: str) -> None:
        self._what = port_name

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"the catalog in memory has no {self._what}: {name}")


class UnrecordedOutbox(UnsupportedPort):
    """The `RecordOutbox` port of a catalog of which nothing is recorded."""

    def find_unflushed_ledgers(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """None: no delete is durable here."""
        del ledger_ids
        return frozenset()
