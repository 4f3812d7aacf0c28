"""Part of the catalog in memory; see the package."""

from collections.abc import Sequence


class FakeRecords:
    """The `Records` port of a catalog of which nothing is recorded."""

    def unflushed(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """None: no delete is durable here."""
        del ledger_ids
        return frozenset()
