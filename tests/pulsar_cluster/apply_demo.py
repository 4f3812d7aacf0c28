"""Second half of the demo: Sexton applies its plan beside traffic, puts one ledger back, and the bookie frees space."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from logstore.reconciliation.findings import FindingKind
from tests.e2e.shell import Shell
from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.damage import FIRST_PLANTED_ID
from tests.pulsar_cluster.ledger_entries import read_entries
from tests.pulsar_cluster.scenario import DamagedCluster
from tests.pulsar_cluster.traffic import Traffic
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
) -> list[PromiseResult]:
    """Apply the plan `run_id` in two parts, and undo it for one ledger. `plan` makes another plan."""
    cluster, ledgers = damaged.cluster, damaged.ledgers
    orphans = {each.ledger_id for each in damaged.truth.values() if each.is_orphan}
    others = [each.ledger_id for each in damaged.truth.values() if each.is_static and not each.is_orphan]
    versions = ledgers.read_versions(others)
    with Traffic(cluster) as traffic:
        say("applying beside traffic")
        rows = _apply(sexton, run_id, "--dry-run")["paths"]
        after_dry_run = ledgers.find_existing(orphans)
        _apply(sexton, run_id, "--limit", str(_LIMIT))
        after_limit = ledgers.find_existing(orphans)
        stored_rows = [row for row in rows if row["bytes"] and row["ledger_id"] < FIRST_PLANTED_ID]
        undone = int(stored_rows[-1]["ledger_id"])
        entries = read_entries(cluster, undone)
        stopped = _apply(sexton, run_id)["stopped"]
        after_apply = ledgers.find_existing(orphans)
        versions_after_apply = ledgers.read_versions(versions)
        say("planning again")
        orphans_left = plan()["findings"][FindingKind.ORPHAN_LEDGER.value]
        say(f"putting ledger {undone} back")
        (undo_row,) = sexton.json("orphans", "undo", run_id, "--ledger", str(undone))["ledgers"]
        problems_of_undo = find_undo_problems(undo_row, entries, read_entries(cluster, undone))
    say("waiting for the bookie's garbage collection")
    return [
        check_dry_run({row["ledger_id"] for row in rows}, orphans, after_dry_run),
        check_limit([row["ledger_id"] for row in rows], orphans - after_limit),
        check_deletions(len(orphans), after_apply, versions, versions_after_apply, stopped),
        PromiseResult.from_problems(
            "a second plan finds no orphan",
            [f"expected 0 orphans, found {orphans_left}"] if orphans_left else [],
            f"{len(orphans)} orphans before, 0 after",
        ),
        PromiseResult.from_problems(
            "an undo before the garbage collection brings a ledger back",
            problems_of_undo,
            f"{len(entries)} of {len(entries)} entries of ledger {undone} are the same bytes",
        ),
        check_reclaimed_space(cluster, deleted=len(stored_rows) - 1),
        PromiseResult.from_problems(
            "no message is lost or doubled", traffic.find_problems(), f"{len(traffic.sent)} messages sent and received"
        ),
    ]


def check_dry_run(paths: set[int], orphans: set[int], existing: set[int]) -> PromiseResult:
    problems = [f"expected {len(orphans)} ledgers, found {len(paths)}"] if paths != orphans else []
    problems += [f"expected that all exist, found {len(existing)}"] if existing != orphans else []
    return PromiseResult.from_problems(
        "a dry run names exactly the orphans", problems, f"{len(paths)} of {len(orphans)} paths, and all ledgers exist"
    )


def check_limit(oldest_first: Sequence[int], deleted: set[int]) -> PromiseResult:
    expected = set(oldest_first[:_LIMIT])
    problems = [] if deleted == expected else [f"expected {sorted(expected)} deleted, found {sorted(deleted)}"]
    return PromiseResult.from_problems(f"--limit {_LIMIT} deletes the oldest", problems, f"ledgers {sorted(deleted)}")


def check_deletions(
    orphans: int, left: set[int], before: Mapping[int, int], after: Mapping[int, int], stopped: str | None
) -> PromiseResult:
    problems = [f"the apply was stopped: {stopped}"] if stopped else []
    problems += [f"orphan {each} exists" for each in sorted(left)]
    problems += [f"ledger {each} was changed" for each in before if before[each] != after.get(each)]
    evidence = f"{orphans} of {orphans} orphans deleted, {len(before)} other ledgers unchanged"
    return PromiseResult.from_problems("an apply deletes the orphans and nothing else", problems, evidence)


def find_undo_problems(row: Mapping[str, Any], before: Sequence[bytes], after: Sequence[bytes]) -> list[str]:
    result = (row["znode"], row["data"])
    problems = [] if result == ("restored", "stored") else [f"expected restored and stored, found {result}"]
    return problems + ([] if after == before else [f"expected {len(before)} entries, found {len(after)} or others"])


def check_reclaimed_space(cluster: RealCluster, *, deleted: int) -> PromiseResult:
    """Collect the bookie's garbage, and compare its own counters. `deleted` ledgers of the apply have entries there."""
    before = cluster.read_bookie_metrics()
    cluster.collect_garbage()
    after = cluster.read_bookie_metrics()
    removed_ledgers = int(after[_DELETED_LEDGERS] - before[_DELETED_LEDGERS])
    reclaimed_bytes = int(sum(after[name] - before[name] for name in _RECLAIMED_BYTES))
    found = f"the bookie says {removed_ledgers} ledgers and {reclaimed_bytes:,} bytes"
    problems = [f"expected {deleted} ledgers or more, found that {found}"] if removed_ledgers < deleted else []
    problems += [] if reclaimed_bytes > 0 else [f"expected space, found that {found}"]
    return PromiseResult.from_problems(
        "the bookie gives the space back", problems, f"{found}; {deleted} are the apply's"
    )


def _apply(sexton: Shell, run_id: str, *options: str) -> Any:
    """Include orphans that are not confirmed: the truth says that they are orphans."""
    return sexton.json("orphans", "apply", run_id, "--max-orphan-share", "1", "--include-unconfirmed", *options)
