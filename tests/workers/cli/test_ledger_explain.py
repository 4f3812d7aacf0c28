"""`ledger explain`: what an operator reads of a ledger that is listed, on its way out, gone, or never was."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import CopyKind
from logstore.log.segment_format import sha256_hex
from logstore.ownership import BundleId, bundle_name, bundle_of_topic
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.reconciliation import RunKind, SingleObjectAnswers
from logstore.positions import LedgerId
from logstore.validated_names import TopicName
from tests.activities.activity_world import (
    BATCH_ID,
    TOPIC_NAME,
    World,
    make_certify_input,
    make_chunk_input,
    open_activity_world,
)
from tests.activities.activity_world import run as run_activity
from tests.contracts.catalog.deletion.test_row_traces import traced
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices


@pytest.fixture
def world(tmp_path: Path, services: FakeCommandServices) -> Iterator[World]:
    """A catalog and a bucket, behind the command line."""
    made = open_activity_world(tmp_path / "world")
    storages = {CopyKind.LEDGER.value: PrimaryCopyStorage(made.objects)}
    services.log = SimpleNamespace(  # type: ignore[assignment]
        catalog=made.catalog, storages=storages, objects=made.objects, closed=0
    )
    yield made
    made.catalog.database.close()
    shutil.rmtree(tmp_path / "world")


def _explained(run: Run, ledger_id: int) -> Any:
    return document(run("ledger", "explain", str(ledger_id), "--json"))


def test_explain_of_a_listed_ledger_says_who_needs_it(run: Run, world: World) -> None:
    """Every field of the contract, storage's own statement read from the content of `meta.json`."""
    a, b = world.fill(2, acknowledged=False)
    world.acknowledge(a, "billing")
    found = _explained(run, b)
    assert list(found) == [
        "ledger_id",
        "verdict",
        "owner",
        "bundle",
        "state",
        "entries",
        "size_bytes",
        "generation",
        "references",
        "copies",
        "intents",
        "tombstone",
        "decisions",
    ]
    assert found["verdict"] == "listed and needed by subscription billing"
    assert (found["state"], found["entries"], found["size_bytes"], found["tombstone"]) == ("CLOSED", 20, 200, None)
    owner = {"application": "sexton", "component": "MANAGED_LEDGER", "topic": TOPIC_NAME, "topic_id": 1, "keys": {}}
    assert found["owner"] == owner
    assert found["references"] == [
        {"kind": "LIST", "component": "MANAGED_LEDGER", "keys": {}, "place": b, "last": False},
        {"kind": "CURSOR", "subscription": "billing", "mark_delete": f"{a}:19"},
    ]
    (copy,) = found["copies"]
    assert (copy["kind"], copy["state"], copy["context"]) == ("LEDGER", "LIVE", {})
    storage = copy["storage"]
    assert (storage["finding"], storage["objects"], storage["detail"]) == ("OWN", 3, "")
    assert storage["statement"]["topic"] == TOPIC_NAME
    assert storage["statement"]["ledger-id"] == str(b)
    assert (found["intents"], found["decisions"]) == ([], [])
    assert _explained(run, a)["verdict"] == "listed and needed by no subscription: retention lets it go"
    assert _explained(run, b + 1)["verdict"] == "listed and open: it takes entries"


def test_explain_names_the_bundle_and_who_acquired_it_last(run: Run, world: World) -> None:
    """Whose background work the ledger's deletion is, as far as the catalog knows."""
    (ledger,) = world.fill(1)
    bundle = bundle_of_topic(TopicName.parse(TOPIC_NAME), bundle_count=64)
    name = bundle_name(bundle, bundle_count=64)
    assert _explained(run, ledger)["bundle"] == {"bundle": name, "number": bundle, "fence": 0, "fenced_by": None}
    world.catalog.fences.raise_fences([BundleId(0), bundle], "w1")
    world.catalog.fences.raise_fences([bundle], "w2")
    world.detach()
    assert _explained(run, ledger)["bundle"] == {"bundle": name, "number": bundle, "fence": 2, "fenced_by": "w2"}
    assert f"  bundle           {name}\n" in run("ledger", "explain", str(ledger)).stdout
    with world.catalog.database.engine.begin() as connection:
        connection.execute(text("UPDATE pending_deletion SET topic = 'a/b'"))
    assert _explained(run, ledger)["bundle"] is None, "a row that was damaged by hand is explained all the same"


