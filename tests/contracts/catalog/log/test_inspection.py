"""What the catalog tells people of one ledger, and of what was decided."""

import json

import pytest

from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import UnknownObject
from logstore.log.ledgers import CopyKind, LedgerState
from logstore.ports.catalog.deletion import IntentResult
from logstore.ports.catalog.inspection import AuditEntry, LedgerHistory, LedgerReference, LedgerReferenceKind
from logstore.positions import LedgerId
from tests.contracts.catalog.delayed.steps import seal
from tests.contracts.catalog.steps import acknowledge, at, filled, new_topic, newborn
from tests.contracts.catalog.world import CAUSE
from tests.contracts.catalog.worlds import SqlWorld


def _ledger(world: SqlWorld, ledger_id: LedgerId) -> LedgerHistory:
    return world.catalog.inspection.get_ledger_history(ledger_id, max_decisions=20)


def _acts(decisions: list[AuditEntry]) -> list[tuple[str, str | None]]:
    return [(one.act, one.run_id) for one in decisions]


def _references(world: SqlWorld, ledger_id: LedgerId) -> list[LedgerReference]:
    return list(_ledger(world, ledger_id).references)


def test_ledger_that_is_listed_is_shown_with_what_names_it(sql_world: SqlWorld) -> None:
    """Its list and place, and exactly the subscriptions that have not acknowledged all of it, by name."""
    topic = new_topic(sql_world)
    a, b, c = filled(sql_world, topic.topic_id, 3)
    for name in ("z-behind", "inside", "at-end", "ahead"):
        sql_world.catalog.cursors.create_subscription(topic.topic_id, name, latest=False)
    acknowledge(sql_world, topic.topic_id, "inside", up_to=(b, 3))
    acknowledge(sql_world, topic.topic_id, "at-end", up_to=(b, 9))
    acknowledge(sql_world, topic.topic_id, "ahead", up_to=(c, 0))
    found = _ledger(sql_world, b)
    assert found.live is not None
    assert (found.live.state, found.live.entries, found.live.size_bytes) == (LedgerState.CLOSED, 10, 100)
    assert list(found.references) == [
        LedgerReference(
            kind=LedgerReferenceKind.LIST,
            facts={"component": "MANAGED_LEDGER", "keys": {}, "place": b, "last": False},
        ),
        LedgerReference(kind=LedgerReferenceKind.CURSOR, facts={"subscription": "inside", "mark_delete": f"{b}:3"}),
        LedgerReference(kind=LedgerReferenceKind.CURSOR, facts={"subscription": "z-behind", "mark_delete": f"{a}:-1"}),
    ]
    (copy,) = found.copies
    assert (copy.state, copy.intent.copy) == ("LIVE", CopyKind.LEDGER)
    assert _references(sql_world, c)[0].facts["last"] is True
    assert [one.facts["subscription"] for one in _references(sql_world, c)[1:]] == sorted(
        ["ahead", "at-end", "inside", "z-behind"]
    )


@pytest.mark.postgres
def test_ledger_that_holds_a_snapshot_a_schema_or_is_offloaded_says_so(sql_world: SqlWorld) -> None:
    """What keeps a ledger of a component, and an upload that is going on."""
    topic = new_topic(sql_world)
    data, snapshot, _ = filled(sql_world, topic.topic_id, 3)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=True)
    own = "INSERT INTO ledger_list (list_id, topic_id, component, owner, version) VALUES (77, :t, :c, :o, 0)"
    sql_world.sql(own, t=topic.topic_id, c="MANAGED_CURSOR", o='{"cursor":"billing"}')
    sql_world.sql("UPDATE ledger SET list_id = 77 WHERE ledger_id = :id", id=snapshot)
    sql_world.sql("UPDATE cursor SET snapshot_ledger = :id WHERE name = 'billing'", id=snapshot)
    version = "INSERT INTO schema_version VALUES (:t, 4, :id, 'd', 1, 0)"
    sql_world.sql(version, t=topic.topic_id, id=snapshot)
    tiered = "INSERT INTO ledger_copy VALUES (:id, 'OFFLOADED_LEDGER', 'WRITING', '{\"uuid\": \"u-1\"}')"
    sql_world.sql(tiered, id=data)
    found = _ledger(sql_world, snapshot)
    assert [(one.kind, dict(one.facts)) for one in found.references][1:] == [
        (LedgerReferenceKind.CURSOR_SNAPSHOT, {"subscription": "billing", "mark_delete": f"{data + 2}:9"}),
        (LedgerReferenceKind.SCHEMA, {"version": 4}),
    ]
    assert found.references[0].facts == {
        "component": "MANAGED_CURSOR",
        "keys": {"cursor": "billing"},
        "place": snapshot,
        "last": True,
    }
    assert (found.copies[0].intent.component, found.copies[0].intent.keys) == ("MANAGED_CURSOR", {"cursor": "billing"})
    assert _references(sql_world, data)[-1] == LedgerReference(kind=LedgerReferenceKind.OFFLOAD, facts={"uuid": "u-1"})
    assert [(one.state, one.intent.context) for one in _ledger(sql_world, data).copies] == [
        ("LIVE", {}),
        ("WRITING", {"uuid": "u-1"}),
    ]


