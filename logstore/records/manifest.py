"""Manifests: numbered objects. The newest manifest names the blocks that hold the catalog's records.

A manifest is stored only if its number is free. If two writers store the same number, one of them fails. Before a
manifest is stored, its stamp is committed to the catalog. If a catalog does not know the stamp of the newest manifest,
the catalog is older than the record log, or is another catalog.

A large flush works in pages and stores one manifest a page. Half a flush is no moment of the catalog. So the manifest
of a page repeats the blocks of the previous manifest. The last manifest names the blocks of all pages. `shows` tells
these manifests apart. Replicas apply only manifests that show a moment of their own. The first manifest of a rebuilt
catalog's epoch also repeats the loaded moment (ADR 24).

`next_ids` belongs to the moment. A record with a lower id is in the blocks, or was deleted before the moment.

Source: Apache Iceberg's metadata files, of which each is complete.
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
"""Key of the mark that the record log has a manifest. The mark is stored after the first manifest and never removed."""

BLOCK_PREFIX: Final = "records/blocks/"
_KEY: Final = re.compile(rf"{MANIFEST_PREFIX}(\d{{12}})\.json")

ID_HEADROOM: Final = 1_000_000
"""Distance of new ceilings from the next ids. Also the first ceiling of a catalog without manifests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdCeilings:
    """Bounds of the ids that may be given out. A rebuilt catalog gives out ids from these bounds on."""

    ledger: int = ID_HEADROOM
    topic: int = ID_HEADROOM
    transaction: int = ID_HEADROOM  # sequence numbers of each coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Entry of a block in a manifest."""

    block_id: str
    kind: RecordKind
    records: int  # record versions, including tombstones
    tombstones: int
    size_bytes: int
    sha256: str  # of the object, hexadecimal
    first_id: int  # lowest id
    last_id: int  # highest id

    @property
    def key(self) -> str:
        return f"{BLOCK_PREFIX}{self.block_id}.parquet"

    @classmethod
    def from_fields(cls, fields_by_name: Mapping[str, Any]) -> "Block":
        """Return a block from its JSON object.

        Raises:
            TypeError, ValueError: A field is missing or unknown.
        """
        return cls(**{**fields_by_name, "kind": RecordKind(fields_by_name["kind"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Manifest: names of all blocks that count at one moment of the catalog."""

    number: int  # from 1
    catalog_id: str
    epoch: int
    bundles: int  # fixed when the catalog was created
    stamp: str
    flushed_us: int  # time of the shown moment by the catalog's clock
    ceilings: IdCeilings
    blocks: tuple[Block, ...] = ()
    # earlier manifest whose moment is repeated (0: no moment); null: this manifest shows a moment of its own
    shows: int | None = None
    moment_epoch: int | None = None  # epoch of the shown moment; null: `epoch`
    # next ids to give out at the shown moment; null: an earlier build wrote the manifest
    next_ids: IdCeilings | None = None
    format: int = field(default=RECORD_LOG_FORMAT)

    @property
    def key(self) -> str:
        return manifest_key(self.number)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @property
    def moment_number(self) -> int:
        """Number of the manifest whose moment this manifest shows. 0: no moment, before the first flush."""
        return self.number if self.shows is None else self.shows

    @property
    def rows_epoch(self) -> int:
        """Epoch of the rows in the blocks. The blocks do not include uploads of later epochs."""
        return self.epoch if self.moment_epoch is None else self.moment_epoch

    @classmethod
    def parse(cls, body: bytes, key: str) -> "Manifest":
        """Parse the manifest stored under `key`.

        Raises:
            Unsupported: A newer build wrote the manifest.
            CorruptData: The content is no manifest, or has another number.
        """
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
    """Return the key of a manifest. Keys sort like numbers. Numbers start at 1."""
    return f"{MANIFEST_PREFIX}{number:012d}.json"


def parse_manifest_number(key: str) -> int | None:
    """Return the number in a manifest's key, or `None` for any other key."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None
