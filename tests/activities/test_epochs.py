"""What a request from before a rebuild may do: each activity of this build says so here, a new one too."""

import dataclasses
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio import activity

from activities.deletion.topic_deletion import TopicDeletionOrder
from activities.topic_build_steps import SwitchTopicsPageInput
from logstore.errors import StaleCatalog, UnknownObject
from tests.activities.activity_world import (
    World,
    make_chunk_input,
    make_delete_intent_input,
    open_activity_world,
    run,
    run_owner_routed_activity,
)

_EPOCH: Final = "its payload carries the epoch, which is compared before anything changes"
_RUN: Final = "it names a run, which no record holds: a rebuilt catalog does not know it"
_ANEW: Final = "it decides anew, from what the catalog says at that moment, under its locks"
_HARMLESS: Final = "it reads, claims, counts or copies, and ends nothing"
_STANDING: Final[dict[str, str]] = {
    "deletion.detach": _EPOCH,
    "deletion.next_ranges": _EPOCH,
    "deletion.delete_chunk": _EPOCH,
    "deletion.hand_over_chunk": _EPOCH,
    "deletion.delete_one": _EPOCH,
    "deletion.dead_letter": _EPOCH,
    "topic.set_deleting": _EPOCH,
    "topic.detach_all": _EPOCH,
    "topic.remove": _EPOCH,
    "reconciliation.file_page": _EPOCH,
    "reconciliation.delete_objects": _EPOCH,
    "reconciliation.begin_apply": _RUN,
    "reconciliation.conclude_apply": _RUN,
    "reconciliation.check_sides": _RUN,
    "reconciliation.run_bulk": _RUN,
    "reconciliation.conclude_plan": _RUN,
    "transactions.build_buffers": _RUN,
    "transactions.switch_snapshots": _RUN,
    "transactions.conclude_build": _RUN,
    "delayed.build_indexes": _RUN,
    "delayed.switch_indexes": _RUN,
    "delayed.conclude_build": _RUN,
    "deletion.hold_batch": _RUN,
    "deletion.pause_batch": _RUN,
    "deletion.certify": _HARMLESS,
    "deletion.adopt": _ANEW,
    "deletion.forget": _ANEW,
    "trimming.trim_page": _ANEW,
    "offload.upload": _ANEW,
    "offload.publish": _ANEW,
    "offload.remove_primaries": _ANEW,
    "retention.roll_idle": _ANEW,
    "transactions.drain": _ANEW,
    "transactions.tell": _ANEW,
    "transactions.forget": _ANEW,
    "delayed.seal_topics": _ANEW,
    "delayed.seal_topic": _ANEW,
    "delayed.merge_pair": _ANEW,
    "records.begin_ending": _EPOCH,
    "records.end_page": _EPOCH,
    "records.flush": _ANEW,
    "records.defragment": _ANEW,
    "records.raid": _ANEW,
    "records.ship": _HARMLESS,
    "delayed.due_topics": _HARMLESS,
    "delayed.choose_pair": _HARMLESS,
    "delayed.let_go": _HARMLESS,
    "delayed.begin_build": _HARMLESS,
    "transactions.begin_build": _HARMLESS,
    "transactions.busy_coordinators": _HARMLESS,
    "offload.candidates": _HARMLESS,
    "trimming.next_pages": _HARMLESS,
    "trimming.count_batch": _HARMLESS,
    "reconciliation.begin_plan": _HARMLESS,
    "reconciliation.record_page": _HARMLESS,
    "reconciliation.begin_scrub": _HARMLESS,
    "reconciliation.cut_scrub": _RUN,
    "reconciliation.scrub_page": _RUN,
    "reconciliation.conclude_scrub": _RUN,
    "pulsar.begin_plan": _HARMLESS,
    "pulsar.run_bulk": _RUN,
    "pulsar.conclude_plan": _RUN,
    "pulsar.begin_apply": _RUN,
    "pulsar.apply_page": _RUN,
    "pulsar.conclude_apply": _RUN,
    "pulsar.begin_undo": _RUN,
    "pulsar.undo_page": _RUN,
    "pulsar.begin_abort": _HARMLESS,
    "pulsar.abort_transaction": _RUN,
    "pulsar.check_aborts": _HARMLESS,
    "pulsar.conclude_abort": _RUN,
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh catalog, of epoch 1, and empty buckets."""
    found = open_activity_world(tmp_path)
    with found.opened:
        yield found


def _inputs(world: World) -> dict[str, Any]:
    """The payload's type of every activity of this build, by its name."""
    found = {}
    for one in world.activities.all():
        name = activity._Definition.must_from_callable(one).name
        hints = typing.get_type_hints(getattr(one, "__func__", one))
        found[str(name)] = next(kind for argument, kind in hints.items() if argument != "return")
    return found


def _names(kind: Any) -> set[str]:
    """Of the fields of a payload, also of those inside."""
    own = {one.name for one in dataclasses.fields(kind)}
    inside = (one.type for one in dataclasses.fields(kind) if dataclasses.is_dataclass(one.type))
    return own.union(*map(_names, inside))


def test_every_activity_says_what_a_request_from_before_a_rebuild_may_do(world: World) -> None:
    """One that destroys by what its payload says must carry the epoch, or a run of this catalog."""
    inputs = _inputs(world)
    assert inputs.keys() == _STANDING.keys()
    for name, kind in inputs.items():
        fields = _names(kind)
        if _STANDING[name] != _HARMLESS:
            assert (_STANDING[name] == _EPOCH) == bool(fields & {"epoch", "catalog_epoch"}), name
        if _STANDING[name] == _RUN:
            assert fields & {"run_id", "batch_id"}, name


def _order(world: World) -> TopicDeletionOrder:
    return TopicDeletionOrder(
        topic_id=world.topic.topic_id, topic=world.topic.name, actor="a", reason="r", catalog_epoch=7
    )  # fmt: skip


_STALE: Final[dict[str, Callable[[World], object]]] = {
    "detach": lambda world: run(world.deletion.detach, world.make_detach_input(catalog_epoch=7)),
    "set_deleting": lambda world: run(world.activities.topics.set_topic_deleting, _order(world)),
    "switch_indexes": lambda world: run(
        world.activities.indexes.store_and_switch_indexes, SwitchTopicsPageInput(run_id="r", page=0)
    ),
    "switch_snapshots": lambda world: run(
        world.activities.building.write_and_switch_snapshots, SwitchTopicsPageInput(run_id="r", page=0)
    ),
}


@pytest.mark.parametrize("request_of", _STALE.values(), ids=_STALE.keys())
def test_request_from_before_a_rebuild_is_refused_and_changes_nothing(
    world: World, request_of: Callable[[World], object]
) -> None:
    """By its epoch, or by a run that this catalog does not know."""
    ledgers = world.fill(2)
    before = [world.left_of(one) for one in ledgers]
    with pytest.raises((StaleCatalog, UnknownObject)):
        request_of(world)
    assert [world.left_of(one) for one in ledgers] == before
    assert world.intents() == []
    assert world.catalog.topics.get_topic_by_id(world.topic.topic_id).state.value == "ACTIVE"


def test_chunk_and_single_deletion_from_before_a_rebuild_end_as_stale(world: World) -> None:
    """STALE_CATALOG is their outcome, and no object goes."""
    (ledger,) = world.fill(1)
    run_owner_routed_activity(world.deletion.detach, world.make_detach_input([ledger], force=True))
    before = world.left_of(ledger)
    assert set(run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input(epoch=7)).outcomes) == {
        "STALE_CATALOG"
    }
    assert (
        run_owner_routed_activity(
            world.deletion.claim_and_delete_copy, make_delete_intent_input(world.key(ledger), epoch=7)
        ).outcome
        == "STALE_CATALOG"
    )
    assert world.left_of(ledger) == before