def test_bucket_of_delayed_messages_is_named_by_its_topics_list(sql_world: SqlWorld) -> None:
    """With the entries whose messages it holds."""
    topic_id = new_topic(sql_world).topic_id
    (data,) = filled(sql_world, topic_id, 1)
    made = seal(sql_world, topic_id, at(data, 2), at(data, 7), messages=4)
    facts = {"from": f"{data}:2", "to": f"{data}:7", "messages": 4}
    assert _references(sql_world, made.bucket_id)[1:] == [
        LedgerReference(kind=LedgerReferenceKind.DELAYED_INDEX, facts=facts)
    ]


def test_ledger_that_nobody_attached_has_no_references(sql_world: SqlWorld) -> None:
    """A newborn is in no list, whatever cursors stand before it."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    found = _ledger(sql_world, newborn(sql_world, topic.topic_id))
    assert found.live is not None
    assert (found.live.state, found.live.listed, list(found.references)) == (LedgerState.CREATING, False, [])


def test_intent_made_for_a_live_copy_is_the_one_that_a_detach_files(sql_world: SqlWorld) -> None:
    """Storage is asked about a listed ledger with the same facts as before its deletion."""
    topic = new_topic(sql_world)
    a, _ = filled(sql_world, topic.topic_id, 2)
    asked = _ledger(sql_world, a).copies[0].intent
    sql_world.phase_one(topic.topic_id, batch_id="b")
    filed = _ledger(sql_world, a).copies[0].intent
    same = ("ledger_id", "copy", "generation", "application", "component", "topic_id", "topic", "keys", "context")
    numbers = ("segments", "last_segment", "ledger_created_us", "size_bytes", "epoch")
    assert {name: getattr(asked, name) for name in same + numbers} == {
        name: getattr(filed, name) for name in same + numbers
    }


def test_ledger_that_was_detached_is_shown_with_its_intents_and_decisions(sql_world: SqlWorld) -> None:
    """Once detached it has no row: the intent says whose it was, the audit log who decided."""
    topic = new_topic(sql_world)
    a, _, _ = filled(sql_world, topic.topic_id, 3)
    sql_world.phase_one(topic.topic_id, batch_id="b")
    waiting = _ledger(sql_world, a)
    assert (waiting.live, list(waiting.references)) == (None, [])
    assert [(one.state, one.intent.topic) for one in waiting.copies] == [("PENDING", topic.name)]
    assert [(one.stalled, one.finished_us) for one in waiting.intents] == [(False, None)]
    row = waiting.intents[0].intent.row_id
    end = IntentResult(row_id=row, outcome=Outcome.DELETED, objects=3, size_bytes=30)
    sql_world.catalog.deletions.record_outcomes([end], holder="b")
    sql_world.catalog.deletions.close_batch("b", CAUSE)
    (ended,) = _ledger(sql_world, a).intents
    assert (ended.intent.state, ended.objects_deleted, ended.bytes_deleted) == (DeletionState.DELETED, 3, 30)
    assert ended.finished_us is not None
    assert _acts(list(_ledger(sql_world, a).decisions)) == [("delete-ledgers", "b"), ("detach", "b")]
    assert _ledger(sql_world, a).decisions[1].reason == "a test"


@pytest.mark.postgres
def test_ledger_whose_deletion_was_forgotten_is_known_by_its_decisions(sql_world: SqlWorld) -> None:
    """Finished rows go after a month; the audit log still tells who removed it, and why."""
    topic = new_topic(sql_world)
    a, b, c, _ = filled(sql_world, topic.topic_id, 4)
    sql_world.phase_one(topic.topic_id, [a, c], force=True, batch_id="two")
    sql_world.catalog.deletions.close_batch("two", CAUSE)
    assert list(_ledger(sql_world, b).decisions) == [], "it lies between the two, and was never touched"
    sql_world.phase_one(topic.topic_id, [b], force=True, batch_id="one")
    sql_world.sql("DELETE FROM pending_deletion")
    for gone in (a, c):
        found = _ledger(sql_world, gone)
        assert (found.live, list(found.copies), list(found.intents)) == (None, [], [])
        assert _acts(list(found.decisions)) == [("delete-ledgers", "two"), ("detach", "two")]
    assert _acts(list(_ledger(sql_world, b).decisions)) == [("detach", "one")], "a sample that is whole tells"


def test_ledger_that_stands_within_a_range_that_went_is_not_said_to_have_gone(sql_world: SqlWorld) -> None:
    """Of many ledgers only some are sampled; one that is still there was certainly not among them."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 46)
    sql_world.phase_one(topic.topic_id, ledgers[:44:2], force=True, batch_id="even")
    assert list(_ledger(sql_world, ledgers[41]).decisions) == []
    assert _acts(list(_ledger(sql_world, ledgers[42]).decisions)) == [("detach", "even")]


