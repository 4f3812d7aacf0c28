"""The place of a tiered copy, as its offload context states it: readers and deletions ask there.

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
class TieredPlace:
    """A bucket of a store."""

    bucket: str
    endpoint: str = ""  # URL; empty: the store of the settings
    region: str = ""  # empty: that of the settings


def place_of(ledger_id: int, context: Mapping[str, str]) -> tuple[str, TieredPlace]:
    """Attempt and place of a tiered copy.

    Raises:
        CorruptData: The context does not say where to look, or names what can be no place.
    """
    uuid, bucket = context.get("uuid"), context.get("bucket")
    if not uuid or not bucket:
        raise CorruptData(f"ledger {ledger_id}: expected uuid and bucket in its offload context, found neither or one")
    problem = odd_place(context)
    if problem:
        raise CorruptData(f"ledger {ledger_id}: offload context: {problem}")
    return uuid, TieredPlace(bucket, str(context.get("endpoint") or "").rstrip("/"), str(context.get("region") or ""))


def odd_place(context: Mapping[str, str]) -> str | None:
    """The first field of an offload context that can name no place, or None; absent fields are not judged."""
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
