"""Facts that a scan of references yields."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from logstore.pulsar.ledger_references import OffloadAttempt
from logstore.pulsar.unreadable_metadata import UnreadableMetadata


@dataclass(frozen=True, slots=True)
class ScannedReference:
    """Reference to a ledger. `path` is relative to the chroot of the cluster."""

    ledger_id: int
    path: str
    source: str  # field, such as `ledgers` or `cursor_ledger_id`
    is_owner: bool = True  # False: a shadow topic lists the ledger of another topic
    can_be_absent: bool = False  # nothing is lost if the ledger is absent
    given_up: bool = False  # the owner lists the ledger, and reads only the objects of its offload


@dataclass(frozen=True, slots=True)
class OffloadReference:
    """Tiered objects that a managed ledger names."""

    managed_ledger: str
    attempt: OffloadAttempt


@dataclass(frozen=True, slots=True)
class CompactionCursor:
    """Compaction cursor whose state, with the compacted ledger, is in the last entry of a cursor ledger."""

    path: str
    cursor_ledger_id: int


@dataclass(frozen=True, slots=True)
class ScannedManagedLedger:
    """Managed ledger of a scan, with the state of its znode."""

    name: str
    ledgers: int
    version: int
    czxid: int
    modified_ms: int
    shadow_source: str = ""


@dataclass(frozen=True, slots=True)
class ScanProblem:
    """Znode that a scan could not read. A scan with a problem is incomplete."""

    path: str
    reason: str  # a sentence


ScanFact = ScannedReference | OffloadReference | CompactionCursor | ScannedManagedLedger | ScanProblem


def catch_unreadable(path: str, find_facts: Callable[[], list[ScanFact]]) -> Iterator[ScanFact]:
    """Yield the facts of a znode, or a problem if its value cannot be read."""
    try:
        yield from find_facts()
    except UnreadableMetadata as error:
        yield ScanProblem(path, str(error))