def test_explain_of_a_deleted_ledger_says_when_and_by_whom(run: Run, world: World) -> None:
    """Long gone, and still: whose it was, that storage confirmed it, who decided."""
    (gone,) = world.fill(1)
    world.detach()
    waiting = _explained(run, gone)
    assert (waiting["state"], waiting["copies"][0]["storage"]["finding"]) == ("PENDING", "OWN")
    assert f"batch {BATCH_ID} is to delete it" in waiting["verdict"]
    run_chunk(world)
    found = _explained(run, gone)
    assert found["state"] == "DELETED"
    assert found["verdict"].startswith("deleted on 2")
    assert found["verdict"].endswith(", confirmed by storage")
    assert (found["copies"][0]["storage"]["finding"], found["copies"][0]["storage"]["statement"]) == ("ABSENT", None)
    assert [(one["act"], one["reason"]) for one in found["decisions"]] == [
        ("delete-ledgers", "a test"),
        ("detach", "a test"),
    ]
    (intent,) = found["intents"]
    assert (intent["outcome"], intent["objects_deleted"], intent["attempts"]) == ("DELETED", 3, 1)


def test_explain_and_deletion_list_name_the_trace_of_each_act(run: Run, world: World) -> None:
    """From a row to its spans: the trace of the detach is in its decision, that of the last attempt in the row."""
    (gone,) = world.fill(1)
    with traced(1) as detached:
        world.detach()
    with traced(2) as attempt:
        run_chunk(world)
    found = _explained(run, gone)
    assert [intent["trace_id"] for intent in found["intents"]] == [attempt]
    assert [(one["act"], one["trace_id"]) for one in found["decisions"]] == [
        ("delete-ledgers", attempt),
        ("detach", detached),
    ]
    assert all("trace_id" not in one["detail"] for one in found["decisions"])
    shown = run("ledger", "explain", str(gone)).stdout
    assert f"trace id       {attempt}" in shown
    assert f"trace id       {detached}" in shown
    world.sql("UPDATE pending_deletion SET state = 'PENDING'")
    assert [row["trace_id"] for row in document(run("deletion", "list", "--json"))] == [attempt]


def run_chunk(world: World) -> None:
    """Phase two, and the certificate."""
    run_activity(world.deletion.delete_chunk, make_chunk_input())
    run_activity(world.deletion.close_and_certify_batch, make_certify_input())


def test_explain_of_a_dead_letter_says_what_to_do(run: Run, world: World) -> None:
    """Somebody else's object lies there: the reason, the row, and the command that tries again."""
    (gone,) = world.fill(1)
    world.detach()
    squatter = f"{ledger_prefix(gone)}another-application.parquet"
    world.objects.put_if_absent(squatter, b"x", metadata={})
    run_chunk(world)
    found = _explained(run, gone)
    assert found["state"] == "DEAD_LETTERED"
    assert found["verdict"].startswith("dead letter: METADATA_MISMATCH: found ")
    assert found["verdict"].endswith("; `sexton deletion redrive 1` tries again")
    storage = found["copies"][0]["storage"]
    assert (storage["finding"], storage["objects"]) == ("FOREIGN", 4)
    assert "another-application" in storage["detail"]


def test_explain_while_storage_is_down_tells_the_rest(run: Run, world: World) -> None:
    """What the catalog knows is worth most when nothing else answers."""
    (kept,) = world.fill(1, acknowledged=False)
    world.acknowledge(LedgerId(kept))
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=9))
    found = _explained(run, kept)
    storage = found["copies"][0]["storage"]
    assert storage["finding"] is None
    assert storage["detail"].startswith("storage did not answer: ")
    assert found["verdict"] == "listed and needed by no subscription: retention lets it go"
    shown = run("ledger", "explain", str(kept)).stdout
    assert "storage did not answer" in " ".join(shown.split())


def test_explain_of_a_listed_ledger_without_objects_calls_it_data_loss(run: Run, world: World) -> None:
    """The worst case comes first, whoever else may need the ledger."""
    (lost,) = world.fill(1)
    world.objects.delete([key for key in world.objects.keys if key.startswith(ledger_prefix(lost))])
    assert _explained(run, lost)["verdict"] == (
        "listed, but storage holds nothing of its LEDGER copy, and no other copy: this is data loss"
    )


