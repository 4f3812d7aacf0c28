"""Second half of the demo: Sexton applies its plan beside traffic, puts one ledger back, and the bookie frees space."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from logstore.reconciliation.findings import FindingKind
from tests.e2e.shell import Shell
from tests.pulsar_cluster.damage import FIRST_PLANTED_ID
from tests.pulsar_cluster.ledger_entries import read_entries
from tests.pulsar_cluster.scenario import DamagedCluster
from tests.pulsar_cluster.traffic import Traffic
from workers.cli.command_errors import ExitCode
from workers.demo.promise_report import PromiseResult

_LIMIT: Final = 3
_DELETED_LEDGERS: Final = "bookie_DELETED_LEDGER_TOTAL"
_RECLAIMED_BYTES: Final = ("bookie_RECLAIMED_DELETION_SPACE_BYTES", "bookie_RECLAIMED_COMPACTION_SPACE_BYTES")


def apply_and_undo(
    sexton: Shell,
    damaged: DamagedCluster,
    run_id: str,
    plan: Callable[[], Mapping[str, Any]],
    say: Callable[[str], None],
) -> dict[str, list[PromiseResult]]:
    """Apply the plan `run_id` in two parts, and undo it for one ledger. `plan` makes another plan.

    At the end, undo it for all ledgers. So the cluster is again as `damaged` says, but bookies have lost entries.
    """
    cluster, ledgers = damaged.cluster, damaged.ledgers
    orphans = {each.ledger_id for each in damaged.truth.values() if each.is_orphan}
    others = [each.ledger_id for each in damaged.truth.values() if each.is_static and not each.is_orphan]
    versions = ledgers.read_versions(others)
    cluster.collect_garbage()  # of the damage, so that later counts of the bookie do not have it
    metrics = cluster.read_bookie_metrics()
    with Traffic(cluster) as traffic:
        say("applying beside traffic")
        rows = _apply(sexton, run_id, "--dry-run")["paths"]
        after_dry_run = ledgers.find_existing(orphans)
        _apply(sexton, run_id, "--limit", str(_LIMIT))
        after_limit = ledgers.find_existing(orphans)
        undone = int([row for row in rows if row["bytes"] and row["ledger_id"] < FIRST_PLANTED_ID][-1]["ledger_id"])
        entries = read_entries(cluster, undone)
        stopped = _apply(sexton, run_id)["stopped"]
        after_apply = ledgers.find_existing(orphans)
        versions_after_apply = ledgers.read_versions(versions)
        say("planning again")
        orphans_left = plan()["findings"][FindingKind.ORPHAN_LEDGER.value]
        say(f"putting ledger {undone} back")
        (undo_row,) = sexton.json("orphans", "undo", run_id, "--ledger", str(undone))["ledgers"]
        entries_after_undo = read_entries(cluster, undone)
        say("verifying the apply")
        before_collection = sexton.json("pulsar", "verify", run_id)
    say("waiting for the bookie's garbage collection")
    cluster.collect_garbage()
    after_collection = sexton.json("pulsar", "verify", run_id)
    metrics_after = cluster.read_bookie_metrics()
    kept_entries = read_entries(cluster, undone)
    say("putting the other ledgers back")
    late_undo = sexton.json("orphans", "undo", run_id, code=ExitCode.PARTIAL)
    return {
        "The apply, beside a producer and a consumer": [
            check_dry_run({row["ledger_id"] for row in rows}, orphans, after_dry_run),
            check_limit([row["ledger_id"] for row in rows], orphans - after_limit),
            check_deletions(len(orphans), after_apply, versions, versions_after_apply, stopped),
            PromiseResult.from_problems(
                "a second plan finds no orphan",
                [f"expected 0 orphans, found {orphans_left}"] if orphans_left else [],
                f"{len(orphans)} orphans before, 0 after",
            ),
            check_verification(before_collection, deleted=len(orphans) - 1),
            PromiseResult.from_problems(
                "no message is lost or doubled", traffic.find_problems(), f"{traffic.format_counts()}, in order"
            ),
        ],
        "The undo, and the bookie's garbage collection": [
            check_undo(undo_row, undone, entries, entries_after_undo, kept_entries),
            check_space(before_collection, after_collection),
            check_metrics(metrics, metrics_after, deleted=before_collection["ledgers"]["awaiting_collection"]),
            check_late_undo(late_undo, {row["ledger_id"] for row in rows if row["bytes"]} - {undone}),
        ],
    }


def check_dry_run(paths: set[int], orphans: set[int], existing: set[int]) -> PromiseResult:
    problems = [f"expected {len(orphans)} ledgers, found {len(paths)}"] if paths != orphans else []
    problems += [f"expected that all exist, found {len(existing)}"] if existing != orphans else []
    return PromiseResult.from_problems(
        "a dry run names exactly the orphans", problems, f"{len(paths)} of {len(orphans)} paths, and all ledgers exist"
    )


def check_limit(oldest_first: Sequence[int], deleted: set[int]) -> PromiseResult:
    expected = set(oldest_first[:_LIMIT])
    problems = [] if deleted == expected else [f"expected {sorted(expected)} deleted, found {sorted(deleted)}"]
    return PromiseResult.from_problems(
        f"--limit {_LIMIT} deletes the oldest", problems, f"ledgers {', '.join(map(str, sorted(deleted)))}"
    )


def check_deletions(
    orphans: int, left: set[int], before: Mapping[int, int], after: Mapping[int, int], stopped: str | None
) -> PromiseResult:
    problems = [f"the apply was stopped: {stopped}"] if stopped else []
    problems += [f"orphan {each} exists" for each in sorted(left)]
    problems += [f"ledger {each} was changed" for each in before if before[each] != after.get(each)]
    evidence = f"{orphans} of {orphans} orphans deleted, {len(before)} other ledgers unchanged"
    return PromiseResult.from_problems("an apply deletes the orphans and nothing else", problems, evidence)


def check_verification(verification: Mapping[str, Any], *, deleted: int) -> PromiseResult:
    """Check what `sexton pulsar verify` says after the undo of one ledger."""
    found = {
        "missing_referenced": verification["missing_referenced"],
        "orphans_left": verification["orphans_left"],
        "journal": verification["journal"],
        "complete": verification["complete"],
        "certificate": verification["certificate"]["intact"],
    }
    expected = {
        "missing_referenced": 0,
        "orphans_left": 1,
        "journal": {"absent": deleted, "restored": 1, "replaced": 0},
        "complete": True,
        "certificate": True,
    }
    evidence = (
        f"{verification['references']} references read again, 0 of them to a deleted ledger; {deleted} ledgers absent,"
        " 1 put back"
    )
    return PromiseResult.from_problems(
        "nothing misses a deleted ledger",
        [f"expected {expected}, found {found}"] if found != expected else [],
        evidence,
    )


def check_undo(
    row: Mapping[str, Any], ledger_id: int, before: Sequence[bytes], restored: Sequence[bytes], kept: Sequence[bytes]
) -> PromiseResult:
    """Check the entries before the apply, after the undo, and after the garbage collection."""
    states = (row["znode"], row["data"])
    problems = [] if states == ("restored", "stored") else [f"expected restored and stored, found {states}"]
    for when, entries in (("the undo", restored), ("the collection", kept)):
        if entries != before:
            problems.append(f"expected {len(before)} entries after {when}, found {len(entries)}, or others")
    return PromiseResult.from_problems(
        "an undo before the garbage collection brings a ledger back",
        problems,
        f"all {len(before)} entries of ledger {ledger_id} are the same, also after the collection",
    )


def check_space(before: Mapping[str, Any], after: Mapping[str, Any]) -> PromiseResult:
    """Compare what `sexton pulsar verify` says of the bytes of deleted ledgers before and after the collection."""
    reclaimed_bytes = before["reclaimed_bytes"] + before["bytes"]["awaiting_collection"]
    expected = {"reclaimed": reclaimed_bytes, "awaiting_collection": 0, "unknown": 0}
    problems = [] if after["bytes"] == expected else [f"expected {expected}, found {after['bytes']}"]
    problems += [] if before["bytes"]["awaiting_collection"] else ["expected bytes before the collection, found none"]
    evidence = (
        f"the bookie had {before['ledgers']['awaiting_collection']} deleted ledgers, of"
        f" {before['bytes']['awaiting_collection']:,} bytes, and has 0 after its garbage collection"
    )
    return PromiseResult.from_problems("the bookie gives up the deleted ledgers", problems, evidence)


def check_metrics(before: Mapping[str, float], after: Mapping[str, float], *, deleted: int) -> PromiseResult:
    """Compare the bookie's own counters. Its files have parts of `deleted` ledgers, and of ledgers of the traffic."""
    removed_ledgers = int(after[_DELETED_LEDGERS] - before[_DELETED_LEDGERS])
    reclaimed_bytes = int(sum(after[name] - before[name] for name in _RECLAIMED_BYTES))
    found = f"{removed_ledgers} ledgers and {reclaimed_bytes:,} bytes"
    problems = [f"expected {deleted} ledgers or more, found {found}"] if removed_ledgers < deleted else []
    problems += [] if reclaimed_bytes > 0 else [f"expected space, found {found}"]
    return PromiseResult.from_problems(
        "the bookie's own metrics say how much it gave back", problems, f"{found}, of the apply and of the traffic"
    )


def check_late_undo(undo: Mapping[str, Any], written: set[int]) -> PromiseResult:
    """Check the undo of all ledgers. The bookie had entries of `written` before its garbage collection."""
    states = {row["ledger_id"]: (row["znode"], row["data"]) for row in undo["ledgers"]}
    problems = [f"ledger {each}: found {states[each]}" for each in written if states[each] != ("restored", "gone")]
    problems += [f"ledger {each} is not among the failures" for each in written - {row["id"] for row in undo["failed"]}]
    return PromiseResult.from_problems(
        "an undo after the garbage collection says what is lost",
        problems,
        f"{undo['counts']['restored']} other ledgers put back, {len(written)} of them without their entries",
    )


def _apply(sexton: Shell, run_id: str, *options: str) -> Any:
    """Include orphans that are not confirmed: the truth says that they are orphans."""
    return sexton.json("orphans", "apply", run_id, "--max-orphan-share", "1", "--include-unconfirmed", *options)
