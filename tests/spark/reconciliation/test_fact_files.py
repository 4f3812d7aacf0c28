"""Files of facts are read with the columns of this build, or not at all."""

from pathlib import Path

import pyarrow as pa
import pytest

from logstore.errors import PreconditionFailed
from spark.reconciliation.fact_files import UngroupedFactFile, read_facts

_SCHEMA = pa.schema([("ledger_id", pa.int64()), ("given_up", pa.bool_())])


def write(folder: Path, schema: pa.Schema) -> None:
    file = UngroupedFactFile(folder, "references", 0, schema)
    file.write(pa.RecordBatch.from_pylist([dict.fromkeys(schema.names, 1)], schema=schema))
    file.close()


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("ledger_id", pa.int64())]),
        pa.schema([("ledger_id", pa.int64()), ("given_up", pa.int64())]),
    ],
)
def test_facts_of_another_build_are_refused(tmp_path: Path, schema: pa.Schema) -> None:
    """A plan that a worker of the build before began is made again."""
    write(tmp_path, schema)
    with pytest.raises(PreconditionFailed, match="expected the columns ledger_id, given_up, found"):
        read_facts(tmp_path, "references", None, _SCHEMA)


def test_facts_of_this_build_are_read(tmp_path: Path) -> None:
    schema = pa.schema([("ledger_id", pa.int64())])
    write(tmp_path, schema)
    assert read_facts(tmp_path, "references", None, schema)["ledger_id"].to_pylist() == [1]