def test_explain_of_a_listed_ledger_that_lost_a_segment_calls_it_data_loss(run: Run, world: World) -> None:
    """The ledger's own statement still stands, so that storage holds something of the copy."""
    (lost,) = world.fill(1)
    world.objects.delete([segment_key(lost, 1)])
    found = _explained(run, lost)
    assert found["verdict"] == (
        "listed, but storage lacks 1 of 2 segments of its LEDGER copy, and no other copy: this is data loss"
    )
    assert found["copies"][0]["storage"]["detail"] == "1 of 2 segments absent"


def _with_digests(world: World, ledger_id: LedgerId) -> list[str]:
    """Give rows and objects of a ledger the digests that a writer gives them; keys of its segments."""
    keys = []
    for row in world.catalog.ledgers.list_segments(ledger_id):
        key = segment_key(ledger_id, row.number)
        stored = world.objects.get(key)
        assert stored
        digest = sha256_hex(stored.body)
        world.objects.delete([key])
        world.objects.put_if_absent(key, stored.body, metadata={**stored.metadata, "sha256": digest})
        statement = "UPDATE segment SET sha256 = :digest WHERE ledger_id = :ledger AND number = :number"
        world.sql(statement, digest=digest, ledger=ledger_id, number=row.number)
        keys.append(key)
    return keys


def test_explain_names_the_segment_that_is_corrupt_and_what_to_do(run: Run, world: World) -> None:
    """One flipped bit: the reader's error leads here, and here stands which entries it has cost."""
    (ledger,) = world.fill(1, segments=3)
    _, key, _ = _with_digests(world, ledger)
    sound = _explained(run, ledger)["copies"][0]["storage"]
    assert (sound["segments"], sound["compared"], sound["corrupt"]) == (3, 3, [])
    held = world.objects._held[key]
    world.objects._held[key] = replace(held, body=b"y" + held.body[1:])
    found = _explained(run, ledger)
    assert "1 of 3 segments of its LEDGER copy that were compared are corrupt (entries 10 to 19)" in found["verdict"]
    assert f"sexton ledger delete {TOPIC_NAME} {ledger} --force" in found["verdict"]
    (corrupt,) = found["copies"][0]["storage"]["corrupt"]
    assert (corrupt["number"], corrupt["first_entry"], corrupt["last_entry"]) == (1, 10, 19)
    assert corrupt["error"].startswith(f"{key}: expected digest ")
    shown = " ".join(run("ledger", "explain", str(ledger)).stdout.split())
    assert "compared 3 of 3 segments" in shown
    assert f"corrupt segment 1, entries 10 to 19: {key}: expected digest" in shown


