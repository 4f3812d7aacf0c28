"""The report of a soak: what ran where, what went wrong, what was done, how long recovery took, and what was broken."""

import os
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.soak.audit.evidence import ClientOperation
from tests.soak.audit.promise_checks import Violation

_RECOVERY_PROBES = ("append", "commit")
"""A fault is over once both work again: storage and database, and the workflows that tell participants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A fault as it came."""

    kind: str
    target: int
    began_s: float  # since 1970
    lifted_s: float


@dataclass(kw_only=True)
class SoakReport:
    """All of it."""

    seed: int
    seconds: float
    database: str
    workers: int
    clients: int
    happened: Sequence[InjectedFault] = ()
    ops: Sequence[ClientOperation] = ()
    sets: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)  # to S3, by what became of them
    processes: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)  # runs by registered workflow type
    looks: int = 0
    rest_s: float = 0.0  # from the last fault's end until everything was at rest
    violations: Sequence[Violation] = ()

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "database": self.database,
            "workers": self.workers,
            "clients": self.clients,
            "machine": describe_machine(),
            "faults": dict(sorted(Counter(violation.kind for violation in self.happened).items())),
            "operations": self.operations(),
            "recovery_s": self.recovery(),
            "rest_s": round(self.rest_s, 1),
            "sets": dict(self.sets),
            "s3_requests": dict(self.requests),
            "processes": dict(self.processes),
            "workflow_runs": dict(sorted(self.types.items())),
            "never_run": self.list_never_run_types(),
            "looks_while_at_work": self.looks,
            "violations": [
                {"promise": violation.promise, "sentence": violation.sentence} for violation in self.violations
            ],
            "ok": not self.violations,
        }

    def operations(self) -> dict[str, dict[str, int]]:
        """By kind: how many were answered, refused or failed, and never answered."""
        counts_by_kind: dict[str, Counter[str]] = defaultdict(Counter)
        for op in self.ops:
            counts_by_kind[op.kind][op.end] += 1
        return {kind: dict(counts_by_kind[kind]) for kind in sorted(counts_by_kind)}

    def list_never_run_types(self) -> list[str]:
        """Registered workflow types that were not run once, ascending."""
        return sorted(name for name, runs in self.types.items() if not runs)

    def recovery(self) -> dict[str, dict[str, float]]:
        """Seconds from the end of a fault until an append and a commit that were asked for after it were answered."""
        recovery_s_by_kind: dict[str, list[float]] = defaultdict(list)
        for fault in self.happened:
            took = [self._seconds_until_answer(fault.lifted_s, kind) for kind in _RECOVERY_PROBES]
            if all(seconds is not None for seconds in took):
                recovery_s_by_kind[fault.kind].append(max(seconds for seconds in took if seconds is not None))
        return {
            kind: {"median": round(statistics.median(recovery_times_s), 1), "longest": round(max(recovery_times_s), 1)}
            for kind, recovery_times_s in sorted(recovery_s_by_kind.items())
        }

    def _seconds_until_answer(self, moment_s: float, kind: str) -> float | None:
        ends = [op.ended_s for op in self.ops if op.kind == kind and op.end == "done" and op.requested_s >= moment_s]
        return min(ended_s for ended_s in ends if ended_s is not None) - moment_s if ends else None

    def text(self) -> str:
        """For people."""
        document = self.document()
        lines = [
            f"soak of {self.seconds:g} s, seed {self.seed}, {self.database}",
            f"{self.workers} workers, {self.clients} clients",
            f"on {document['machine']}",
            "",
            "faults: " + ", ".join(f"{count} {kind}" for kind, count in document["faults"].items()),
            "S3 requests: " + ", ".join(f"{count} {name}" for name, count in sorted(self.requests.items())),
            "processes: " + ", ".join(f"{count} {name}" for name, count in self.processes.items()),
            "",
            f"{'operation':<18}{'answered':>9}{'failed':>8}{'unknown':>8}",
        ]
        for kind, ends in document["operations"].items():
            lines.append(f"{kind:<18}{ends.get('done', 0):>9}{ends.get('failed', 0):>8}{ends.get('unknown', 0):>8}")
        lines += [
            "",
            f"workflow types: {len(self.types) - len(self.list_never_run_types())} of {len(self.types)} were run",
        ]
        lines += [f"  never run: {', '.join(self.list_never_run_types())}"] if self.list_never_run_types() else []
        lines += ["", "seconds until an append and a commit were answered, once the fault was over:"]
        lines += [
            f"  {kind:<26}median {took['median']:>5}  longest {took['longest']:>5}"
            for kind, took in document["recovery_s"].items()
        ]
        lines += ["", f"at rest {self.rest_s:.0f} s after the last fault; looked {self.looks} times before that"]
        lines += [f"  {count:>7} {name}" for name, count in self.sets.items()]
        lines += ["", f"violations: {len(self.violations)}"]
        lines += [f"  promise {violation.promise}: {violation.sentence}" for violation in self.violations]
        return "\n".join(lines) + "\n"


def describe_machine() -> str:
    """This one."""
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} processors, {memory:.0f} GiB, {platform.system()} {platform.machine()},"
        f" Python {platform.python_version()}, load {load:.1f} at the end"
    )
