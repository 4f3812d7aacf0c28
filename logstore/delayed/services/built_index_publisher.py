"""Publication of index buckets that a bulk job has built. One switch replaces all index buckets of a topic.

Index buckets are built for one list version. If a seal or a merge has changed the list since the build began, the built
index buckets are not published. Nothing is lost, because the changed list covers at least the same range of the log. A
publication that dies leaves newborn ledgers, which a sweep deletes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.index_build_job import BuiltIndexFiles, BuiltTopicIndex
from logstore.delayed.services.bucket_snapshots import IndexBucketSnapshots
from logstore.delayed.snapshot_footer import IndexSnapshotFooter, parse_snapshot_footer
from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.segment_format import parquet_errors
from logstore.ports.catalog.delayed import IndexBucketSwitch, NewIndexBucket
from logstore.positions import TopicId
from logstore.stop_checks import raise_if_stopped

_AUDIT_REASON: Final = "built anew from the log"


class BuiltIndexPublisher:
    def __init__(self, *, index: DelayedIndex, snapshots: IndexBucketSnapshots) -> None:
        self._index, self._snapshots = index, snapshots

    def publish_built_index(self, built: BuiltTopicIndex, files: BuiltIndexFiles) -> bool:
        """Switch the topic's list to built index buckets. Return `False` if the list has changed since the build began.

        Idempotency: if the list already consists of the built index buckets, return `True` and change nothing.

        Raises:
            CorruptData: A file is no snapshot, or a snapshot of another topic.
            UnknownObject, PreconditionFailed: The topic does not exist any more, or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, OutcomeUnknown: Repeat the call. `StoreUnavailable` can also
                mean that a sweep deleted snapshots of this call as abandoned, because the call took too long.
        """
        footers = [_read_footer(files.snapshot_path(name), built.topic_id) for name in built.files]
        listed = self._index.get_bucket_list(built.topic_id)
        if listed.version != built.expected_version:
            return listed.sealed_to == built.sealed_to and _are_same(listed.buckets, footers)
        added = [
            self._store(files.snapshot_path(name), footer) for name, footer in zip(built.files, footers, strict=True)
        ]
        switch = IndexBucketSwitch(
            topic_id=built.topic_id,
            expected=built.expected_version,
            removed=built.removed,
            added=tuple(added),
            sealed_to=built.sealed_to,
            reason=_AUDIT_REASON,
        )
        is_switched = self._index.switch_buckets(switch)
        if not is_switched and self._index.get_bucket_list(built.topic_id).version == built.expected_version:
            raise StoreUnavailable(f"topic {built.topic_id}: its new snapshots were given up before all were stored")
        return is_switched

    def _store(self, path: Path, footer: IndexSnapshotFooter) -> NewIndexBucket:
        raise_if_stopped()
        with path.open("rb") as file:
            return self._snapshots.store_snapshot(file, footer)


def _read_footer(path: Path, topic_id: TopicId) -> IndexSnapshotFooter:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        footer = parse_snapshot_footer(pq.read_metadata(path), path.name)
    except parquet_errors() as error:
        raise CorruptData(f"{path}: not a snapshot: {error}") from error
    if footer.topic_id != topic_id:
        raise CorruptData(f"{path}: expected messages of topic {topic_id}, found those of topic {footer.topic_id}")
    return footer


def _are_same(buckets: Sequence[IndexBucket], footers: Sequence[IndexSnapshotFooter]) -> bool:
    return [_properties(bucket) for bucket in buckets] == [_properties(footer) for footer in footers]


def _properties(described: IndexBucket | IndexSnapshotFooter) -> tuple[object, ...]:
    return (described.first, described.last, described.messages, described.first_ms, described.last_ms)
