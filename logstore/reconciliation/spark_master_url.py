"""Supported forms of a Spark master URL. Settings, job inputs and the Spark session refuse other forms.

Source: "Master URLs" of Spark's guide "Submitting Applications".
"""

import re
from typing import Final

from logstore.errors import InvalidInput

MASTER_FORMS: Final = "local[N], local[*], spark://host:port, yarn or k8s://https://host:port"
"""Supported forms, as error messages list them."""

_HOST: Final = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)"
_PORT: Final = r"(?P<port>[1-9][0-9]{0,4})"
_ADDRESS: Final = re.compile(f"(?P<host>{_HOST}):{_PORT}")
_LOCAL: Final = re.compile(r"local(?:\[(?:\*|[1-9][0-9]{0,3})(?:,[1-9][0-9]?)?\])?")
_KUBERNETES: Final = re.compile(rf"k8s://(?:https?://)?{_HOST}(?::{_PORT})?(?:/[A-Za-z0-9._~/-]*)?")
_STANDALONE: Final = "spark://"
_MAX_PORT: Final = 65_535
_MAX_CHARS: Final = 1_000


def is_spark_master_url(text: str) -> bool:
    if len(text) > _MAX_CHARS:
        return False
    if text == "yarn" or _LOCAL.fullmatch(text):
        return True
    if text.startswith(_STANDALONE):
        return all(map(_is_address, text.removeprefix(_STANDALONE).split(",")))
    match = _KUBERNETES.fullmatch(text)
    return match is not None and int(match["port"] or 1) <= _MAX_PORT


def require_spark_master_url(text: str) -> None:
    if not is_spark_master_url(text):
        raise InvalidInput("master", expected=MASTER_FORMS, found=text)


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each address of a standalone master. The list is empty for other forms."""
    if not master.startswith(_STANDALONE):
        return []
    matches = map(_ADDRESS.fullmatch, master.removeprefix(_STANDALONE).split(","))
    return [(match["host"].strip("[]"), int(match["port"])) for match in matches if match]


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and int(match["port"]) <= _MAX_PORT
