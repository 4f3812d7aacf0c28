"""`topic schema set`, `list` and `show`."""

import base64
import os

import pytest

from logstore.log.services.component_ledgers import MAX_SCHEMA_BYTES
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices

_AVRO = b'{"type": "record"}'


def test_schema_set_answers_version_and_ledger(run: Run, services: FakeCommandServices, orders: str) -> None:
    """From a file or from stdin; the content travels as it is."""
    (services.cwd / "orders.avsc").write_bytes(_AVRO)
    made = run("topic", "schema", "set", orders, "--file", str(services.cwd / "orders.avsc"), "--json")
    assert document(made) == {"version": 0, "ledger_id": 40}
    assert document(run("topic", "schema", "set", orders, "--file", "-", "--json", text=b"\x00\xff")) == {
        "version": 1,
        "ledger_id": 41,
    }
    assert services.log.contents == [_AVRO, b"\x00\xff"]


def test_schema_list_has_the_documented_fields(run: Run, orders: str) -> None:
    """Oldest first; none is an empty array."""
    assert document(run("topic", "schema", "list", orders, "--json")) == []
    run("topic", "schema", "set", orders, "--file", "-", text=_AVRO)
    (row,) = document(run("topic", "schema", "list", orders, "--json"))
    assert row == {
        "version": 0,
        "ledger_id": 40,
        "size_bytes": len(_AVRO),
        "digest": "d0",
        "created": "1970-01-01T00:00:00Z",
    }


def test_schema_show_prints_the_content_itself(run: Run, orders: str) -> None:
    """Text goes to stdout byte for byte, so that it can be redirected; JSON carries base64."""
    for content in (_AVRO, b"second\n"):
        run("topic", "schema", "set", orders, "--file", "-", text=content)
    assert run("topic", "schema", "show", orders).stdout == "second\n"
    assert run("topic", "schema", "show", orders, "--version", "0").stdout == _AVRO.decode()
    told = document(run("topic", "schema", "show", orders, "--version", "0", "--json"))
    assert (told["version"], base64.b64decode(told["content_b64"])) == (0, _AVRO)


def test_schema_show_of_what_is_no_text_prints_base64(run: Run, orders: str) -> None:
    """Bytes that would steer a terminal are not printed."""
    run("topic", "schema", "set", orders, "--file", "-", text=b"\xff\xfe")
    shown = run("topic", "schema", "show", orders)
    assert base64.b64decode(shown.stdout) == b"\xff\xfe"
    assert "not text" in shown.stderr


@pytest.mark.parametrize("size", [0, MAX_SCHEMA_BYTES + 1])
def test_schema_of_a_size_that_is_refused_changes_nothing(
    run: Run, services: FakeCommandServices, orders: str, size: int
) -> None:
    """Bad input names its option and its limit."""
    error = document(run("topic", "schema", "set", orders, "--file", "-", "--json", text=b"x" * size), 2)["error"]
    assert error["field"] == "file"
    assert f"{MAX_SCHEMA_BYTES:,}" in error["message"]
    assert services.log.contents == []


def test_schema_file_that_cannot_be_read_is_bad_input(run: Run, services: FakeCommandServices, orders: str) -> None:
    """Absent, a folder, a FIFO that nobody writes to, or a device that never ends."""
    os.mkfifo(services.cwd / "fifo")
    for path in (services.cwd / "nowhere", services.cwd, services.cwd / "fifo", "/dev/zero"):
        told = document(run("topic", "schema", "set", orders, "--file", str(path), "--json"), 2)
        assert told["error"]["field"] == "file"
