"""The demo's findings: promises as rows, counts as numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self

from logstore.deletion.intents import Outcome
from logstore.errors import CorruptData, NotOwner
from logstore.log.services import ManagedLedger
from logstore.ownership import BundleId, Lease
from logstore.ports.catalog import Deletions, Ended
from logstore.positions import LedgerId, Position
from workers.demo.auditor import Auditor, Stored
from workers.demo.scenario import WrittenTopic
from workers.pages.texts import fields

Fences = Mapping[int, tuple[int, str]]
"""Of each bundle, how often it was acquired, and by which worker last."""

_PARTS = (0.1, 0.5, 0.9)  # of an object's length, at which a bit is flipped
_NO_ROW: Final = Ended(row_id=-1, outcome=Outcome.DELETED)  # a write that changes nothing where it is accepted
_REFUSED = ("DEAD_LETTERED", "METADATA_MISMATCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    """One promise, and what was seen of it."""

    promise: str
    ok: bool
    seen: str

    @classmethod
    def of(cls, promise: str, wrong: Sequence[str], seen: str) -> Self:
        """It held where nothing is wrong; otherwise the first of what is wrong is what was seen."""
        return cls(promise=promise, ok=not wrong, seen=wrong[0] if wrong else seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Everything the demo found."""

    shown: Sequence[PromiseRow]
    orphans: PromiseRow  # what became of planted ones
    damage: PromiseRow  # what became of flipped bits
    counts: dict[str, int]
    ui: str
    home: str
    kept: bool  # whether the stack still runs
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return all(one.ok for one in (*self.shown, self.orphans, self.damage))

    @property
    def rows(self) -> list[dict[str, object]]:
        """A table for people."""
        rows: list[dict[str, object]] = [
            {"promise": one.promise, "held": "yes" if one.ok else "NO", "seen": one.seen}
            for one in (*self.shown, self.orphans, self.damage)
        ]
        rows.append(
            {"promise": "Web UI", "held": "", "seen": self.ui if self.kept else f"{self.ui} (--keep leaves it up)"}
        )
        if self.kept:
            stop = f"sexton --home {self.home} down && rm -r {self.home}"
            rows.append({"promise": "to stop it", "held": "", "seen": stop})
        return rows

    def to_json(self) -> dict[str, object]:
        """One document for scripts."""
        return {
            "ok": self.ok,
            **self.counts,
            "promises": [fields(one, "promise ok seen") for one in self.shown],
            "orphans": fields(self.orphans, "ok seen"),
            "flipped_bits": fields(self.damage, "ok seen"),
            **fields(self, "ui home"),
            "running": self.kept,
            "seconds": round(self.seconds, 1),
        }


def check_needed(auditor: Auditor, before: Stored, after: Stored, topics: Sequence[WrittenTopic]) -> PromiseRow:
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
    seen = f"{kept} ledgers untouched, all {entries} entries read back"
    return PromiseRow.of("1 nothing in use is deleted", wrong, seen)


def check_gone(auditor: Auditor, before: Stored, after: Stored, topics: Sequence[WrittenTopic]) -> PromiseRow:
    """Promise 2: what was detached is gone from list and storage, or listed as a dead letter with its reason."""
    intents = auditor.intents()
    deletable = [ledger_id for written in topics for ledger_id in written.deletable]
    contested = [ledger_id for written in topics for ledger_id in sorted(written.contested)]
    wrong = [f"{key} is still there" for ledger_id in deletable for key in after.of_ledger(ledger_id)]
    for written in topics:
        still = set(written.to_delete) & auditor.listed(written.topic.topic_id)
        wrong += [f"ledger {ledger_id} is still listed" for ledger_id in sorted(still)]
    expected: dict[int, tuple[str, str | None]] = dict.fromkeys(deletable, ("DELETED", "DELETED"))
    expected |= dict.fromkeys(contested, _REFUSED)
    for ledger_id in sorted({*expected, *intents}):
        found = intents.get(ledger_id)
        gone = found == ("DELETED", "ALREADY_GONE") and ledger_id in deletable  # the killed worker got that far
        if found != expected.get(ledger_id) and not gone:
            wrong.append(f"intent of ledger {ledger_id}: expected {expected.get(ledger_id)}, found {found}")
    wrong += [
        f"{key} of a refused ledger is gone"
        for one in contested
        for key in before.of_ledger(one)
        if key not in after.etags
    ]
    left = f"; {len(contested)} refused, kept whole and listed as a dead letter" if contested else ""
    seen = wrong[0] if wrong else f"{len(deletable)} ledgers detached and deleted, 0 objects of them left{left}"
    return PromiseRow(promise="2 what is detached is deleted", ok=not wrong and bool(deletable), seen=seen)


