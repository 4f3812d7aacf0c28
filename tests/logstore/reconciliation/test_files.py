"""Fates of a page: the whole file or none, whenever the process dies."""

from pathlib import Path

import pytest

from logstore.failpoints import SimulatedCrash
from logstore.reconciliation.files import Ended, FateFiles
from logstore.reconciliation.findings import Fate

_ONE = [Ended(number=3, fate=Fate.DELETED, objects=2, size_bytes=9), Ended(number=4, fate=Fate.KEPT, reason="young")]


@pytest.mark.parametrize("at", ["pyarrow.parquet.write_table", "pathlib.Path.replace"])
def test_page_whose_writer_died_is_not_there_and_is_written_again(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FateFiles(tmp_path / "fates")

    def die(*_: object, **__: object) -> None:
        raise SimulatedCrash

    def put_and_die(ended: list[Ended]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(at, die)
            files.put(0, ended)

    with pytest.raises(SimulatedCrash):
        put_and_die(_ONE)
    assert files.page(0) is None
    files.put(0, _ONE)
    with pytest.raises(SimulatedCrash):
        put_and_die([])
    assert FateFiles(tmp_path / "fates").page(0) == {one.number: one for one in _ONE}
    assert files.page(1) is None