def test_explain_reads_a_bounded_part_of_a_large_ledger_unless_told_to_verify_it(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much was compared is said."""
    (ledger,) = world.fill(1, segments=3)
    *_, last = _with_digests(world, ledger)
    held = world.objects._held[last]
    world.objects._held[last] = replace(held, body=b"y" + held.body[1:])
    monkeypatch.setattr("workers.cli.ledger_explanation._MAX_COMPARED_BYTES", 200)
    bounded = _explained(run, ledger)["copies"][0]["storage"]
    assert (bounded["compared"], bounded["corrupt"]) == (2, [])
    whole = document(run("ledger", "explain", str(ledger), "--verify", "--json"))["copies"][0]["storage"]
    assert (whole["compared"], len(whole["corrupt"])) == (3, 1)


def test_explain_while_segments_cannot_be_read_says_so(run: Run, world: World) -> None:
    """No answer is no damage."""
    (ledger,) = world.fill(1)
    keys = _with_digests(world, ledger)
    world.objects.plan(
        Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE, times=1_000, matches=lambda key: key in keys)
    )
    storage = _explained(run, ledger)["copies"][0]["storage"]
    assert storage["detail"].startswith("storage did not answer")
    assert (storage["compared"], storage["corrupt"]) == (0, [])


def test_explain_of_a_ledger_that_came_back_says_so(run: Run, world: World) -> None:
    """Storage that holds a deleted ledger again is not called confirmed."""
    (gone,) = world.fill(1)
    world.detach()
    (intent,) = world.intents()
    run_chunk(world)
    world.objects.put_if_absent(meta_key(gone, intent.owner), b"{}", metadata={})
    assert "and yet storage holds 1 objects of its LEDGER copy now" in _explained(run, gone)["verdict"]


def test_explain_of_a_forgotten_ledger_goes_by_the_audit_log(run: Run, world: World) -> None:
    """Finished rows are removed in time; who decided stays known."""
    (gone,) = world.fill(1)
    world.detach()
    run_chunk(world)
    world.sql("DELETE FROM pending_deletion")
    found = _explained(run, gone)
    assert (found["state"], found["owner"], found["copies"], found["intents"]) == ("FORGOTTEN", None, [], [])
    assert "the audit log is all that is left" in found["verdict"]
    assert len(found["decisions"]) == 2


@pytest.mark.parametrize(("ledger_id", "told"), [("99", "below 2"), ("-1", "a whole number from 0")])
def test_explain_of_a_ledger_that_never_was_is_bad_input(run: Run, world: World, ledger_id: str, told: str) -> None:
    """Exit code 2, and a sentence that says which ids were given out."""
    world.fill(1)
    ended = run("ledger", "explain", "--json", "--", ledger_id)
    assert told in document(ended, code=2)["error"]["message"]


def test_explain_of_a_damaged_row_shows_it(run: Run, world: World) -> None:
    """A row that was changed by hand is explained as far as it can be read, and storage is not asked with it."""
    (gone,) = world.fill(1)
    world.detach()
    world.sql("UPDATE pending_deletion SET keys = '{not json'")
    found = _explained(run, gone)
    assert found["copies"][0]["storage"]["finding"] is None
    assert found["copies"][0]["storage"]["detail"].startswith("not asked: ")


def test_explain_for_people_fits_a_narrow_terminal(run: Run, world: World) -> None:
    """Sections, the sentence first, and no line beyond 80 columns but where one name is longer."""
    gone, kept = world.fill(2)
    for name in ("a", "b", "c", "d"):
        world.catalog.cursors.create_subscription(world.topic.topic_id, name, latest=False)
    run_activity(world.deletion.detach, world.make_detach_input([gone], force=True))
    run_chunk(world)
    for ledger_id, said in (
        (kept, "needed by subscriptions a, b, c and 1 more"),
        (gone, "detach by tests: a test"),
    ):
        shown = run("ledger", "explain", str(ledger_id)).stdout
        lines = shown.splitlines()
        assert lines[0] == f"ledger {ledger_id}"
        assert [line for line in lines if len(line) > 80 and len(line.split()) > 2] == []
        assert {"row", "owner", "references", "copies", "intents", "decisions, newest first"} <= set(lines)
        assert said in " ".join(shown.split())


def test_audit_list_of_a_topic_names_the_segments_that_were_passed_over(run: Run, world: World) -> None:
    """Their objects go next, and this row is what is left of them."""
    (kept,) = world.fill(1)
    claim = Claim(workflow_id="w", run_id="r", ttl_s=60)
    cause = AuditCause(actor="ann", reason="a test", workflow_id="w")
    world.catalog.reconciliation.open_run("apply-plan-1", RunKind.APPLY, claim=claim, summary={})
    answers = SingleObjectAnswers(segments={0: (kept, 9)}, uploads=frozenset(), kept={})
    world.catalog.reconciliation.decide_single_objects("apply-plan-1", 0, answers, cause=cause)
    (row,) = document(run("audit", "list", "--topic", TOPIC_NAME, "--json"))
    assert (row["act"], row["topic"], row["detail"]["keys"]) == (
        "pass-over-segments",
        TOPIC_NAME,
        [segment_key(kept, 9)],
    )


def test_audit_list_tells_who_did_what_and_why(run: Run, world: World) -> None:
    """Newest first; of a topic, of a ledger, or of all."""
    gone, _ = world.fill(2)
    world.detach([gone])
    run_chunk(world)
    rows = document(run("audit", "list", "--json"))
    assert [(row["act"], row["actor"], row["reason"], row["workflow_id"], row["topic"]) for row in rows] == [
        ("delete-ledgers", "tests", "a test", f"delete-ledgers/{BATCH_ID}", TOPIC_NAME),
        ("detach", "tests", "a test", f"delete-ledgers/{BATCH_ID}", TOPIC_NAME),
    ]
    assert rows[0]["detail"]["outcomes"] == {"DELETED": 1}
    assert document(run("audit", "list", "--topic", TOPIC_NAME, "--limit", "1", "--json")) == rows[:1]
    assert document(run("audit", "list", "--ledger", str(gone), "--json")) == rows
    assert document(run("audit", "list", "--ledger", str(gone + 1), "--json")) == []
    assert "nothing was destroyed" in run("audit", "list", "--ledger", str(gone + 1)).stdout
    world.sql("DELETE FROM topic")
    assert document(run("audit", "list", "--topic", TOPIC_NAME, "--json")) == rows, (
        "a topic that is gone is asked about most"
    )
    document(run("audit", "list", "--topic", "no topic", "--json"), code=2)
