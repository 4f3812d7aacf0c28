"""The forms of a Spark master: settings, job inputs and the session itself refuse any other.

Source: "Master URLs" of Spark's guide "Submitting Applications".
"""

import re
from typing import Final

from logstore.errors import InvalidInput

FORMS: Final = "local[N], local[*], spark://host:port, yarn or k8s://https://host:port"
"""The forms, as a refusal names them."""

_HOST: Final = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)"
_PORT: Final = r"(?P<port>[1-9][0-9]{0,4})"
_ADDRESS: Final = re.compile(f"(?P<host>{_HOST}):{_PORT}")
_LOCAL: Final = re.compile(r"local(?:\[(?:\*|[1-9][0-9]{0,3})(?:,[1-9][0-9]?)?\])?")
_KUBERNETES: Final = re.compile(rf"k8s://(?:https?://)?{_HOST}(?::{_PORT})?(?:/[A-Za-z0-9._~/-]*)?")
_STANDALONE: Final = "spark://"
_MAX_PORT: Final = 65_535
_MAX_CHARS: Final = 1_000


def is_master(text: str) -> bool:
    """Whether it is of one of the forms; nothing is asked whether it answers."""
    if len(text) > _MAX_CHARS:
        return False
    if text == "yarn" or _LOCAL.fullmatch(text):
        return True
    if text.startswith(_STANDALONE):
        return all(map(_is_address, text.removeprefix(_STANDALONE).split(",")))
    found = _KUBERNETES.fullmatch(text)
    return found is not None and int(found["port"] or 1) <= _MAX_PORT


def check_master(text: str) -> None:
    """Refuse what is no master.

    Raises:
        InvalidInput: It is of no form that is known.
    """
    if not is_master(text):
        raise InvalidInput("master", expected=FORMS, found=text)


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each machine of a standalone master; none of any other form."""
    if not master.startswith(_STANDALONE):
        return []
    found = map(_ADDRESS.fullmatch, master.removeprefix(_STANDALONE).split(","))
    return [(one["host"].strip("[]"), int(one["port"])) for one in found if one]


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and int(found["port"]) <= _MAX_PORT
