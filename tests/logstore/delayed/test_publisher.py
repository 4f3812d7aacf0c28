"""Publishing buckets that a bulk job has built."""

from pathlib import Path

import pytest

from logstore.catalog import Catalog
from logstore.delayed.index_build_job import BuiltIndexFiles
from logstore.errors import CorruptData, PreconditionFailed, StoreUnavailable
from logstore.ports.catalog.deletion import Claim
from logstore.positions import TopicId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.stored import Stored, stored
from tests.workflows.builds import built_of


@pytest.fixture
def topic(tmp_path: Path) -> Stored:
    """With a bucket of one message, and two messages behind it."""
    topic = stored(tmp_path)
    topic.sealed([1])
    topic.append(2, 3)
    return topic


@pytest.fixture
def files(tmp_path: Path) -> BuiltIndexFiles:
    return BuiltIndexFiles(tmp_path)


def test_buckets_are_switched_to_once_and_said_to_be_there_again(topic: Stored, files: BuiltIndexFiles) -> None:
    """A second publication stores nothing."""
    (old,) = topic.buckets
    built, publisher = built_of(topic, files), topic.world.log.delayed.publisher
    assert publisher.publish_built_index(built, files)
    after = topic.index.get_bucket_list(topic.topic_id)
    assert ([one.messages for one in after.buckets], topic.retired()) == ([3], [old.bucket_id])
    assert publisher.publish_built_index(built, files)
    assert topic.index.get_bucket_list(topic.topic_id) == after
    assert len(topic.ledgers()) == 1


def test_list_that_has_changed_is_not_built_over(topic: Stored, files: BuiltIndexFiles) -> None:
    """By a seal, or by a clear, after which nothing may come back."""
    built, publisher = built_of(topic, files), topic.world.log.delayed.publisher
    topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    sealed = topic.index.get_bucket_list(topic.topic_id)
    assert not publisher.publish_built_index(built, files)
    assert topic.index.get_bucket_list(topic.topic_id) == sealed
    again = built_of(topic, files)
    topic.index.retire_all_buckets(topic.topic_id, reason="tests")
    assert not publisher.publish_built_index(again, files)
    assert topic.buckets == ()


def test_storage_that_fails_leaves_the_list_as_it_was(topic: Stored, files: BuiltIndexFiles) -> None:
    """And the next publication is whole."""
    before, built = topic.index.get_bucket_list(topic.topic_id), built_of(topic, files)
    publisher = topic.world.log.delayed.publisher
    topic.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=1_000))
    with pytest.raises(StoreUnavailable):
        publisher.publish_built_index(built, files)
    assert topic.index.get_bucket_list(topic.topic_id) == before
    topic.world.objects._faults.clear()
    assert publisher.publish_built_index(built, files)


def test_snapshots_that_are_taken_for_abandoned_meanwhile_are_stored_again(
    topic: Stored, files: BuiltIndexFiles
) -> None:
    """Storage was slow, and a trim came. Nothing newer is listed, so the build is not superseded but tried again."""
    before, built = topic.index.get_bucket_list(topic.topic_id), built_of(topic, files)
    publisher = topic.world.log.delayed.publisher
    impatient = Catalog(topic.world.catalog.database, registration_timeout_s=0)

    def trim() -> None:
        impatient.upkeep.move_abandoned_work_to_batch(
            batch_id="sweep", claim=Claim(workflow_id="sweep", run_id="r", ttl_s=60), limit=100
        )

    topic.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=trim))
    with pytest.raises(StoreUnavailable, match="were given up"):
        publisher.publish_built_index(built, files)
    assert topic.index.get_bucket_list(topic.topic_id) == before
    assert publisher.publish_built_index(built, files)
    assert [one.messages for one in topic.buckets] == [3]


def test_topic_that_is_deleted_while_its_snapshots_are_stored_is_told(topic: Stored, files: BuiltIndexFiles) -> None:
    """By the next publication at the latest: nobody asks storage for ever."""
    built, publisher = built_of(topic, files), topic.world.log.delayed.publisher

    def delete() -> None:
        topic.world.sql("UPDATE topic SET state = 'DELETING'")

    topic.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=delete))
    with pytest.raises(StoreUnavailable):
        publisher.publish_built_index(built, files)
    with pytest.raises(PreconditionFailed):
        publisher.publish_built_index(built, files)


def test_file_that_is_no_snapshot_of_the_topic_is_refused(
    topic: Stored, files: BuiltIndexFiles, tmp_path: Path
) -> None:
    """Damaged, or another topic's: nothing is stored."""
    built, publisher = built_of(topic, files), topic.world.log.delayed.publisher
    other = built_of(topic, files, TopicId(99))
    before = topic.index.get_bucket_list(topic.topic_id)
    files.snapshot_path(other.files[0]).replace(files.snapshot_path(built.files[0]))
    with pytest.raises(CorruptData, match="found those of topic 99"):
        publisher.publish_built_index(built, files)
    files.snapshot_path(built.files[0]).write_bytes(b"PAR1 is not enough")
    with pytest.raises(CorruptData, match="not a snapshot"):
        publisher.publish_built_index(built, files)
    assert topic.index.get_bucket_list(topic.topic_id) == before
