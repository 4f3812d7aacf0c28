"""Publishing buckets that a bulk job has built: all of a topic's by one switch, in the place of those before.

What was built is of a version of the topic's list. Where the list has changed since, by a seal or by a merge, it is not
published: those know more of the log, or as much. A publication that dies leaves newborn ledgers, which a sweep takes
away.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from logstore.delayed.buckets import Bucket
from logstore.delayed.jobs import BuiltIndex, IndexFiles
from logstore.delayed.services.snapshots import BucketSnapshots
from logstore.delayed.snapshot_footer import SnapshotFooter, parse_footer
from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.entries import unreadable
from logstore.ports.catalog import BucketSwitch, DelayedIndex, NewBucket
from logstore.positions import TopicId
from logstore.units import between_units

_BUILT: Final = "built anew from the log"


class IndexPublisher:
    """Publishes built indexes. Threads share one."""

    def __init__(self, *, index: DelayedIndex, snapshots: BucketSnapshots) -> None:
        """Work on the lists of buckets and their snapshots."""
        self._index, self._snapshots = index, snapshots

    def publish(self, built: BuiltIndex, files: IndexFiles) -> bool:
        """Store the snapshots of one topic and switch to them; False where its list has changed since it was read.

        Idempotency: once they are its buckets, and nothing else has changed, it says so again and stores nothing.

        Raises:
            CorruptData: A file is no snapshot, or of another topic.
            UnknownObject, PreconditionFailed: The topic does not exist any more, or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, OutcomeUnknown: Repeating is fine; so it is where storage
                took so long for all snapshots that a trim took the first ones for abandoned.
        """
        footers = [_footer(files.snapshot_path(name), built.topic_id) for name in built.files]
        listed = self._index.listed(built.topic_id)
        if listed.version != built.expected_version:
            return listed.sealed_to == built.sealed_to and _same(listed.buckets, footers)
        born = [self._stored(files.snapshot_path(name), one) for name, one in zip(built.files, footers, strict=True)]
        switch = BucketSwitch(
            topic_id=built.topic_id,
            expected=built.expected_version,
            removed=built.removed,
            added=tuple(born),
            sealed_to=built.sealed_to,
            reason=_BUILT,
        )
        switched = self._index.switch(switch)
        if not switched and self._index.listed(built.topic_id).version == built.expected_version:
            raise StoreUnavailable(f"topic {built.topic_id}: its new snapshots were given up before all were stored")
        return switched

    def _stored(self, path: Path, footer: SnapshotFooter) -> NewBucket:
        between_units()
        with path.open("rb") as file:
            return self._snapshots.store(file, footer)


def _footer(path: Path, topic_id: TopicId) -> SnapshotFooter:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        found = parse_footer(pq.read_metadata(path), path.name)
    except unreadable() as error:
        raise CorruptData(f"{path}: not a snapshot: {error}") from error
    if found.topic_id != topic_id:
        raise CorruptData(f"{path}: expected messages of topic {topic_id}, found those of topic {found.topic_id}")
    return found


def _same(buckets: Sequence[Bucket], footers: Sequence[SnapshotFooter]) -> bool:
    """Whether these are the buckets of those snapshots."""
    listed = [(one.first, one.last, one.messages, one.first_ms, one.last_ms) for one in buckets]
    return listed == [(one.first, one.last, one.messages, one.first_ms, one.last_ms) for one in footers]
