"""Guards of an apply of a plan of a Pulsar cluster. A dry run checks them, too."""

from activities.pulsar.orphan_selection import RemovalScope
from logstore.errors import PreconditionFailed
from logstore.pulsar.cluster_findings import MAX_NAMES, NAME_SEPARATOR, NAMES, Hazard
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import FindingKind, PlanOrScrubResult


def require_apply_allowed(
    plan: PlanOrScrubResult,
    files: FindingFiles,
    scope: RemovalScope,
    *,
    max_orphan_share: float,
    is_bookkeeper_exclusive: bool,
) -> list[str]:
    """Return the shadow topics, each of which an apply reads before a deletion.

    Raises:
        PreconditionFailed: Others may have ledgers in the BookKeeper, too many ledgers or offloads would go, or there
            are more shadow topics than a plan names.
    """
    if not is_bookkeeper_exclusive:
        raise PreconditionFailed(
            "pulsar_bookkeeper_exclusive: expected true, found false. Set it if no other cluster and no other"
            " application has ledgers in this BookKeeper"
        )
    orphans = plan.findings[FindingKind.ORPHAN_LEDGER.value]
    if FindingKind.ORPHAN_MANAGED_LEDGER in scope.kinds:  # a broker deletes their ledgers with them
        orphans += sum(finding.objects for _, finding in files.iterate_findings(FindingKind.ORPHAN_MANAGED_LEDGER))
    weighed = {FindingKind.ORPHAN_LEDGER.value: orphans}
    if FindingKind.ORPHAN_OFFLOAD in scope.kinds:  # many, if the metadata are older than the objects
        weighed[FindingKind.ORPHAN_OFFLOAD.value] = plan.findings[FindingKind.ORPHAN_OFFLOAD.value]
    plausibility_guards.check_orphan_share(weighed, max(0, plan.ledgers - orphans), max_orphan_share)
    return _find_shadow_topics(files)


def _find_shadow_topics(files: FindingFiles) -> list[str]:
    """Return the managed ledgers that list ledgers of other topics.

    Raises:
        PreconditionFailed: The cluster has more of them than a plan names.
    """
    for _, finding in files.iterate_findings(FindingKind.HAZARD):
        if finding.key == Hazard.SHADOW_TOPICS.value:
            if finding.objects > MAX_NAMES:
                expected = f"expected at most {MAX_NAMES:,} shadow topics, each of which is read before a deletion"
                advice = "delete shadow topics that nobody needs, and plan again"
                raise PreconditionFailed(f"cluster: {expected}, found {finding.objects:,}; {advice}")
            return finding.statement[NAMES].split(NAME_SEPARATOR)
    return []
