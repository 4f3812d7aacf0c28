"""What the demo found: promises as rows, counts as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.demo.auditor import Auditor, Stored
from workers.demo.scenario import Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One promise, and what was seen of it."""

    promise: str
    ok: bool
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Everything the demo found."""

    shown: Sequence[Shown]
    counts: dict[str, int]
    ui: str
    home: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return all(one.ok for one in self.shown)

    @property
    def rows(self) -> list[dict[str, object]]:
        """A table for people."""
        rows: list[dict[str, object]] = [
            {"promise": one.promise, "held": "yes" if one.ok else "NO", "seen": one.seen} for one in self.shown
        ]
        return [*rows, {"promise": "Web UI", "held": "", "seen": self.ui}]

    def to_json(self) -> dict[str, object]:
        """One document for scripts."""
        promises = [{"promise": one.promise, "ok": one.ok, "seen": one.seen} for one in self.shown]
        return {"ok": self.ok, **self.counts, "promises": promises, "ui": self.ui, "seconds": round(self.seconds, 1)}


def check_needed(auditor: Auditor, before: Stored, after: Stored, topics: Sequence[Written]) -> Shown:
    """Promise 1: what is needed is listed, its objects are the same, and every payload can be read back."""
    wrong: list[str] = []
    entries = 0
    for written in topics:
        lost = set(written.needed) - auditor.listed(written.topic.topic_id)
        wrong += [f"ledger {ledger_id} is not listed" for ledger_id in sorted(lost)]
        for ledger_id in written.needed:
            keys = before.of_ledger(ledger_id)
            wrong += [f"{key} changed" for key in keys if after.etags.get(key) != before.etags[key]]
            if auditor.payloads(ledger_id) != written.payloads[ledger_id]:
                wrong.append(f"ledger {ledger_id} reads differently")
            entries += len(written.payloads[ledger_id])
    kept = sum(len(written.needed) for written in topics)
    seen = wrong[0] if wrong else f"{kept} ledgers untouched, all {entries} entries read back"
    return Shown(promise="1 nothing in use is deleted", ok=not wrong, seen=seen)


def check_gone(auditor: Auditor, after: Stored, topics: Sequence[Written]) -> Shown:
    """Promise 2: every detached ledger is gone from storage and from the list, and its intent says so."""
    intents = auditor.intents()
    wrong: list[str] = []
    doomed = [ledger_id for written in topics for ledger_id in written.doomed]
    for written in topics:
        still = set(written.doomed) & auditor.listed(written.topic.topic_id)
        wrong += [f"ledger {ledger_id} is still listed" for ledger_id in sorted(still)]
    wrong += [f"{key} is still there" for ledger_id in doomed for key in after.of_ledger(ledger_id)]
    wrong += [f"intent of {row} is {state}" for row, (state, _) in sorted(intents.items()) if state != "DELETED"]
    unasked = sorted(set(intents) ^ set(doomed))
    wrong += [f"ledger {ledger_id}: intents and expectation differ" for ledger_id in unasked]
    seen = (
        wrong[0] if wrong else f"{len(doomed)} ledgers detached, 0 objects of them left, {len(intents)} intents DELETED"
    )
    return Shown(promise="2 what is detached is deleted", ok=not wrong and bool(doomed), seen=seen)


def check_foreign(before: Stored, after: Stored, planted: Sequence[str]) -> Shown:
    """Promise 3: objects of others in the same bucket are byte for byte what they were."""
    touched = [key for key in planted if after.etags.get(key) != before.etags[key]]
    seen = f"{touched[0]} was touched" if touched else f"{len(planted)} objects of others untouched"
    return Shown(promise="3 nothing of others is touched", ok=not touched, seen=seen)


def check_crash(*, died: bool, unfinished: int, same_after_again: bool) -> Shown:
    """Promise 8: a worker died by SIGKILL with work left, another finished it, and once more changed nothing."""
    ok = died and unfinished > 0 and same_after_again
    seen = (
        f"worker killed with {unfinished} deletions unfinished; another finished them; a second trim changed nothing"
        if ok
        else f"killed: {died}, unfinished then: {unfinished}, unchanged by a second trim: {same_after_again}"
    )
    return Shown(promise="8 survives kill -9, twice is once", ok=ok, seen=seen)
