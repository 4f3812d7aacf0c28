"""Flip bits of a stored segment, and see what a reader gets."""

from itertools import islice

from logstore.errors import CorruptData
from logstore.log.services import ManagedLedger
from logstore.positions import LedgerId, Position
from workers.demo.auditor import Auditor
from workers.demo.report import PromiseRow
from workers.demo.scenario import WrittenTopic

_PLACES = (0.1, 0.5, 0.9)  # of the object's length


def check_damage(auditor: Auditor, log: ManagedLedger, written: WrittenTopic) -> PromiseRow:
    """Flip bits of a segment that is in use, one at a time: an error that names it, or what was written, never else."""
    ledger_id = written.needed[0]
    key = next(key for key in auditor.stored().of_ledger(ledger_id) if key.endswith(".parquet"))
    refused, wrong = 0, ""
    for place in _PLACES:
        with auditor.flipped(key, place):
            try:
                right = _payloads(log, written, ledger_id) == written.payloads[ledger_id]
            except CorruptData:
                refused += 1
            else:
                wrong = wrong or ("" if right else f"{key} was read with a flipped bit")
    if _payloads(log, written, ledger_id) != written.payloads[ledger_id]:
        wrong = wrong or f"{key} was mended and reads differently"
    seen = wrong or f"{len(_PLACES)} bits flipped in a segment in use: {refused} times refused, never read as another"
    return PromiseRow(promise="a flipped bit is never read", ok=not wrong and refused > 0, seen=seen)


def _payloads(log: ManagedLedger, written: WrittenTopic, ledger_id: LedgerId) -> list[bytes]:
    wanted = len(written.payloads[ledger_id])
    found = log.scan(written.topic, from_position=Position(ledger_id, 0))
    return [entry.payload or b"" for entry in islice(found, wanted)]