@pytest.mark.postgres
def test_decision_on_rows_of_several_topics_is_found_by_its_sample(sql_world: SqlWorld) -> None:
    """A redrive names ledgers of any topic: of those that it samples it is told, of others only by their batch."""
    topic = new_topic(sql_world)
    a, b, c, _ = filled(sql_world, topic.topic_id, 4)
    sql_world.phase_one(topic.topic_id, batch_id="b")

    def written(count: int) -> None:
        detail = json.dumps({"ledgers": count, "first": a, "last": c, "sample": [a, c]})
        sql_world.sql(
            "INSERT INTO audit (at_us, act, actor, reason, workflow_id, topic_id, run_id, first_ledger, last_ledger, "
            "detail) VALUES (1, 'redrive', 'me', '', 'w', 0, :run, :first, :last, :detail)",
            run=f"redrive-{count}",
            first=a,
            last=c,
            detail=detail,
        )

    written(2)
    written(30)
    found = {one: [run for act, run in _acts(list(_ledger(sql_world, one).decisions))] for one in (a, b, c)}
    assert found == {a: ["redrive-2", "b"], b: ["b"], c: ["redrive-2", "b"]}


def test_stalled_intent_is_told_from_one_that_is_worked_on(sql_world: SqlWorld) -> None:
    """An operator must see whether anybody will ever come."""
    topic = new_topic(sql_world)
    a, _ = filled(sql_world, topic.topic_id, 2)
    sql_world.phase_one(topic.topic_id, batch_id="b", ttl_s=-1)
    assert [one.stalled for one in _ledger(sql_world, a).intents] == [True]


@pytest.mark.parametrize("ledger_id", [-1, 3, 2**40])
def test_ledger_that_never_was_is_unknown(sql_world: SqlWorld, ledger_id: int) -> None:
    """An id that nobody was given is bad input, not a ledger without a history."""
    filled(sql_world, new_topic(sql_world).topic_id, 3)
    with pytest.raises(UnknownObject, match=r"ledger: expected an id .* below 3"):
        _ledger(sql_world, LedgerId(ledger_id))


@pytest.mark.postgres
def test_decisions_are_newest_first_and_of_whom_was_asked(sql_world: SqlWorld) -> None:
    """All of them, those of a topic, those of a ledger; limited."""
    first, second = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/other")
    a = filled(sql_world, first.topic_id, 2)[0]
    b = filled(sql_world, second.topic_id, 2)[0]
    sql_world.phase_one(first.topic_id, batch_id="one")
    sql_world.phase_one(second.topic_id, batch_id="two")
    sql_world.catalog.deletions.close_batch("one", CAUSE)
    asked = sql_world.catalog.inspection.list_audit_entries
    assert _acts(asked(limit=9)) == [("delete-ledgers", "one"), ("detach", "two"), ("detach", "one")]
    assert _acts(asked(limit=1)) == [("delete-ledgers", "one")]
    assert _acts(asked(topic=second.name, limit=9)) == [("detach", "two")]
    assert _acts(asked(ledger_id=a, limit=9)) == [("delete-ledgers", "one"), ("detach", "one")]
    assert _acts(asked(ledger_id=b, topic=first.name, limit=9)) == []
    assert {one.topic for one in asked(limit=9)} == {first.name, second.name}


def test_forced_detach_is_written_down_as_such(sql_world: SqlWorld) -> None:
    """Whoever asks later sees that subscriptions were overruled."""
    topic = new_topic(sql_world)
    a, b, _ = filled(sql_world, topic.topic_id, 3)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    sql_world.phase_one(topic.topic_id, [a], force=True, batch_id="forced")
    acknowledge(sql_world, topic.topic_id, "billing", up_to=(b, 9))
    sql_world.phase_one(topic.topic_id, batch_id="let-go")
    assert [one.detail.get("forced") for one in sql_world.catalog.inspection.list_audit_entries(limit=9)] == [
        None,
        True,
    ]
