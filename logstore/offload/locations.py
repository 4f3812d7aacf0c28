"""Where a tiered copy is stored, as its offload context states it: readers and deletions ask there.

Source: apache/pulsar#16687: a deletion that asks where the settings of the day point finds nothing, and says gone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logstore.errors import CorruptData

DRIVER: Final = "aws-s3"

_UUID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_FIELDS: Final = {
    "bucket": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"), "the name of a bucket"),
    "endpoint": (re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~/-]*)?"), "a URL of http or https"),
    "region": (re.compile(r"[A-Za-z0-9-]{1,64}"), "the name of a region"),
}


@dataclass(frozen=True, slots=True, order=True)
class CopyLocation:
    """The bucket in which a tiered copy is stored, and the store that has it."""

    bucket: str
    endpoint: str = ""  # URL; empty: the store of the settings
    region: str = ""  # empty: that of the settings


def location_of(ledger_id: int, context: Mapping[str, str]) -> tuple[str, CopyLocation]:
    """The uuid of the attempt that wrote a tiered copy, and the location of the copy.

    Raises:
        CorruptData: The context does not say where to look, or states what cannot be a bucket, an endpoint or a region.
    """
    uuid, bucket = context.get("uuid"), context.get("bucket")
    if not uuid or not bucket:
        raise CorruptData(f"ledger {ledger_id}: expected uuid and bucket in its offload context, found neither or one")
    problem = location_problem(context)
    if problem:
        raise CorruptData(f"ledger {ledger_id}: offload context: {problem}")
    return uuid, CopyLocation(bucket, str(context.get("endpoint") or "").rstrip("/"), str(context.get("region") or ""))


def location_problem(context: Mapping[str, str]) -> str | None:
    """What is wrong with the first bad field of an offload context, or None; absent fields are not judged."""
    driver = context.get("driver")
    if driver and driver != DRIVER:
        return f"driver: expected {DRIVER}, found {driver!r}"
    if context.get("uuid") and not _UUID.fullmatch(str(context["uuid"])):
        return f"uuid: expected letters, digits, '.', '_' and '-', found {context['uuid']!r}"
    return next(
        (
            f"{name}: expected {rule}, found {context[name]!r}"
            for name, (form, rule) in _FIELDS.items()
            if context.get(name) and not form.fullmatch(str(context[name]))
        ),
        None,
    )
