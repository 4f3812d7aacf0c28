"""Blocks and manifests have the same bytes as in the first release that wrote them.

A rebuild compares blocks by digest, and replicas of another build read them. The digests hold for one version of
Arrow: after an upgrade of pyarrow, check that only the writer's name in the footers has changed, then record them again
with `python -m tests.logstore.records.test_golden_blocks`.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import JSON, Connection, LargeBinary, String, Text, insert, select, update

from logstore.catalog import Catalog, Database
from logstore.catalog import tables as t
from logstore.log.segment_format import sha256_hex
from logstore.records.block_files import describe_block, encode_block
from logstore.records.manifest import IdCeilings, Manifest
from logstore.records.record_kinds import RecordKind
from tests.migrated_catalogs import create_migrated_sqlite

_FILE: Final = Path(__file__).with_name("golden_blocks.json")
_ROWS: Final = 3
_IN_ORDER: Final = (
    "topic", "ledger_list", "ledger", "ledger_copy", "segment", "cursor", "schema_version", "producer_sequence",
    "pending_deletion", "transaction", "transaction_participant", "buffer_range", "buffer_hidden", "delayed_index",
    "delayed_bucket", "transaction_snapshot",
)  # fmt: skip
"""Every table with rows in the record log."""
_BY_COLUMN: Final[dict[tuple[str, str], Any]] = {
    ("ledger_copy", "kind"): ["LEDGER", "OFFLOADED_LEDGER", "LEDGER"],
    ("ledger", "place"): [1, 2, None],
}


def _value(table: str, column: Any, row: int) -> Any:
    if (table, column.name) in _BY_COLUMN:
        return _BY_COLUMN[table, column.name][row]
    if isinstance(column.type, JSON):
        return {"of": f"{table} {row}"}
    if isinstance(column.type, LargeBinary):
        return bytes(range(row, row + 8))
    if isinstance(column.type, String | Text):
        return f"{column.name}-{row}"
    return row + 1


def _fill(connection: Connection) -> None:
    """Three rows of each table; all columns have values that follow from their names."""
    for name in _IN_ORDER:
        table = t.metadata.tables[name]
        rows = [{column.name: _value(name, column, row) for column in table.c} for row in range(_ROWS)]
        connection.execute(insert(table), rows)
    connection.execute(update(t.delayed_index).values(version=t.delayed_index.c.version + 1))  # a switch
    keys = connection.execute(select(t.record_outbox).order_by("kind", "id", "sub", "version")).all()
    connection.execute(update(t.record_outbox).values(version=t.record_outbox.c.version + 1_000_000, at_us=77))
    for number, row in enumerate(keys, 1):
        chosen = t.record_outbox.c.version == row.version + 1_000_000
        connection.execute(update(t.record_outbox).where(chosen).values(version=number))


def _blocks() -> Iterator[tuple[RecordKind, pa.Table, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(create_migrated_sqlite(Path(folder) / "catalog.db"))
        database.write(_fill)
        with Catalog(database).records.read_changes(cursors=True) as changes:
            for kind, batch in changes.iterate_version_batches():
                versions = pa.Table.from_batches([batch])
                yield kind, versions, encode_block(kind, versions)
            assert not changes.unrecordable
        database.close()


def _written() -> dict[str, str]:
    """The digest of the block of each kind, and of a manifest that names them all."""
    written = {kind: (versions, file) for kind, versions, file in _blocks()}
    blocks = [describe_block(f"block-{kind}", kind, versions, file) for kind, (versions, file) in written.items()]
    ceilings = IdCeilings(ledger=7, topic=8, transaction=9)
    manifest = Manifest(
        number=7,
        catalog_id="catalog",
        epoch=2,
        bundles=16,
        stamp="stamp",
        flushed_us=99,
        ceilings=ceilings,
        blocks=tuple(blocks),
        next_ids=ceilings,
    )
    digests = {kind.value: sha256_hex(file) for kind, (_, file) in written.items()}
    return digests | {"manifest": sha256_hex(manifest.to_json())}


def test_blocks_and_manifests_have_the_bytes_of_the_first_release() -> None:
    """A changed column, order, type, encoding or name would make another file of the same records."""
    golden = json.loads(_FILE.read_text(encoding="utf-8"))
    written = _written()
    assert set(written) == {*map(str, RecordKind), "manifest"}
    assert written == golden


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_written(), indent=1, sort_keys=True) + "\n")
