"""The report of a soak: what ran where, what went wrong, what was done, how long recovery took, and what was broken."""

import os
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.soak.audit.evidence import Operation
from tests.soak.audit.promises import Violation

_PROBES = ("append", "commit")
"""A fault is over once both work again: storage and database, and the workflows that tell participants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault as it came."""

    kind: str
    target: int
    began_s: float  # since 1970
    lifted_s: float


@dataclass(kw_only=True)
class Report:
    """All of it."""

    seed: int
    seconds: float
    database: str
    workers: int
    clients: int
    happened: Sequence[Happened] = ()
    ops: Sequence[Operation] = ()
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
            "machine": machine(),
            "faults": dict(sorted(Counter(one.kind for one in self.happened).items())),
            "operations": self.operations(),
            "recovery_s": self.recovery(),
            "rest_s": round(self.rest_s, 1),
            "sets": dict(self.sets),
            "s3_requests": dict(self.requests),
            "processes": dict(self.processes),
            "workflow_runs": dict(sorted(self.types.items())),
            "never_run": self.never_run(),
            "looks_while_at_work": self.looks,
            "violations": [{"promise": one.promise, "sentence": one.sentence} for one in self.violations],
            "ok": not self.violations,
        }

    def operations(self) -> dict[str, dict[str, int]]:
        """By kind: how many were answered, refused or failed, and never answered."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for op in self.ops:
            found[op.kind][op.end] += 1
        return {kind: dict(found[kind]) for kind in sorted(found)}

    def never_run(self) -> list[str]:
        """Registered workflow types that were not run once, ascending."""
        return sorted(name for name, runs in self.types.items() if not runs)

    def recovery(self) -> dict[str, dict[str, float]]:
        """Seconds from the end of a fault until an append and a commit that were asked for after it were answered."""
        found: dict[str, list[float]] = defaultdict(list)
        for one in self.happened:
            took = [self._answered_after(one.lifted_s, kind) for kind in _PROBES]
            if all(each is not None for each in took):
                found[one.kind].append(max(each for each in took if each is not None))
        return {
            kind: {"median": round(statistics.median(every), 1), "longest": round(max(every), 1)}
            for kind, every in sorted(found.items())
        }

    def _answered_after(self, moment_s: float, kind: str) -> float | None:
        ends = [op.ended_s for op in self.ops if op.kind == kind and op.end == "done" and op.asked_s >= moment_s]
        return min(one for one in ends if one is not None) - moment_s if ends else None

    def text(self) -> str:
        """For people."""
        told = self.document()
        lines = [
            f"soak of {self.seconds:g} s, seed {self.seed}, {self.database}",
            f"{self.workers} workers, {self.clients} clients",
            f"on {told['machine']}",
            "",
            "faults: " + ", ".join(f"{count} {kind}" for kind, count in told["faults"].items()),
            "S3 requests: " + ", ".join(f"{count} {name}" for name, count in sorted(self.requests.items())),
            "processes: " + ", ".join(f"{count} {name}" for name, count in self.processes.items()),
            "",
            f"{'operation':<18}{'answered':>9}{'failed':>8}{'unknown':>8}",
        ]
        for kind, ends in told["operations"].items():
            lines.append(f"{kind:<18}{ends.get('done', 0):>9}{ends.get('failed', 0):>8}{ends.get('unknown', 0):>8}")
        lines += ["", f"workflow types: {len(self.types) - len(self.never_run())} of {len(self.types)} were run"]
        lines += [f"  never run: {', '.join(self.never_run())}"] if self.never_run() else []
        lines += ["", "seconds until an append and a commit were answered, once the fault was over:"]
        lines += [
            f"  {kind:<26}median {took['median']:>5}  longest {took['longest']:>5}"
            for kind, took in told["recovery_s"].items()
        ]
        lines += ["", f"at rest {self.rest_s:.0f} s after the last fault; looked {self.looks} times before that"]
        lines += [f"  {count:>7} {name}" for name, count in self.sets.items()]
        lines += ["", f"violations: {len(self.violations)}"]
        lines += [f"  promise {one.promise}: {one.sentence}" for one in self.violations]
        return "\n".join(lines) + "\n"


def machine() -> str:
    """This one."""
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} processors, {memory:.0f} GiB, {platform.system()} {platform.machine()},"
        f" Python {platform.python_version()}, load {load:.1f} at the end"
    )
