"""Manifests: numbered objects that name the blocks of the record log.

The newest manifest replaces all earlier manifests. A manifest is stored only if its number is free. Before a manifest
is stored, its stamp is committed to the catalog. A catalog that does not know the stamp of the newest manifest is
outdated, or is another catalog.

A manifest shows a moment: the state of the catalog at one time. A large flush is divided into pages, and stores one
manifest for each page. The manifest of a page repeats the blocks of the previous manifest, because a part of a flush
shows no moment. The last manifest of the flush names the blocks of all pages. Replicas ignore manifests that repeat an
earlier moment. The first manifest of a rebuilt catalog's epoch also repeats a moment (ADR 24).

Source: Apache Iceberg's metadata files, each of which is complete.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from logstore.errors import CorruptData, Unsupported
from logstore.records.record_kinds import RECORD_LOG_FORMAT, RecordKind

MANIFEST_PREFIX: Final = "records/manifest/"
BEGUN_KEY: Final = "records/registers/begun"
"""Key of the object that proves that a manifest was stored. The object is never removed."""

BLOCK_PREFIX: Final = "records/blocks/"
_KEY: Final = re.compile(rf"{MANIFEST_PREFIX}(\d{{12}})\.json")

ID_HEADROOM: Final = 1_000_000
"""Distance between a new ceiling and the next id. Also the first ceiling of a catalog without manifests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdCeilings:
    """Exclusive upper bounds of the ids that may be given out. In a rebuilt catalog, new ids begin at these bounds."""

    ledger: int = ID_HEADROOM
    topic: int = ID_HEADROOM
    transaction: int = ID_HEADROOM  # sequence numbers of each coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Description of a block in a manifest."""

    block_id: str
    kind: RecordKind
    records: int  # record versions, including tombstones
    tombstones: int
    size_bytes: int
    sha256: str  # digest of the object, hexadecimal
    first_id: int  # lowest id of a record in the block
    last_id: int  # highest id of a record in the block

    @property
    def key(self) -> str:
        return f"{BLOCK_PREFIX}{self.block_id}.parquet"

    @classmethod
    def from_fields(cls, fields_by_name: Mapping[str, Any]) -> "Block":
        return cls(**{**fields_by_name, "kind": RecordKind(fields_by_name["kind"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Object that names all blocks of one moment of the catalog."""

    number: int  # from 1
    catalog_id: str
    epoch: int
    bundles: int  # number of bundles, fixed when the catalog was created
    stamp: str
    flushed_us: int  # time of the shown moment by the catalog's clock
    ceilings: IdCeilings
    blocks: tuple[Block, ...] = ()
    # number of the manifest whose moment is repeated; 0: no flush has ended yet; null: the moment is a new one
    shows: int | None = None
    moment_epoch: int | None = None  # epoch of the shown moment; null: `epoch`
    # next ids at the shown moment: a record with a lower id is in the blocks, or was deleted before the moment;
    # null: an earlier build wrote the manifest
    next_ids: IdCeilings | None = None
    format: int = field(default=RECORD_LOG_FORMAT)

    @property
    def key(self) -> str:
        return manifest_key(self.number)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @property
    def moment_number(self) -> int:
        """Number of the manifest whose moment this manifest shows. 0: no flush has ended yet."""
        return self.number if self.shows is None else self.shows

    @property
    def rows_epoch(self) -> int:
        """Epoch of the catalog whose rows are in the blocks."""
        return self.epoch if self.moment_epoch is None else self.moment_epoch

    @classmethod
    def parse(cls, body: bytes, key: str) -> "Manifest":
        try:
            document: Mapping[str, Any] = json.loads(body)
            is_newer = int(document["format"]) > RECORD_LOG_FORMAT
            if not is_newer:
                manifest = _manifest_from_document(cls, document)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{key}: expected a manifest, found {body[:60]!r}: {error}") from error
        if is_newer:
            raise Unsupported(
                f"{key}: expected format {RECORD_LOG_FORMAT} at most, found"
                f" {document['format']}: a newer build wrote it"
            )
        if manifest.key != key:
            raise CorruptData(f"{key}: expected the manifest of that number, found number {manifest.number}")
        return manifest


def _manifest_from_document(cls: type[Manifest], document: Mapping[str, Any]) -> Manifest:
    names = {field.name for field in fields(cls)}
    values = {name: value for name, value in document.items() if name in names}
    values["ceilings"] = IdCeilings(**document["ceilings"])
    values["next_ids"] = IdCeilings(**document["next_ids"]) if document.get("next_ids") else None
    values["blocks"] = tuple(Block.from_fields(block) for block in document["blocks"])
    return cls(**values)


def manifest_key(number: int) -> str:
    """Return the key of a manifest. Keys sort in the order of their numbers."""
    return f"{MANIFEST_PREFIX}{number:012d}.json"


def parse_manifest_number(key: str) -> int | None:
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None
