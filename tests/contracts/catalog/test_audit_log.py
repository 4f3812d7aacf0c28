"""The audit log of acts outside the catalog."""

import pytest

from tests.contracts.catalog.sql_world import SqlWorld
from tests.contracts.catalog.steps import new_topic
from tests.contracts.catalog.worlds import CAUSE, World


@pytest.mark.postgres
def test_record_leaves_a_row_for_each_call(world: World) -> None:
    """What is meant and what came of it are two rows; one that is told twice is there twice, and none is lost."""
    detail = {"bundle": "0x00000000_0x04000000", "fence": 3, "session": None}
    world.catalog.audit_log.record_act("unload", CAUSE, detail=detail)
    world.catalog.audit_log.record_act("unload", CAUSE, detail=detail)
    world.catalog.audit_log.record_act("unloaded", CAUSE, detail={**detail, "outcome": "REMOVED"})
    assert [tuple(row) for row in world.audited("unload")] == [("unload", *_who(), detail)] * 2
    assert [row.detail["outcome"] for row in world.audited("unloaded")] == ["REMOVED"]


def test_record_is_of_no_topic(sql_world: SqlWorld) -> None:
    """It is in the log of everything, and in no topic's."""
    topic = new_topic(sql_world)
    sql_world.catalog.audit_log.record_act("unload", CAUSE, detail={"bundle": "b"})
    decisions = sql_world.catalog.inspection.list_audit_entries
    assert decisions(topic=topic.name, ledger_id=None, limit=9) == []
    assert [(one.act, one.topic) for one in decisions(topic=None, ledger_id=None, limit=9)] == [("unload", None)]


def _who() -> tuple[str, str, str]:
    return CAUSE.actor, CAUSE.reason, CAUSE.workflow_id
