"""Inventories: what they say is what a listing would, and one that cannot be trusted is refused by name."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest

from logstore.errors import CorruptData, InvalidInput
from spark.sources import s3_inventory
from spark.sources.bucket_listings import LISTING_SCHEMA
from spark.sources.s3_inventory import Inventory, check_part_checksum, list_inventory_parts, read_part
from tests.spark.sources.inventories import Row, row, write

_AT_MS = 1_800_000_000_000  # as `write` has it
_KEYS = ["back up/%41 ~+é.bin", "a+b", "a b", "a%20b", "100%", "~", "日本/🙂", 'q"uo,te', "ledgers/readme", "NULL"]


def read_manifest(path: Path) -> Inventory:
    """A moment after it was made."""
    return s3_inventory.read_inventory_manifest(path, now_us=_AT_MS * 1_000 + 1)


def _read(manifest: Path) -> dict[str, tuple[int, int | None]]:
    found = read_manifest(manifest)
    batches = [batch for part in list_inventory_parts(found) for batch in read_part(part)]
    assert all(batch.schema == LISTING_SCHEMA for batch in batches)
    rows = [one for batch in batches for one in batch.to_pylist()]
    told = {one["key"]: (one["size_bytes"], one["modified_us"]) for one in rows}
    assert len(told) == len(rows)
    return told


@pytest.mark.parametrize("form", ["Parquet", "CSV"])
def test_keys_sizes_and_times_of_several_parts_come_back_as_they_were(form: str, tmp_path: Path) -> None:
    rows = [row(key, size=at, modified_us=1_700_000_000_123_000 + at * 1_000) for at, key in enumerate(_KEYS)]
    rows.append(row("unknown age", modified_us=None))
    manifest = write(tmp_path, "b", [rows[:3], rows[3:7], rows[7:]], form=form)
    assert _read(manifest) == {one["key"]: (one["size"], one["modified_us"]) for one in rows}


@pytest.mark.parametrize("form", ["Parquet", "CSV"])
def test_versioned_bucket_shows_the_latest_versions_that_are_no_delete_markers(form: str, tmp_path: Path) -> None:
    def version(key: str, latest: bool, marker: bool = False, size: int | None = 1) -> Row:
        return row(key, size=size, is_latest=latest, is_delete_marker=marker)

    rows = [
        version("kept", latest=True, size=2),
        version("kept", latest=False),
        version("gone", latest=True, marker=True, size=None),
        version("gone", latest=False),
        version("odd marker", latest=True, marker=True, size=0),
    ]
    assert {key: size for key, (size, _) in _read(write(tmp_path, "b", [rows], form=form, left_out=())).items()} == {
        "kept": 2
    }


@pytest.mark.parametrize("form", ["Parquet", "CSV"])
def test_empty_inventory_lists_nothing(form: str, tmp_path: Path) -> None:
    assert _read(write(tmp_path / "part", "b", [[]], form=form)) == {}


def test_large_part_is_read_by_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_inventory, "_ROWS_PER_TASK", 3)
    manifest = write(tmp_path, "b", [[row(str(at)) for at in range(9)]])
    assert [one.row_groups for one in list_inventory_parts(read_manifest(manifest))] == [(0, 1), (2, 3), (4,)]
    assert set(_read(manifest)) == set("012345678")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"fileFormat": "ORC", "fileSchema": "struct<bucket:string>"},
            "inventory: fileFormat: expected Parquet or CSV",
        ),
        ({"fileSchema": "message x { required binary key (UTF8); required int64 size; }"}, "last_modified_date"),
        ({"fileSchema": "message x { required binary key (UTF8); }"}, "the column size"),
        ({"files": None}, "a manifest of S3 Inventory"),
        ({"creationTimestamp": "soon"}, "a manifest of S3 Inventory"),
        (
            {"creationTimestamp": str(_AT_MS + 60_001)},
            "^inventory: creationTimestamp: expected .*at most 1,800,000,000,000, .* found .1,800,000,060,001.$",
        ),
        ({"creationTimestamp": "-1"}, "inventory: creationTimestamp: expected a time"),
        ({"creationTimestamp": "9" * 30}, "inventory: creationTimestamp: expected a time"),
        ({"files": []}, "^inventory: files: expected one part or more, found 'none'$"),
        (
            {"files": [{"key": "b/daily/data/9.parquet", "size": 1, "MD5checksum": ""}]},
            "the part b/daily/data/9.parquet",
        ),
    ],
)
def test_manifest_that_cannot_be_believed_is_refused_by_field(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_manifest(write(tmp_path, "b", [[row("x")]], **changes))


@pytest.mark.parametrize("text", [None, "", "[]", "{", '"x"', "\xff"])
def test_what_is_no_manifest_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"^inventory: expected"):
        read_manifest(path)


def test_parquet_part_without_a_promised_column_is_refused(tmp_path: Path) -> None:
    schema = "message x { required binary key; optional int64 size; optional int64 last_modified_date; }"
    manifest = write(tmp_path, "b", [[row("x")]], left_out=("is_latest", "is_delete_marker", "size"), fileSchema=schema)
    with pytest.raises(InvalidInput, match=r"inventory: 0.parquet: expected the column size"):
        list_inventory_parts(read_manifest(manifest))


@pytest.mark.parametrize(("size", "md5"), [(1, ""), (0, "0" * 32)])
def test_part_that_differs_from_the_manifest_is_refused(size: int, md5: str, tmp_path: Path) -> None:
    manifest = write(tmp_path, "b", [[row("x")]])
    (part,) = read_manifest(manifest).files
    assert check_part_checksum(part) == part[1]
    with pytest.raises(InvalidInput, match=r"inventory: 0.parquet: expected \d+ bytes with MD5"):
        check_part_checksum((part[0], part[1] + size, md5 or part[2]))


@pytest.mark.parametrize("form", ["Parquet", "CSV"])
def test_part_that_is_no_file_of_its_format_is_damaged(form: str, tmp_path: Path) -> None:
    manifest = write(tmp_path, "b", [[row("x")]], form=form)
    (part,) = read_manifest(manifest).files
    Path(part[0]).write_bytes(b"no such format")
    with pytest.raises(CorruptData, match=r"^inventory: .*0\."):
        _read(manifest)


def test_csv_part_with_a_size_that_is_none_is_damaged(tmp_path: Path) -> None:
    manifest = write(tmp_path, "b", [[row("x") | {"size": "many"}]], form="CSV")
    with pytest.raises(CorruptData, match=r"inventory: .*0\.csv\.gz"):
        _read(manifest)


def test_row_without_a_key_is_damaged(tmp_path: Path) -> None:
    manifest = write(tmp_path, "b", [[row("x"), row("y") | {"key": None}]])
    with pytest.raises(CorruptData, match="without a key"):
        _read(manifest)


def test_parts_are_found_in_a_copy_that_kept_the_folders(tmp_path: Path) -> None:
    manifest = write(tmp_path / "b/daily", "b", [[row("x")]])
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "manifest.json").write_text(json.dumps(json.loads(manifest.read_text())))
    (flat / "0.parquet").write_bytes((tmp_path / "b/daily/data/0.parquet").read_bytes())
    assert set(_read(manifest)) == set(_read(flat / "manifest.json")) == {"x"}


def _named(folder: Path, key: str) -> Path:
    """A manifest whose only part has that key."""
    return write(folder, "b", [], files=[{"key": key, "size": 1, "MD5checksum": ""}])


@pytest.mark.parametrize(
    "key", ["../data/0.parquet", "data/../../secret", "/etc/hostname", "b//data/0.parquet", "./data/0.parquet", "", "/"]
)
def test_part_key_that_leads_elsewhere_is_refused(key: str, tmp_path: Path) -> None:
    manifest = _named(tmp_path / "inventory", key)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "inventory/data/0.parquet").write_text("x")
    with pytest.raises(InvalidInput, match=r"^inventory: files: key: expected names joined by /"):
        read_manifest(manifest)


def test_part_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    manifest = _named(tmp_path / "inventory", "b/daily/data/0.parquet")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "inventory/data/0.parquet").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match=r"^inventory: expected the part .* below .*, found 'a link to .*/secret"):
        read_manifest(manifest)


def test_folder_above_the_manifest_holds_a_part_only_with_a_folder_of_its_key(tmp_path: Path) -> None:
    """A file that happens to stand there is none."""
    manifest = _named(tmp_path / "inventory", "b/daily/data/0.parquet")
    (tmp_path / "inventory/0.parquet").write_text("x")
    with pytest.raises(InvalidInput, match="expected the part"):
        read_manifest(manifest)


@pytest.mark.parametrize("made", ["fifo", "device", "socket", "folder"])
def test_manifest_that_is_no_regular_file_is_refused_without_being_read(made: str, tmp_path: Path) -> None:
    """To open a FIFO may wait for ever for a writer, and a device may never end."""
    with _irregular(made, tmp_path) as path, pytest.raises(InvalidInput, match=r"\(not a regular file\)"):
        read_manifest(path)


@pytest.mark.parametrize("made", ["fifo", "device"])
def test_part_that_became_no_regular_file_is_refused_without_being_read(made: str, tmp_path: Path) -> None:
    with (
        _irregular(made, tmp_path) as path,
        pytest.raises(InvalidInput, match="expected a file that every executor can read, found 'not a regular file'"),
    ):
        check_part_checksum((str(path), 5, "0" * 32))


@contextmanager
def _irregular(made: str, folder: Path) -> Iterator[Path]:
    path = folder / made
    if made == "fifo":
        os.mkfifo(path)
    elif made == "device":
        path = Path("/dev/zero")
    elif made == "folder":
        path.mkdir()
    if made != "socket":
        yield path
        return
    with socket.socket(socket.AF_UNIX) as server, chdir(folder):  # a path of a socket is short
        server.bind(made)
        yield path


def test_manifest_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write(tmp_path, "b", [[row("x")]])
    monkeypatch.setattr(s3_inventory, "_MAX_MANIFEST_BYTES", manifest.stat().st_size - 1)
    with pytest.raises(InvalidInput, match=r"longer than [0-9,]+ bytes"):
        read_manifest(manifest)


def test_part_that_grew_is_read_no_further_than_it_should_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_inventory, "_BYTES_PER_READ", 10)
    path = tmp_path / "part"
    path.write_bytes(b"x" * 1_000)
    with pytest.raises(InvalidInput, match="found '20, "):
        check_part_checksum((str(path), 15, "0" * 32))
