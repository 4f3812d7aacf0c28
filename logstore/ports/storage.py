"""Where the copies of ledgers stand, as two-phase deletion needs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What storage confirmed of one copy's removal."""

    objects: int = 0
    size_bytes: int = 0
    error: str | None = None  # None: nothing of it is left
    answered: bool = True  # False: storage went away before it had answered for every key


class CopyStorage(Protocol):
    """One kind of copy of ledgers: the primary bucket, the tiered bucket, BookKeeper."""

    def inspect(self, intent: DeletionIntent) -> StoredCopy:
        """Look at what storage holds of the copy, and whose it says it is.

        Raises:
            StoreUnavailable: Storage did not answer, or contradicts itself.
        """

    def inspecting(self, intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        """`inspect` for these, each to be asked for once; what one request tells of several is asked with the first."""

    def check_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        """Ask each store in which copies were found `ABSENT` whether it is the catalog's, once, and now.

        An empty answer of another store says nothing of the catalog's copies.

        Returns:
            By `row_id`, why the copy may stand elsewhere all the same; a row that is not named is gone.
        """

    def statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """What storage itself says of whose the copy is, read from content, or None when it says nothing.

        For people: `inspect` judges. The fields are those of `LedgerStatement.to_metadata` where we wrote it, and
        anything at all where somebody else did.

        Raises:
            StoreUnavailable: Storage did not answer.
        """

    def remove(self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]) -> Mapping[int, Removal]:
        """Remove copies found `OWN`: data in pages, each ledger's own statement last, confirmed per key.

        Args:
            copies: By `row_id`; removed together, so that small ledgers share pages.
            on_progress: Called with the number of objects confirmed since the last call.

        Returns:
            One entry for every row asked for.
        """


Storages = Mapping[str, CopyStorage]
"""`CopyStorage` by `CopyKind` value."""
