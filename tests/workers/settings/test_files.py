"""Files that settings name are regular and bounded: a device or a FIFO would hold the process, or fill its memory."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.errors import InvalidInput
from logstore.setting_files import MAX_FILE_BYTES, read_setting_file
from workers.client.temporal_connection import read_temporal_credentials
from workers.settings import Settings, load_settings, read_temporal_api_key
from workers.settings.tls_files import read_tls_files


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def _link_to_device(folder: Path) -> Path:
    (folder / "link").symlink_to("/dev/zero")
    return folder / "link"


def _long(folder: Path) -> Path:
    with (folder / "long").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    return folder / "long"


_REFUSED = {
    "device": (lambda _: Path("/dev/zero"), "not a regular file"),
    "link to a device": (_link_to_device, "not a regular file"),
    "FIFO": (_fifo, "not a regular file"),
    "folder": (lambda folder: folder, "not a regular file"),
    "too long": (_long, f"longer than {MAX_FILE_BYTES:,} bytes"),
}


@pytest.mark.parametrize(("make", "why"), _REFUSED.values(), ids=list(_REFUSED))
def test_file_of_a_setting_that_is_not_regular_or_too_long_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], why: str
) -> None:
    """Key, certificates, secret and `sexton.toml`: the message names the field and the file."""
    path = str(make(tmp_path))
    readers: dict[str, Callable[[], object]] = {
        "s3_ca_file": lambda: read_tls_files(Settings(home=tmp_path, s3_ca_file=path), "s3"),
        "temporal_ca_file": lambda: read_temporal_credentials(Settings(home=tmp_path, temporal_ca_file=path)),
        "temporal_api_key_file": lambda: read_temporal_api_key(Settings(home=tmp_path, temporal_api_key_file=path)),
        "payload_key_file": lambda: read_setting_file("payload_key_file", path),
        Path(path).name: lambda: load_settings(environ={"SEXTON_CONFIG": path}, cwd=tmp_path, flags={}),
    }
    for field, read in readers.items():
        with pytest.raises(InvalidInput, match=re.escape(why)) as refused:
            read()
        assert refused.value.field == field


def test_file_of_a_setting_may_be_a_link_and_may_be_as_long_as_is_allowed(tmp_path: Path) -> None:
    """Kubernetes mounts secrets as links."""
    (tmp_path / "key").write_bytes(b"k" * MAX_FILE_BYTES)
    (tmp_path / "link").symlink_to(tmp_path / "key")
    assert len(read_setting_file("payload_key_file", str(tmp_path / "link"))) == MAX_FILE_BYTES