def check_foreign(before: Stored, after: Stored, planted: Sequence[str]) -> PromiseRow:
    """Promise 3: objects of others in the same bucket are byte for byte what they were."""
    touched = [f"{key} was touched" for key in planted if after.etags.get(key) != before.etags[key]]
    return PromiseRow.of("3 nothing of others is touched", touched, f"{len(planted)} objects of others untouched")


def check_takeover(deletions: Deletions, before: Fences, after: Fences) -> PromiseRow:
    """Promise 7: a write under each lease of the killed worker is refused, under each of its successor accepted."""
    refused = sum(not _is_accepted(deletions, *lease) for lease in before.items())
    accepted = sum(_is_accepted(deletions, *lease) for lease in after.items())
    ok = refused == len(before) > 0 and accepted == len(after)
    dead, live = f"{refused} of the killed worker's {len(before)}", f"{accepted} of its successor's {len(after)}"
    return PromiseRow(promise="7 only the owner writes", ok=ok, seen=f"{dead} leases refused, {live} accepted")


def _is_accepted(deletions: Deletions, bundle: int, fenced: tuple[int, str]) -> bool:
    lease = Lease(bundle=BundleId(bundle), fence=fenced[0], worker_id=fenced[1])
    try:
        deletions.under(lease).finish([_NO_ROW], holder="sexton demo")
    except NotOwner:
        return False
    return True


def check_crash(*, finished: int, unfinished: int, same_after_again: bool) -> PromiseRow:
    """Promise 8: a worker died by SIGKILL with work left, another finished it, and once more changed nothing."""
    ok = unfinished > 0 and same_after_again
    again = "changed nothing" if same_after_again else "CHANGED SOMETHING"
    seen = (
        f"worker killed with {finished} deletions done and {unfinished} to do; another went on; a second trim {again}"
    )
    return PromiseRow(promise="8 survives kill -9, twice is once", ok=ok, seen=seen)


def check_damage(auditor: Auditor, log: ManagedLedger, written: WrittenTopic) -> PromiseRow:
    """Flip single bits of a segment in use: each read must raise an error that names it, or return what was written."""
    ledger_id = written.needed[0]
    key = next(key for key in auditor.stored().of_ledger(ledger_id) if key.endswith(".parquet"))
    refused, wrong = 0, ""
    for part in _PARTS:
        with auditor.flipped(key, part):
            try:
                right = _payloads(log, written, ledger_id) == written.payloads[ledger_id]
            except CorruptData:
                refused += 1
            else:
                wrong = wrong or ("" if right else f"{key} was read with a flipped bit")
    if _payloads(log, written, ledger_id) != written.payloads[ledger_id]:
        wrong = wrong or f"{key} was mended and reads differently"
    seen = wrong or f"{len(_PARTS)} bits flipped in a segment in use: {refused} times refused, never read as another"
    return PromiseRow(promise="a flipped bit is never read", ok=not wrong and refused > 0, seen=seen)


def _payloads(log: ManagedLedger, written: WrittenTopic, ledger_id: LedgerId) -> list[bytes]:
    wanted = len(written.payloads[ledger_id])
    found = log.scan(written.topic, from_position=Position(ledger_id, 0))
    return [entry.payload or b"" for entry in islice(found, wanted)]
