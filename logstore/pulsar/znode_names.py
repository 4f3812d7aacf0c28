"""Names and paths of znodes of Pulsar and BookKeeper. All paths are relative to their root and begin without a slash.

Source: Pulsar's `Codec` and `TopicName`, and BookKeeper's hierarchical ledger managers.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from logstore.pulsar.unreadable_metadata import UnreadableMetadata

MANAGED_LEDGERS: Final = "managed-ledgers"
SCHEMAS: Final = "schemas"
LOG_ROOTS: Final = ("pulsar/functions", "pulsar/packages", "stream/storage", "stream/segments")
"""Roots of the logs of DistributedLog, as Pulsar places them: function packages, packages, and the table service.

They are relative to the path above BookKeeper's ledgers, which may be below the root of the cluster.
"""

MANAGED_LEDGER_DOMAIN: Final = "persistent"

_FIRST_LONG_ID: Final = (1 << 31) - 1  # first id that has 19 digits in its path
MAX_LEDGER_ID: Final = (1 << 63) - 1
_SHORT_ID_PATH: Final = re.compile(r"(\d{2})/(\d{4})/L(\d{4})", re.ASCII)
_LONG_ID_PATH: Final = re.compile(r"(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})", re.ASCII)
_LEDGER_FOLDER: Final = re.compile(r"\d{2,3}", re.ASCII)


def encode_name(name: str) -> str:
    """Encode the local part of a topic name, or a subscription name, as Java's `URLEncoder` does."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def decode_name(encoded: str) -> str:
    """Decode as Java's `URLDecoder` does.

    Raises:
        UnreadableMetadata: The name is not what `encode_name` returns for any name.
    """
    try:
        name = unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        raise UnreadableMetadata("name", expected="an URL-encoded name", found=repr(encoded)) from None
    if encode_name(name) != encoded:
        raise UnreadableMetadata("name", expected="an URL-encoded name", found=repr(encoded))
    return name


@dataclass(frozen=True, slots=True)
class CursorPath:
    """Path of a cursor's znode below `/managed-ledgers`."""

    managed_ledger: str  # its path, which is also the managed ledger's name
    cursor: str  # encoded


def parse_managed_ledger_path(path: str) -> str | CursorPath | None:
    """Return the managed ledger's name, or the path of a cursor, or `None` for a parent of managed ledgers.

    A managed ledger is `tenant/namespace/persistent/topic`, or `tenant/cluster/namespace/persistent/topic` in clusters
    that once ran Pulsar 1. A parent has no data of its own, and neither has a topic that was never loaded. Only the
    path tells them apart.

    Raises:
        UnreadableMetadata: No version of Pulsar from 1 to 4 has such a znode.
    """
    parts = path.split("/")
    domain = next((index for index in (2, 3) if len(parts) > index and parts[index] == MANAGED_LEDGER_DOMAIN), None)
    if domain is None:
        if len(parts) <= 3:
            return None
        raise UnreadableMetadata("managed ledger", expected=f"the domain {MANAGED_LEDGER_DOMAIN}", found=repr(path))
    match len(parts) - domain:
        case 1:
            return None
        case 2:
            return path
        case 3:
            return CursorPath("/".join(parts[:-1]), parts[-1])
    raise UnreadableMetadata("managed ledger", expected="a managed ledger or one of its cursors", found=repr(path))


def is_znode_path(path: str) -> bool:
    """Return whether each part of the path can be the name of a znode."""
    parts = path.split("/")
    return all(parts) and not {".", ".."} & set(parts)


def is_managed_ledger_name(name: str) -> bool:
    try:
        return is_znode_path(name) and parse_managed_ledger_path(name) == name
    except UnreadableMetadata:
        return False


def managed_ledger_from_topic(topic: str) -> str:
    """Return the managed ledger's name of a topic such as `persistent://tenant/namespace/topic`.

    A topic of Pulsar 1 has a cluster between tenant and namespace. A local name has no slash.

    Raises:
        ValueError: The topic is not persistent, or its name has another number of parts.
    """
    domain, separator, name = topic.partition("://")
    *namespace, local = name.split("/")
    if domain != MANAGED_LEDGER_DOMAIN or not separator or len(namespace) not in {2, 3}:
        raise ValueError(topic)
    return "/".join([*namespace, domain, encode_name(local)])


def topic_from_managed_ledger(name: str) -> str:
    """Return the topic of a managed ledger: the inverse of `managed_ledger_from_topic`.

    Raises:
        UnreadableMetadata: The last part of the name is not encoded as a topic's name.
    """
    *namespace, domain, local = name.split("/")
    return f"{domain}://{'/'.join([*namespace, decode_name(local)])}"


def format_ledger_path(ledger_id: int) -> str:
    """Return the path of a ledger below `/ledgers`. Ids from 2³¹ - 1 on have 19 digits in their path, others 10."""
    if ledger_id < _FIRST_LONG_ID:
        digits = f"{ledger_id:010d}"
        return f"{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def parse_ledger_path(path: str) -> int:
    """Return the id of the ledger at a path below `/ledgers`.

    Raises:
        UnreadableMetadata: The path is not the one of any ledger.
    """
    match = _SHORT_ID_PATH.fullmatch(path) or _LONG_ID_PATH.fullmatch(path)
    ledger_id = int("".join(match.groups())) if match else -1
    if not 0 <= ledger_id <= MAX_LEDGER_ID or format_ledger_path(ledger_id) != path:
        raise UnreadableMetadata("ledger", expected="a path of the hierarchical layout", found=repr(path))
    return ledger_id


def is_ledger_folder(name: str) -> bool:
    """Say whether a child of `/ledgers` holds ledgers. Other children hold the state of BookKeeper itself."""
    return _LEDGER_FOLDER.fullmatch(name) is not None
