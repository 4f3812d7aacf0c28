"""Facts about objects and unfinished uploads of offloads, from batches of a listing.

A pattern of keys has the groups `uuid`, `ledger` (at most 18 digits) and `index`, in the syntax of both Python and RE2.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.ports.object_storage import OpenUpload
from spark.reconciliation.fact_files import TIERED_OBJECTS, YOUNG

UPLOAD: Final = "upload"
"""Value of the column `part` of an unfinished upload."""

_UPLOADS_PER_BATCH: Final = 10_000


def replace_unknown_times(batch: pa.RecordBatch) -> pa.Array:
    """Return the column `modified_us` with `YOUNG` in place of null."""
    return pc.fill_null(batch.column("modified_us"), YOUNG)


def split_tiered_objects(batch: pa.RecordBatch, bucket: str, pattern: str) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the objects whose keys match, in the schema `TIERED_OBJECTS`, and all other rows of the batch."""
    parsed = pc.extract_regex(pc.cast(batch.column("key"), pa.string()), pattern)
    mask = pc.is_valid(parsed)
    keys, objects = parsed.filter(mask), batch.filter(mask)
    columns = [
        pc.cast(pc.struct_field(keys, "ledger"), pa.int64()),
        pa.repeat(pa.scalar(bucket, pa.string()), len(keys)),
        pc.struct_field(keys, "uuid"),
        pc.if_else(pc.equal(pc.struct_field(keys, "index"), ""), "data", "index"),
        objects.column("size_bytes"),
        replace_unknown_times(objects),
    ]
    return pa.record_batch(columns, schema=TIERED_OBJECTS), batch.filter(pc.invert(mask))


def iterate_upload_facts(uploads: Iterable[OpenUpload], bucket: str, pattern: str) -> Iterator[pa.RecordBatch]:
    """Yield facts about the uploads whose keys match, in the schema `TIERED_OBJECTS`."""
    matches = ((upload, re.fullmatch(pattern, upload.key)) for upload in uploads)
    rows = (
        {
            "ledger_id": int(match["ledger"]),
            "bucket": bucket,
            "uuid": match["uuid"],
            "part": UPLOAD,
            "size_bytes": 0,
            "modified_us": YOUNG if upload.started_us is None else upload.started_us,
        }
        for upload, match in matches
        if match
    )
    while batch := list(islice(rows, _UPLOADS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(batch, schema=TIERED_OBJECTS)
