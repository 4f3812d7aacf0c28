"""The steps that tests of component ledgers are told in."""

from collections.abc import Iterable

from pyroaring import BitMap

from logstore.cursors.cursor_state import CursorSnapshot, CursorState, complete_state
from logstore.log.ledgers import Component
from logstore.ports.catalog.cursors import CursorSnapshotCondition
from logstore.ports.catalog.log import AcknowledgeWrite, GroupCommitResult
from logstore.positions import LedgerId, Position, TopicId
from tests.contracts.catalog.steps import at
from tests.contracts.catalog.world import World

CURSOR = "billing"


def cursor_newborn(world: World, topic_id: TopicId, name: str = CURSOR) -> LedgerId:
    """A cursor ledger that is not listed yet."""
    keys = {"cursor": name}
    return world.catalog.components.create_component_ledger(
        topic_id, Component.MANAGED_CURSOR, keys, application="sexton"
    ).ledger_id


def change_of(world: World, topic_id: TopicId, name: str = CURSOR) -> CursorSnapshotCondition:
    """A change of the row as it is now."""
    row = world.catalog.cursors.get_cursor(topic_id, name)
    return CursorSnapshotCondition(topic_id=topic_id, subscription=name, expected=row.snapshot_ledger, seeks=row.seeks)


def snapshot(ledger_id: LedgerId, *entries: tuple[int, int]) -> CursorSnapshot:
    """What a cursor ledger holds."""
    held: dict[LedgerId, BitMap] = {}
    for ledger, entry in entries:
        held.setdefault(LedgerId(ledger), BitMap()).add(entry)
    return CursorSnapshot(ledger_id=ledger_id, acknowledged=held)


def publish(
    world: World, topic_id: TopicId, *entries: tuple[int, int], change: CursorSnapshotCondition | None = None
) -> CursorSnapshot:
    """A new cursor ledger that must become the cursor's."""
    made = snapshot(cursor_newborn(world, topic_id), *entries)
    now = change or change_of(world, topic_id)
    assert world.catalog.cursors.publish_snapshot(now, made, size_bytes=50)
    return made


def acknowledge_with(
    world: World,
    topic_id: TopicId,
    held: CursorSnapshot | None,
    *entries: tuple[int, int],
    up_to: tuple[int, int] | None = None,
) -> GroupCommitResult:
    """Acknowledge with a snapshot that the sender has loaded."""
    return world.catalog.commits.commit_writes([acknowledgement(topic_id, held, *entries, up_to=up_to)])[0]


def acknowledgement(
    topic_id: TopicId, held: CursorSnapshot | None, *entries: tuple[int, int], up_to: tuple[int, int] | None = None
) -> AcknowledgeWrite:
    """The write of one."""
    return AcknowledgeWrite(
        topic_id=topic_id,
        subscription=CURSOR,
        positions=tuple(at(*entry) for entry in entries),
        up_to=at(*up_to) if up_to else None,
        snapshot=held,
    )


def state_of(world: World, topic_id: TopicId, held: CursorSnapshot | None) -> CursorState:
    """The cursor's whole state."""
    row = world.catalog.cursors.get_cursor(topic_id, CURSOR)
    assert row.snapshot_ledger == (held.ledger_id if held else None)
    return complete_state(row.state, held)


def covered(state: CursorState, entries: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the entries that are acknowledged."""
    return {entry for entry in entries if state.covers(Position(LedgerId(entry[0]), entry[1]))}
