"""Findings and fates as files: the whole of one or none, and a damaged one is said to be so."""

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.errors import CorruptData
from logstore.failpoints import SimulatedCrash
from logstore.reconciliation.finding_files import FateFiles, FindingFiles, findings_to_table
from logstore.reconciliation.findings import FateOfFinding, Finding, FindingFate, FindingKind

_ONE = [
    FateOfFinding(number=3, fate=FindingFate.DELETED, objects=2, size_bytes=9),
    FateOfFinding(number=4, fate=FindingFate.KEPT, reason="young"),
]


@pytest.mark.parametrize("at", ["pyarrow.parquet.write_table", "pathlib.Path.replace"])
def test_page_whose_writer_died_is_not_there_and_is_written_again(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FateFiles(tmp_path / "fates")

    def die(*_: object, **__: object) -> None:
        raise SimulatedCrash

    def put_and_die(ended: list[FateOfFinding]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(at, die)
            files.write_page(0, ended)

    with pytest.raises(SimulatedCrash):
        put_and_die(_ONE)
    assert files.read_page(0) is None
    files.write_page(0, _ONE)
    with pytest.raises(SimulatedCrash):
        put_and_die([])
    assert FateFiles(tmp_path / "fates").read_page(0) == {one.number: one for one in _ONE}
    assert files.read_page(1) is None


@pytest.mark.parametrize("damage", ["emptied", "cut", "flipped", "another"])
def test_damaged_file_of_findings_is_refused_as_such(damage: str, tmp_path: Path) -> None:
    """Not as a bug: a command names the file, and an apply ends."""
    path, bytes_ = tmp_path / "findings-0.parquet", BytesIO()
    pq.write_table(findings_to_table([Finding(kind=FindingKind.FOREIGN, key="a" * 99, size_bytes=5)] * 9), bytes_)
    whole = bytes_.getvalue()
    other = BytesIO()
    pq.write_table(pa.table({"kind": ["none of ours"], "size_bytes": [1]}), other)
    cases = {
        "emptied": b"",
        "cut": whole[:-100],
        "flipped": whole[:4] + b"\xff" * 200 + whole[204:],
        "another": other.getvalue(),
    }
    path.write_bytes(cases[damage])
    for read in (
        lambda: FindingFiles(tmp_path).read_page(0),
        lambda: FindingFiles(tmp_path).count_findings_and_bytes_by_kind(),
    ):
        with pytest.raises(CorruptData, match=r"findings-0\.parquet"):
            read()


def test_damaged_file_of_fates_is_refused_as_such(tmp_path: Path) -> None:
    files = FateFiles(tmp_path)
    files.write_page(0, _ONE)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptData, match=r"page-00000000\.parquet"):
        files.read_page(0)
