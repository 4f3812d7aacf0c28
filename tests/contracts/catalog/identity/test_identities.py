"""The catalog's own id, the buckets that carry it, and what must stand in them."""

from logstore.deletion.intents import Outcome
from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ports.catalog.deletion import IntentResult, IntentRowRange
from logstore.positions import LedgerId
from tests.contracts.catalog.steps import filled, new_topic, newborn
from tests.contracts.catalog.worlds import World


def _ids(world: World, role: BucketRole, bucket: str = "", *, limit: int = 100) -> list[tuple[str, LedgerId]]:
    return [
        (one.state, one.intent.ledger_id)
        for one in world.catalog.identities.list_expected_copies(role, bucket, limit=limit)
    ]


def test_catalog_has_one_id_for_ever(world: World) -> None:
    """A UUID, the same at each look."""
    found = world.catalog.identities.catalog_id()
    assert len(found) == 36
    assert world.catalog.identities.catalog_id() == found


def test_marker_is_recorded_once_by_role_and_bucket(world: World) -> None:
    """Repeating it changes nothing."""
    identities = world.catalog.identities
    assert identities.list_marked_buckets() == frozenset()
    for _ in range(2):
        identities.record_marker(BucketRole.PRIMARY, "logs")
        identities.record_marker(BucketRole.TIERED, "logs")
    assert identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs"), (BucketRole.TIERED, "logs")}


def test_evidence_is_live_copies_newest_first_then_those_on_their_way_out(world: World) -> None:
    """A newborn whose statement nobody confirmed proves nothing; nor does a ledger that is gone."""
    topic = new_topic(world)
    a, b, c = filled(world, topic.topic_id, 3)
    newborn(world, topic.topic_id)
    world.detach(topic.topic_id, [a])
    assert _ids(world, BucketRole.PRIMARY) == [("LIVE", c), ("LIVE", b), ("PENDING", a)]
    assert _ids(world, BucketRole.PRIMARY, limit=1) == [("LIVE", c)]
    assert _ids(world, BucketRole.TIERED, "cold") == []
    assert _ids(world, BucketRole.RECORDS) == []


def test_evidence_has_dead_letters_and_nothing_that_is_gone(world: World) -> None:
    """The objects of a dead letter stand where they stood."""
    topic = new_topic(world)
    a, b, _ = filled(world, topic.topic_id, 3)
    world.phase_one(topic.topic_id, [a, b], force=True, batch_id="b")
    first, second = (
        one.row_id
        for one in world.catalog.deletions.list_intents_in_range("b", IntentRowRange(first=0, last=99, rows=0))
    )
    ends = [
        IntentResult(row_id=first, outcome=Outcome.DEAD_LETTERED, error="no permission"),
        IntentResult(row_id=second, outcome=Outcome.DELETED),
    ]
    world.catalog.deletions.record_outcomes(ends, holder="b")
    assert _ids(world, BucketRole.PRIMARY)[1:] == [("DEAD_LETTERED", a)]


def test_evidence_can_be_asked_for_in_storage(world: World) -> None:
    """It carries all that a statement is compared with, live or not."""
    topic = new_topic(world)
    a, _ = filled(world, topic.topic_id, 2)
    (_, before) = world.catalog.identities.list_expected_copies(BucketRole.PRIMARY, "", limit=9)
    world.detach(topic.topic_id, [a])
    (_, after) = world.catalog.identities.list_expected_copies(BucketRole.PRIMARY, "", limit=9)
    assert (before.state, after.state) == ("LIVE", "PENDING")
    assert before.intent.owner == after.intent.owner
    assert before.intent.owner.topic == topic.name
    assert before.intent.ledger_created_us == after.intent.ledger_created_us > 0
    assert before.intent.copy is after.intent.copy is CopyKind.LEDGER


def test_evidence_of_a_tiered_bucket_is_what_contexts_say_stands_there(world: World) -> None:
    """Copies being written prove nothing, and copies in other buckets are theirs."""
    topic = new_topic(world)
    a, b, c, d = filled(world, topic.topic_id, 4)
    world.add_copy(a, CopyState.LIVE, uuid="u-1", bucket="cold")
    world.add_copy(b, CopyState.WRITING, uuid="u-2", bucket="cold")
    world.add_copy(c, CopyState.LIVE, uuid="u-3", bucket="colder")
    world.add_copy(d, CopyState.LIVE, uuid="u-4", bucket="cold")
    assert _ids(world, BucketRole.TIERED, "cold") == [("LIVE", d), ("LIVE", a)]
    assert _ids(world, BucketRole.TIERED, "colder") == [("LIVE", c)]
    world.detach(topic.topic_id, [a])
    assert _ids(world, BucketRole.TIERED, "cold") == [("LIVE", d), ("PENDING", a)]
    (found, _) = world.catalog.identities.list_expected_copies(BucketRole.TIERED, "cold", limit=9)
    assert found.intent.context["uuid"] == "u-4"
