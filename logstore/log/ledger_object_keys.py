"""Keys of the objects of a ledger's primary copy."""

import re

from logstore.log.ledgers import LedgerOwner
from logstore.positions import LedgerId

SHARDS = 256
_LEDGER_FORM = re.compile(r"ledgers/[0-9a-f]{2}/(?P<ledger>[0-7][0-9a-f]{15})/")
_SEGMENT_FORM = re.compile(r"(?P<number>[0-9]{8})\.parquet")
_META_FORM = re.compile(r"(?P<digest>[0-9a-f]{16})\.meta\.json")


def shard_prefix(shard: int) -> str:
    return f"ledgers/{shard:02x}/"


def ledger_prefix(ledger_id: LedgerId) -> str:
    return f"{shard_prefix(ledger_id % SHARDS)}{ledger_id:016x}/"


def meta_key(ledger_id: LedgerId, owner: LedgerOwner) -> str:
    """Return the key of the ledger's statement. The key has the ledger owner's digest, which a LIST shows."""
    return f"{ledger_prefix(ledger_id)}{owner.digest}.meta.json"


def segment_key(ledger_id: LedgerId, number: int) -> str:
    """Return the key of a segment. `number` is 0 to 99,999,999 inclusive."""
    return f"{ledger_prefix(ledger_id)}{number:08d}.parquet"


def ledger_id_from_key(key: str) -> LedgerId | None:
    match = _LEDGER_FORM.match(key)
    ledger_id = LedgerId(int(match["ledger"], 16)) if match else None
    return ledger_id if ledger_id is not None and key.startswith(ledger_prefix(ledger_id)) else None


def owner_digest_from_key(key: str) -> str | None:
    """Return the digest of the ledger owner from the key of a `meta.json`, or `None` for any other key."""
    match = _META_FORM.fullmatch(key.rpartition("/")[2])
    return match["digest"] if match else None


def segment_number_from_key(key: str) -> int | None:
    match = _SEGMENT_FORM.fullmatch(key.rpartition("/")[2])
    return int(match["number"]) if match else None
