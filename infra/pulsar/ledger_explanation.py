"""Explanation of one ledger: whose it is, what refers to it, where its data are, and what a plan would say of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from infra.pulsar.cluster_clock import read_cluster_clock_ms
from infra.pulsar.cluster_references import scan_cluster_references
from infra.pulsar.ledger_scan import LedgerZnode, list_locked_ledgers, parse_ledger
from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.scan_facts import ScanFact, ScannedReference, ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import UnknownObject
from logstore.pulsar.ledger_metadata import StatedOwner, find_stated_owner
from logstore.pulsar.ledger_verdicts import (
    AgeFloors,
    LedgerJudgement,
    LedgerVerdict,
    ScannedLedger,
    judge_owner_lookup,
    judge_two_scans,
)
from logstore.pulsar.znode_names import LOG_ROOTS, format_ledger_path


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerExplanation:
    """Facts about one ledger, and the verdict of a single scan. A plan confirms a verdict by a second scan."""

    ledger: LedgerZnode
    owner: StatedOwner | None
    references: tuple[ScannedReference, ...]
    verdict: LedgerVerdict
    reason: str  # a sentence
    problems: tuple[ScanProblem, ...] = ()  # what could not be read, and may refer to the ledger or lock it


def explain_ledger(
    reader: ZnodeReader,
    owners: OwnerDirectory,
    ledgers_root: str,
    ledger_id: int,
    *,
    log_roots: Sequence[str] = LOG_ROOTS,
) -> LedgerExplanation:
    """Read the ledger, and then every reference of the cluster.

    If anything cannot be read, a ledger without a known reference is doubtful.

    Raises:
        UnknownObject: The cluster has no such ledger.
    """
    path = format_ledger_path(ledger_id)
    ((_, znode),) = reader.read([f"{ledgers_root}/{path}"])
    if znode is None:
        raise UnknownObject("ledger_id", expected="a ledger of the cluster", found=ledger_id)
    ledger = parse_ledger(ledger_id, path, znode)
    owner = find_stated_owner(ledger.metadata) if ledger.metadata else None
    locks = list(list_locked_ledgers(reader, ledgers_root))
    facts = [*_select_problems(locks), *_scan_for(reader, ledgers_root, ledger_id, log_roots)]
    references = tuple(fact for fact in facts if isinstance(fact, ScannedReference))
    problems = tuple(_select_problems(facts))
    owner_path = owner.path if owner else ""
    needing_paths = [each.path for each in references if not (each.given_up and each.path == owner_path)]
    if needing_paths:
        verdict, reason = LedgerVerdict.REFERENCED, f"/{needing_paths[0]} refers to it"
    elif problems:
        verdict = LedgerVerdict.DOUBTFUL
        reason = (
            f"{len(problems):,} values that may refer to it, or lock it, cannot be read, such as /{problems[0].path}"
        )
    else:
        scanned = ScannedLedger(
            ledger_id=ledger_id,
            version=znode.version,
            czxid=znode.czxid,
            modified_ms=znode.modified_ms,
            state=ledger.state,
            owner=owner,
            replication_lock=ledger_id in locks,
        )
        judgement = _judge_unreferenced_ledger(scanned, owners, now_ms=read_cluster_clock_ms(reader))
        verdict, reason = judgement.verdict, judgement.sentence
    return LedgerExplanation(
        ledger=ledger, owner=owner, references=references, verdict=verdict, reason=reason, problems=problems
    )


def _select_problems(facts: Iterable[object]) -> list[ScanProblem]:
    return [fact for fact in facts if isinstance(fact, ScanProblem)]


def _judge_unreferenced_ledger(ledger: ScannedLedger, owners: OwnerDirectory, *, now_ms: int) -> LedgerJudgement:
    """Judge as a plan does whose two scans are the same one."""
    judgement = judge_two_scans(ledger, ledger, now_ms=now_ms, floors=AgeFloors())
    if judgement.verdict is not LedgerVerdict.UNREFERENCED or ledger.owner is None:
        return judgement
    return judge_owner_lookup(ledger.owner, owners.look_up({ledger.ledger_id: ledger.owner})[ledger.ledger_id])


def _scan_for(reader: ZnodeReader, ledgers_root: str, ledger_id: int, log_roots: Sequence[str]) -> Iterator[ScanFact]:
    """Yield the references to the ledger, and all problems."""
    for fact in scan_cluster_references(reader, ledgers_root, log_roots):
        if isinstance(fact, ScanProblem) or (isinstance(fact, ScannedReference) and fact.ledger_id == ledger_id):
            yield fact
