"""Bulk jobs of a plan for a Pulsar cluster."""

from dataclasses import dataclass
from typing import Final

from logstore.errors import InvalidInput
from logstore.pulsar.ledger_verdicts import MIN_OPEN_AGE_S
from logstore.reconciliation.plausibility_guards import require_min_age

OFFLOAD_OBJECTS: Final = "objects of offloads"
"""Subject of problems with the offload bucket."""

NO_OFFLOAD_BUCKET: Final = f"{OFFLOAD_OBJECTS}: the setting pulsar_offload_bucket is empty"
"""Sentence of a plan without a bucket of offloads, about what it left out."""

LISTED: Final = "listed_us"
"""Key in the facts of `list-offloads`: time of the bucket's store before the listing, in microseconds since 1970."""

OFFLOADS_BEFORE: Final = "offloads_before_us"
"""Key in the facts of `compare-offloads`: younger objects and uploads, by the store's clock, are no candidates."""

OFFLOAD_CLUSTER: Final = "offload_cluster"
"""Key in the facts of `compare-offloads`: name of the cluster in the metadata of its objects. Empty: not known."""

PROBLEM: Final = "problem: "
"""Prefix of keys in `BulkJobSummary.facts`. The rest is the subject: the path of a znode, or a name.

The value says what cannot be read.

A problem of any job makes the plan incomplete.
"""

MIN_BETWEEN_SCANS_S: Final = 600.0
"""Least time from the end of the first scan to the begin of the second.

It is more than twice the interval in which a broker stores the state of its cursors.
"""

MAX_BETWEEN_SCANS_S: Final = 86_400
"""Most time between the scans. A plan that waits longer holds its run and its output for nothing."""

READS_PER_S: Final = 5_000
"""Default of the reads a second on ZooKeeper. A scan must not slow down the brokers, which use the same servers.

A server on one core answers some 60,000 of these reads a second, because a request has many. This rate takes a tenth.
"""

MIN_READS_PER_S: Final = 100
"""A scan reads one or two znodes for each ledger. A lower rate would need more than a day for 10,000,000 ledgers."""

BEGUN_MS: Final = "begun_ms"
"""Key in the counts of a scan: the time before its first read, in milliseconds since 1970, by the worker's clock."""

ENDED_MS: Final = "ended_ms"
"""Key in the counts of a scan: the time after its last read, by the worker's clock."""

CLUSTER_MS: Final = "cluster_ms"
"""Key in the counts of a scan: a time that ZooKeeper's clock had reached when the scan ended.

ZooKeeper shows its clock to writers only. The time is that of the newest change that the scan saw, but not a time in
the worker's future. A ledger is at least as old as it seems to be at this time.
"""

IDENTITY: Final = "identity"
"""Key in the facts of a scan: the identity of the cluster, which is the same at the scan's begin and end.

Also in the summary of an apply.
"""

LEDGERS_ROOT: Final = "ledgers_root"
"""Key in the facts of a scan: the path of the ledgers, without a slash at its ends.

Also in the summary of an apply.
"""


def require_safe_times(between_s: float, older_than_s: float | None, *, unsafe: bool) -> None:
    """Refuse times of a plan that are too short or too long. `unsafe` allows any time from 0 on.

    Raises:
        InvalidInput: A time is below 0, or `between_s` is above `MAX_BETWEEN_SCANS_S`.
        PreconditionFailed: A time is below the safe minimum.
    """
    reason = "a broker may not have stored its cursors"
    require_min_age(between_s, unsafe=unsafe, floor_s=MIN_BETWEEN_SCANS_S, reason=reason, option="between")
    if between_s > MAX_BETWEEN_SCANS_S:
        raise InvalidInput("between", expected=f"{MAX_BETWEEN_SCANS_S // 3_600}h or less", found=between_s)
    if older_than_s is not None:
        reason = "a broker may still write a ledger"
        require_min_age(older_than_s, unsafe=unsafe, floor_s=MIN_OPEN_AGE_S, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffloadsJob:
    """Job that lists the objects and the unfinished uploads of the offload bucket, before the first scan.

    The summary counts `objects` and `uploads` of offloads, `foreign` objects, and `groups` of files. It has the fact
    `LISTED`.
    """

    run_id: str

    name = "list-offloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanClusterJob:
    """Job that writes facts about every ledger of a cluster, and then about every reference to a ledger.

    The summary counts `ledgers`, `locks`, `references`, `managed_ledgers`, `offloads`, `problems` and `groups` of
    files. A scan with problems is incomplete. The fact `PROBLEM` names problems. Times are `BEGUN_MS`, `ENDED_MS` and
    `CLUSTER_MS`.
    """

    run_id: str
    number: int  # 1 or 2: a plan compares two scans

    main = "scan-cluster"

    @property
    def name(self) -> str:
        return f"{self.main}-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareScansJob:
    """Job that compares two scans, and writes candidates for findings. `FindingFiles` reads the job's output.

    The job refuses scans that are closer than `between_s`, and scans of clusters with other identities. The summary
    counts candidates by kind, ledgers without references by `LedgerVerdict`, `transient` ledgers without references in
    one scan only, `harmless` references to absent ledgers, and `problems` of both scans.
    """

    run_id: str
    between_s: float  # shortest time from the end of the first scan to the begin of the second one
    older_than_s: float | None = None  # one age floor for all ledgers; `None`: the floors of `AgeFloors`

    name = "compare-scans"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOffloadsJob:
    """Job that compares the listing of offloads with two scans, and writes candidates. `FindingFiles` reads the output.

    A candidate is an old object or upload that no scan refers to, or a complete offload without its objects. The
    summary counts candidates by kind, and `young` attempts, and offloads `elsewhere`, in another bucket. It has the
    facts `OFFLOADS_BEFORE` and `OFFLOAD_CLUSTER`. A fact that begins with `LEFT_OUT` says what was not compared. If the
    bucket or the name of the cluster is in doubt, nothing is compared: a fact that begins with `PROBLEM` says why.
    """

    run_id: str
    older_than_s: float | None = None  # age of objects and uploads; `None`: `MIN_OFFLOAD_AGE_S`

    name = "compare-offloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyClusterJob:
    """Job that looks the owners of candidates up by name. `FindingFiles` reads the job's output.

    The summary counts findings by kind, `dropped` candidates that are no longer true, and `problems` of the scans.
    """

    run_id: str
    has_offloads: bool  # whether the plan compared the bucket of offloads

    name = "verify-cluster"


FIRST_SCAN: Final = ScanClusterJob(run_id="", number=1).name
SECOND_SCAN: Final = ScanClusterJob(run_id="", number=2).name

ClusterPlanJob = ListOffloadsJob | ScanClusterJob | CompareScansJob | CompareOffloadsJob | VerifyClusterJob


def make_plan_jobs(
    run_id: str, *, has_offload_bucket: bool, between_s: float, older_than_s: float | None
) -> tuple[ClusterPlanJob, ...]:
    """Return the jobs of a plan, in order. The plan waits `between_s` before the second scan."""
    jobs = (
        ListOffloadsJob(run_id=run_id),
        ScanClusterJob(run_id=run_id, number=1),
        ScanClusterJob(run_id=run_id, number=2),
        CompareScansJob(run_id=run_id, between_s=between_s, older_than_s=older_than_s),
        CompareOffloadsJob(run_id=run_id, older_than_s=older_than_s),
        VerifyClusterJob(run_id=run_id, has_offloads=has_offload_bucket),
    )
    return tuple(job for job in jobs if has_offload_bucket or not isinstance(job, ListOffloadsJob | CompareOffloadsJob))
