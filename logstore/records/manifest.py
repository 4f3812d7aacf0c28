"""Manifests: a numbered series of objects, of which the newest says which blocks hold the catalog's records.

A manifest is put under its number only if that is free, so of two writers one wins. Its stamp was committed to the
catalog before it was put: a catalog that knows the stamp of the newest manifest neither as its last one nor as one that
was about to be put is older than its record log, or another's.

A flush of many changes works page by page. The manifest of a page names what the one before it named, because half of a
flush is no moment of the catalog; the one that ends the flush names the blocks of all its pages. `shows` tells the two
apart: replicas apply those alone that show a moment of their own. The manifest by which a rebuild begins a new epoch
shows the moment that was loaded, too: rows of the new epoch come with the flush that ends the rebuild (ADR 24).

`next_ids` belongs to the moment, like the blocks. Lower ids are in the blocks, or were deleted before the moment.

Source: Apache Iceberg's metadata files, of which each is complete; Aerospike has one index in memory.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from logstore.errors import CorruptData, Unsupported
from logstore.records.kinds import FORMAT, RecordKind

PREFIX: Final = "records/manifest/"
BEGUN_KEY: Final = "records/registers/begun"
"""Mark of a log into which a manifest was ever put. It stands behind the first one, and no sweep removes it."""

BLOCKS: Final = "records/blocks/"
_KEY: Final = re.compile(rf"{PREFIX}(\d{{12}})\.json")

FREE_IDS: Final = 1_000_000
"""Ids that a catalog gives out before its first manifest, and how far ahead of what was given out ceilings are set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Ids below these may be given out; a rebuilt catalog begins with them, whatever was given out."""

    ledger: int = FREE_IDS
    topic: int = FREE_IDS
    transaction: int = FREE_IDS  # sequences of every coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block, as manifests name it: `records/blocks/{block_id}.parquet`."""

    block_id: str
    kind: RecordKind
    records: int  # versions, tombstones among them
    tombstones: int
    size_bytes: int
    sha256: str  # of the object, hexadecimal
    first_id: int  # the lowest and the highest id in it
    last_id: int

    @property
    def key(self) -> str:
        """Of its object."""
        return f"{BLOCKS}{self.block_id}.parquet"

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Block":
        """As its fields were told as JSON; raises TypeError or ValueError where they are others."""
        return cls(**{**found, "kind": RecordKind(found["kind"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What counts at one moment."""

    number: int  # from 1
    catalog_id: str
    epoch: int
    bundles: int  # of the catalog, fixed when it was created
    stamp: str
    flushed_us: int  # the moment of the catalog that it shows, by the catalog's clock
    ceilings: Ceilings
    blocks: tuple[Block, ...] = ()
    shows: int | None = None  # an earlier one whose moment it shows, 0: none; null: it shows one of its own
    moment_epoch: int | None = None  # of the catalog at the moment that it shows; null: `epoch`
    next_ids: Ceilings | None = None  # given out next at the moment that it shows; null: an earlier build wrote it
    format: int = field(default=FORMAT)

    @property
    def key(self) -> str:
        """Of its object."""
        return manifest_key(self.number)

    def to_json(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @property
    def moment(self) -> int:
        """The number of the manifest whose moment it shows; 0: there was none before the first flush."""
        return self.number if self.shows is None else self.shows

    @property
    def rows_epoch(self) -> int:
        """Epoch of the catalog whose rows its blocks hold. Uploads of later epochs are in none of them."""
        return self.epoch if self.moment_epoch is None else self.moment_epoch

    @classmethod
    def of(cls, body: bytes, key: str) -> "Manifest":
        """Read what was stored under a key.

        Raises:
            Unsupported: It is of a newer format.
            CorruptData: It is no manifest, or stands under the number of another.
        """
        try:
            found: Mapping[str, Any] = json.loads(body)
            newer = int(found["format"]) > FORMAT
            if not newer:
                manifest = _read(cls, found)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{key}: expected a manifest, found {body[:60]!r}: {error}") from error
        if newer:
            raise Unsupported(
                f"{key}: expected format {FORMAT} at most, found {found['format']}: a newer build wrote it"
            )
        if manifest.key != key:
            raise CorruptData(f"{key}: expected the manifest of that number, found number {manifest.number}")
        return manifest


def _read(cls: type[Manifest], found: Mapping[str, Any]) -> Manifest:
    known = {one.name for one in fields(cls)}
    values = {name: value for name, value in found.items() if name in known}
    values["ceilings"] = Ceilings(**found["ceilings"])
    values["next_ids"] = Ceilings(**found["next_ids"]) if found.get("next_ids") else None
    values["blocks"] = tuple(Block.of(one) for one in found["blocks"])
    return cls(**values)


def manifest_key(number: int) -> str:
    """The key of the manifest of a number, 1 or more; keys sort as numbers."""
    return f"{PREFIX}{number:012d}.json"


def number_of(key: str) -> int | None:
    """The number of a manifest's key; None of any other key."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None
