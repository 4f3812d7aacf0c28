"""`records` and `tombstones`: what there is, and what their jobs come to."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.deletion.intents import BatchCertificate, RequestRefusal
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.records import RecordLogState, TombstoneCounts, UnrecordableRecord
from logstore.records.job_results import (
    DefragmentedBlocks,
    FlushedRecords,
    RaidedTombstones,
    ReplicaAwaitedByRaid,
    ShippedBlocks,
)
from logstore.records.manifest import Block, IdCeilings, Manifest
from logstore.records.record_kinds import RecordKind
from logstore.records.services.replicas import ReplicaStatus
from logstore.records.tombstone_rules import ReplicaState
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices, FakeJobHandle
from workflows.records.job_definitions import (
    DefragmentRecordsResult,
    EndRecordsResult,
    FlushRecordsResult,
    RaidTombstonesResult,
    ReplicateRecordsResult,
)

_US = 1_000_000
_NOW_US = 1_800_000_000 * _US
_BAD = UnrecordableRecord(
    kind=RecordKind.SEGMENT, id=5, sub="0", field="size_bytes", expected="a whole number of 64 bits", found="1e+19"
)
_DONE = BatchCertificate(batch_id="expired-1", outcomes={"DELETED": 2}, objects=2, size_bytes=2)


@dataclass
class _Jobs:
    """Jobs that were started, and what they come to."""

    results: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def starter(self, name: str, workflow_id: str) -> Any:
        async def start(*given: object, **more: object) -> Any:
            self.asked.append((name, *given[:-1], *more.items()))  # the actor is whoever runs the tests
            return FakeJobHandle(self.results[name], id=workflow_id)

        return start


@pytest.fixture
def jobs(services: FakeCommandServices) -> _Jobs:
    made = _Jobs()
    done = FlushedRecords(manifest=7, flushes=1, records=70, tombstones=2, blocks=3, bytes=900, left=1, named=12)
    made.results["flush"] = FlushRecordsResult(done=done, looks=1)
    made.results["defragment"] = DefragmentRecordsResult(done=DefragmentedBlocks(manifest=8, rewritten=9, written=1))
    raided = RaidedTombstones(candidates=5, kept=2, removed=3, blocks=4, versions=40, seconds=1.23456)
    made.results["raid"] = RaidTombstonesResult(run_id="raid-1", done=raided)
    made.results["replicate"] = ReplicateRecordsResult(
        shipped=[ShippedBlocks(replica="far", manifest=8, blocks=2, bytes=10, records=3)]
    )
    made.results["end"] = EndRecordsResult(records=9, ended=2, kept=1, ledger_ids=[3, 5], certificate=_DONE)
    for name, of, workflow_id in (
        ("flush", "records", "flush-records/now"),
        ("defragment", "records", "defragment-records"),
        ("raid", "tombstones", "raid-tombstones"),
        ("replicate", "records", "replicate-records"),
        ("end", "records", "end-records/expired-1"),
    ):
        setattr(services.client, f"{name}_{of}", made.starter(name, workflow_id))
    return made


def _known(
    services: FakeCommandServices,
    *,
    manifest: Manifest | None,
    replicas: tuple[ReplicaStatus, ...] = (),
    number: int | None = None,
    stamp: str = "s",
) -> None:
    """The newest manifest, and which one the catalog knows, if that is another one."""
    state = RecordLogState(
        catalog_id="c",
        epoch=3,
        bundles=64,
        manifest=(manifest.number if manifest else 0) if number is None else number,
        stamp=stamp,
        pending_stamps=frozenset(),
        is_adopting=False,
        ceilings=IdCeilings(),
        next_ids=IdCeilings(),
        outbox_changes=4 if manifest else 0,
        oldest_change_us=_NOW_US - 2_500_000 if manifest else None,
        oldest_cursor_change_us=None,
        now_us=_NOW_US,
    )
    services.log.catalog.records = SimpleNamespace(
        read_state=lambda: state,
        read_known_manifest=lambda: state,
        count_unflushed_deletions=lambda: 3,
        read_changes=lambda **_: nullcontext(SimpleNamespace(iterate_version_batches=list, unrecordable=[_BAD])),
    )
    log = SimpleNamespace(read_newest_manifest=lambda after: manifest)
    replication = SimpleNamespace(list_replica_statuses=lambda: list(replicas))
    services.log.records = SimpleNamespace(log=log, replication=replication)  # type: ignore[attr-defined]


def _block(number: int, kind: RecordKind, *, records: int, tombstones: int = 0) -> Block:
    facts: dict[str, Any] = {"sha256": "0", "first_id": 1, "last_id": 2, "size_bytes": 100}
    return Block(block_id=f"{kind}-{number}", kind=kind, records=records, tombstones=tombstones, **facts)


def test_status_tells_the_newest_manifest_and_what_is_not_in_it(run: Run, services: FakeCommandServices) -> None:
    """By kind, with how long a change has waited: what would be lost now."""
    blocks = (
        _block(1, RecordKind.LEDGER, records=10, tombstones=3),
        _block(2, RecordKind.LEDGER, records=5),
        _block(3, RecordKind.TOPIC, records=2),
    )
    manifest = Manifest(
        number=9,
        catalog_id="c",
        epoch=3,
        bundles=64,
        stamp="s",
        flushed_us=_NOW_US,
        ceilings=IdCeilings(),
        blocks=blocks,
    )
    _known(services, manifest=manifest)
    told = document(run("records", "status", "--json"))
    assert told == {
        "manifest": 9,
        "epoch": 3,
        "adopting": False,
        "flushed": "2027-01-15T08:00:00Z",
        "changes": 4,
        "staged_blocks": 0,
        "oldest_change_s": 2.5,
        "deletions_waiting": 3,
        "refused": 1,
        "blocks": 3,
        "bytes": 300,
        "kinds": [
            {"kind": "ledger", "blocks": 2, "records": 15, "tombstones": 3, "bytes": 200},
            {"kind": "topic", "blocks": 1, "records": 2, "tombstones": 0, "bytes": 100},
        ],
        "refused_records": [
            {"record": "segment 5 0: size_bytes: expected a whole number of 64 bits, found 1e+19"},
        ],
    }
    shown = run("records", "status").stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert any("ledger" in line and "15" in line for line in shown)


def test_rewrite_tells_what_it_has_written(run: Run, services: FakeCommandServices) -> None:
    """It needs no worker: none may be able to flush."""
    written = FlushedRecords(manifest=28, records=70, tombstones=2, blocks=3, bytes=900, left=1, named=3)
    services.log.records = SimpleNamespace(flusher=SimpleNamespace(rewrite_all_records=lambda: written))  # type: ignore[attr-defined]
    told = document(run("records", "rewrite", "--json"))
    assert told == {"manifest": 28, "records": 70, "tombstones": 2, "blocks": 3, "bytes": 900, "left": 1}


def test_status_of_a_bucket_that_was_emptied_is_refused(run: Run, services: FakeCommandServices) -> None:
    """It would else say that nothing was ever flushed, and that nothing waits."""
    _known(services, manifest=None, number=27)
    error = document(run("records", "status", "--json"), 3)["error"]
    assert error["type"] == "CatalogMismatch"
    assert "expected manifest 27 or a newer one, found none" in error["message"]


def test_status_of_a_database_that_is_older_than_its_record_log_is_refused(
    run: Run, services: FakeCommandServices
) -> None:
    """The newest manifest says nothing of what this database holds."""
    facts: dict[str, Any] = {"catalog_id": "c", "epoch": 3, "bundles": 64, "stamp": "later", "flushed_us": _NOW_US}
    _known(services, manifest=Manifest(number=9, ceilings=IdCeilings(), **facts), number=7)
    assert document(run("records", "status", "--json"), 3)["error"]["type"] == "CatalogOutdated"


def test_status_before_the_first_flush_says_that_there_is_nothing(run: Run, services: FakeCommandServices) -> None:
    """No manifest is number 0."""
    _known(services, manifest=None)
    told = document(run("records", "status", "--json"))
    assert (told["manifest"], told["flushed"], told["oldest_change_s"], told["kinds"]) == (0, None, None, [])
    assert "(nothing is flushed yet)" in run("records", "status").stdout


def test_flush_answers_what_was_written(run: Run, jobs: _Jobs) -> None:
    """With the manifest, and what has changed meanwhile."""
    told = document(run("records", "flush", "--reason", "before a move", "--json"))
    assert told == {
        "workflow_id": "flush-records/now",
        "manifest": 7,
        "flushes": 1,
        "records": 70,
        "tombstones": 2,
        "blocks": 3,
        "bytes": 900,
        "left": 1,
        "named": 12,
        "refused": 0,
    }
    assert jobs.asked == [("flush", "before a move")]


def test_flush_that_left_a_record_out_is_done_in_part(run: Run, jobs: _Jobs) -> None:
    """Exit code 5, with the record that no block can hold."""
    jobs.results["flush"] = FlushRecordsResult(done=FlushedRecords(records=9, refused=1, refusal=str(_BAD)))
    told = run("records", "flush", "--json")
    assert told.exit_code == 5
    assert "size_bytes: expected a whole number of 64 bits" in told.stdout


def test_jobs_that_another_one_kept_waiting_are_not_done(run: Run, jobs: _Jobs) -> None:
    """Exit code 5, with the workflow."""
    jobs.results["flush"] = FlushRecordsResult(done=FlushedRecords(left=3, held=True))
    jobs.results["defragment"] = DefragmentRecordsResult(joined=True)
    jobs.results["raid"] = RaidTombstonesResult(joined=True)
    jobs.results["replicate"] = ReplicateRecordsResult(joined=True)
    for words in (("records", "flush"), ("records", "defragment"), ("tombstones", "raid"), ("records", "replicate")):
        (failed,) = document(run(*words, "--json"), 5)["failed"]
        assert "another" in failed["error"], words


def test_defragment_answers_what_it_did(run: Run, jobs: _Jobs) -> None:
    """Blocks, versions and bytes."""
    told = document(run("records", "defragment", "--json"))
    assert (told["workflow_id"], told["manifest"], told["rewritten"], told["written"]) == (
        "defragment-records",
        8,
        9,
        1,
    )
    assert {"dropped", "bytes_before", "bytes_after", "manifests", "unlinked", "unlinked_bytes"} <= told.keys()


def test_raid_answers_candidates_kept_and_removed(run: Run, jobs: _Jobs) -> None:
    """An age may be asked for."""
    told = document(run("tombstones", "raid", "--eligible-age", "12h", "--json"))
    assert told == {
        "workflow_id": "raid-tombstones",
        "run_id": "raid-1",
        "candidates": 5,
        "kept": 2,
        "removed": 3,
        "blocks": 4,
        "versions": 40,
        "seconds": 1.235,
        "held_by": [],
    }
    document(run("tombstones", "raid", "--json"))
    assert jobs.asked == [("raid", 43_200, ""), ("raid", None, "")]


def test_raid_that_is_held_up_names_the_replicas(run: Run, jobs: _Jobs) -> None:
    """And what they lack, as JSON and as a table."""
    held = RaidedTombstones(kept=2, held_by=[ReplicaAwaitedByRaid(replica="far/01ab", manifest=6, tombstones=2)])
    jobs.results["raid"] = RaidTombstonesResult(run_id="raid-1", done=held)
    told = document(run("tombstones", "raid", "--json"))
    assert told["held_by"] == [{"id": "far/01ab", "manifest": 6, "tombstones": 2}]
    shown = run("tombstones", "raid").stdout
    assert "held up by replicas" in shown
    assert "far/01ab" in shown


@pytest.mark.parametrize("age", ["soon", "-1s", ""])
def test_raid_of_no_age_is_refused(run: Run, jobs: _Jobs, age: str) -> None:
    """And nothing is started."""
    told = document(run("tombstones", "raid", f"--eligible-age={age}", "--json"), 2)
    assert told["error"]["field"] == "eligible-age"
    assert jobs.asked == []


def test_stats_count_tombstones_by_kind(run: Run, services: FakeCommandServices) -> None:
    """With the candidates of a raid at work, and the age of the oldest."""
    counts = TombstoneCounts(by_kind={"topic": 1, "ledger": 41}, candidates=7, oldest_us=_NOW_US)
    services.log.catalog.tombstones = SimpleNamespace(count_tombstones=lambda: counts)
    told = document(run("tombstones", "stats", "--json"))
    assert told == {
        "tombstones": 42,
        "by_kind": {"ledger": 41, "topic": 1},
        "cenotaphs": 7,
        "oldest": "2027-01-15T08:00:00Z",
    }


def test_replicas_are_told_with_state_and_lag(run: Run, services: FakeCommandServices) -> None:
    """A replica to which nothing was shipped is NEW."""
    far = ReplicaStatus(replica="far", state=ReplicaState.BEHIND, manifest=6, newest=9, lag_s=12.5, at_us=_NOW_US)
    new = ReplicaStatus(replica="new", state=None, manifest=0, newest=9, lag_s=None, at_us=None)
    database = ReplicaStatus(
        replica="far/01ab", state=ReplicaState.STALE, manifest=1, newest=9, lag_s=None, at_us=_NOW_US
    )
    _known(services, manifest=None, replicas=(far, database, new))
    told = document(run("records", "replicas", "--json"))
    assert told == [
        {
            "id": "far",
            "what": "bucket",
            "state": "BEHIND",
            "manifest": 6,
            "newest": 9,
            "lag_s": 12.5,
            "acknowledged": "2027-01-15T08:00:00Z",
        },
        {
            "id": "far/01ab",
            "what": "database",
            "state": "STALE",
            "manifest": 1,
            "newest": 9,
            "lag_s": None,
            "acknowledged": "2027-01-15T08:00:00Z",
        },
        {
            "id": "new",
            "what": "bucket",
            "state": "NEW",
            "manifest": 0,
            "newest": 9,
            "lag_s": None,
            "acknowledged": None,
        },
    ]
    shown = run("records", "replicas").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert all(word in shown for one in told for word in (one["id"], one["what"], one["state"]))


def test_replicas_of_a_log_without_any_are_an_empty_list(run: Run, services: FakeCommandServices) -> None:
    """The table says which setting would name some."""
    _known(services, manifest=None)
    assert document(run("records", "replicas", "--json")) == []
    assert "replica_buckets" in run("records", "replicas").stdout


def test_replicate_names_the_replicas_that_failed(run: Run, jobs: _Jobs) -> None:
    """Finished in part; the others were brought up to date."""
    told = document(run("records", "replicate", "--json"))
    (far,) = told["replicas"]
    assert (far["id"], far["manifest"], far["blocks"]) == ("far", 8, 2)
    away = ShippedBlocks(replica="away", error="StoreUnavailable: gone")
    jobs.results["replicate"] = ReplicateRecordsResult(shipped=[away])
    assert document(run("records", "replicate", "--json"), 5)["failed"] == [
        {"id": "away", "error": "StoreUnavailable: gone"}
    ]
    jobs.results["replicate"] = ReplicateRecordsResult()
    ended = run("records", "replicate", "--json")
    assert document(ended)["replicas"] == []
    assert "replica_buckets names no replica" in ended.stderr


def test_end_tells_what_the_function_ended(run: Run, jobs: _Jobs) -> None:
    """Of one topic or of all, and which policy was asked for."""
    told = document(run("records", "end", "--all", "--function", "expired", "--reason", "left", "--json"))
    assert (told["records"], told["ended"], told["kept"], told["outcomes"]) == (9, 2, 1, {"DELETED": 2})
    assert (told["function"], told["dry_run"], told["ledger_ids"]) == ("expired", False, [3, 5])
    run("records", "end", "--all", "--function", "expired", "--dry-run", "--no-durable-delete")
    first, second = jobs.asked
    assert first == ("end", "expired", None, "left", ("dry_run", False), ("durable_delete", None))
    assert second == ("end", "expired", None, "", ("dry_run", True), ("durable_delete", False))


@pytest.mark.parametrize("words", [(), ("persistent://a/b/c", "--all")])
def test_end_wants_one_topic_or_all(run: Run, jobs: _Jobs, words: tuple[str, ...]) -> None:
    """Neither, or both, starts nothing."""
    assert document(run("records", "end", *words, "--function", "f", "--json"), 2)["error"]["field"] == "topic"
    assert jobs.asked == []


def test_function_that_failed_ends_in_part_and_names_its_ledger(run: Run, jobs: _Jobs) -> None:
    """What pages before it have ended is told too."""
    why = RequestRefusal(type="FunctionFailed", message="function expired: ledger 7 of t: KeyError")
    jobs.results["end"] = EndRecordsResult(records=2, ended=2, certificate=_DONE, stopped=why)
    told = document(run("records", "end", "--all", "--function", "expired", "--json"), 5)
    assert told["failed"] == [{"id": "end-records/expired-1", "error": why.message}]
    assert (told["ended"], told["outcomes"]) == (2, {"DELETED": 2})


@pytest.mark.parametrize(
    ("words", "workflow_id"),
    [
        (("records", "flush"), "flush-records/now"),
        (("records", "defragment"), "defragment-records"),
        (("records", "replicate"), "replicate-records"),
        (("records", "end", "--all", "--function", "expired"), "end-records/expired-1"),
        (("tombstones", "raid"), "raid-tombstones"),
    ],
)
def test_without_waiting_ids_are_told_at_once(run: Run, jobs: _Jobs, words: tuple[str, ...], workflow_id: str) -> None:
    """And nothing else."""
    assert document(run(*words, "--no-wait", "--json")) == {"workflow_id": workflow_id, "run_id": "run-1"}


def test_refusals_have_their_own_field_in_the_result() -> None:
    """By that name the client raises what a guard refused."""
    refusal = RequestRefusal(type="CatalogAdopting", message="not yet")
    kinds = (FlushRecordsResult, DefragmentRecordsResult, RaidTombstonesResult, ReplicateRecordsResult)
    for kind in (*kinds, EndRecordsResult):
        assert kind(refused=refusal).refused == refusal


def test_sizing_estimates_bytes_beside_those_of_aerospike(run: Run) -> None:
    """By the database of the settings; a number that no catalog holds is refused."""
    told = document(run("tombstones", "sizing", "--records", "1000000", "--json"))
    assert (told["tombstones"], told["database"], told["aerospike_index_bytes"]) == (1_000_000, "sqlite", 72_000_000)
    assert told["index_bytes"] > told["disk_bytes"] > 1_000_000
    for number in ("-1", str(2**60), "many"):
        assert document(run("tombstones", "sizing", "--records", number, "--json"), 2)["error"]["field"] == "records"


def test_operate_says_what_becomes_of_one_ledger(run: Run, services: FakeCommandServices) -> None:
    """Copies, subscriptions that are passed over, the generation, and the policy."""
    run("topic", "create", ORDERS_TOPIC)
    words = ("--remove-copy", "ledger", "--remove-copy", "OFFLOADED_LEDGER", "--pass-over", "slow", "--generation", "2")
    told = document(run("ledger", "operate", ORDERS_TOPIC, "4", *words, "--no-durable-delete", "--json"))
    assert told["workflow_id"] == "delete-ledgers/2"
    asked: Any = services.client.asked[-1][1]
    assert (asked.ledger_id, asked.remove) == (4, {CopyKind.LEDGER, CopyKind.OFFLOADED_LEDGER})
    assert (asked.pass_over, asked.generation) == ({"slow"}, 2)
    assert services.client.durable == [False]
    assert document(run("ledger", "operate", ORDERS_TOPIC, "4", "--json"), 2)["error"]["field"] == "remove-copy"


def test_operate_tells_in_a_dry_run_whether_the_ledger_would_end(run: Run, services: FakeCommandServices) -> None:
    """Nothing is started."""
    run("topic", "create", ORDERS_TOPIC)
    tiered, primary = ("--remove-copy", "OFFLOADED_LEDGER"), ("--remove-copy", "LEDGER")
    dry = ("--dry-run", "--json")
    stays = document(run("ledger", "operate", ORDERS_TOPIC, "4", *tiered, *dry))
    assert stays == {"dry_run": True, "copies": ["OFFLOADED_LEDGER"], "detached": 0, "ledger_ids": []}
    ends = document(run("ledger", "operate", ORDERS_TOPIC, "4", *tiered, *primary, *dry))
    assert ends == {"dry_run": True, "copies": ["LEDGER", "OFFLOADED_LEDGER"], "detached": 1, "ledger_ids": [4]}
    assert services.client.asked == []
