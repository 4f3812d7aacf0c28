"""Decisions about a page of findings. Each decision is stored before its first effect.

All attempts use the decision that was stored first, even if attempts overlap.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logstore.atomic_files import create_or_read_text
from logstore.errors import CorruptData
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog.reconciliation import OrphanCopy

CopyAnswers = Mapping[int, OrphanCopy | str]
"""Answers of storage, by number of the finding. An answer is the copy to delete, or the reason to keep the copy."""

ReasonsToKeepObjects = Mapping[int, str]
"""Reasons to keep single objects, by number of the finding. All other single objects are to be deleted."""


def read_copy_answers(folder: Path, page: int) -> CopyAnswers | None:
    """Return the stored answers of storage about a page's copies, or `None` if no answers are stored."""
    decision = _read_decision(_copy_answers_path(folder, page))
    return None if decision is None else _answers_from_json(decision)


def store_first_copy_answers(folder: Path, page: int, answers: CopyAnswers) -> CopyAnswers:
    fields = {
        str(number): answer if isinstance(answer, str) else _copy_to_json(answer) for number, answer in answers.items()
    }
    return _answers_from_json(_store_first_decision(_copy_answers_path(folder, page), fields))


def read_keep_reasons(folder: Path, page: int) -> ReasonsToKeepObjects | None:
    """Return the stored reasons to keep single objects of a page, or `None` if no decision is stored."""
    decision = _read_decision(_kept_objects_path(folder, page))
    return None if decision is None else _reasons_from_json(decision)


def store_first_keep_reasons(folder: Path, page: int, reasons: ReasonsToKeepObjects) -> ReasonsToKeepObjects:
    return _reasons_from_json(
        _store_first_decision(
            _kept_objects_path(folder, page), {str(number): reason for number, reason in reasons.items()}
        )
    )


def _copy_answers_path(folder: Path, page: int) -> Path:
    return folder / "looked" / f"page-{page:08d}.json"


def _kept_objects_path(folder: Path, page: int) -> Path:
    return folder / "decided" / f"page-{page:08d}.json"


def _store_first_decision(path: Path, decision: Mapping[str, Any]) -> dict[str, Any]:
    return _parse_decision(path, create_or_read_text(path, json.dumps(decision, sort_keys=True)))


def _read_decision(path: Path) -> dict[str, Any] | None:
    return _parse_decision(path, path.read_text(encoding="utf-8")) if path.exists() else None


def _parse_decision(path: Path, text: str) -> dict[str, Any]:
    try:
        decision: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise CorruptData(f"{path}: expected what an apply decided ({error})") from error
    return decision


def _reasons_from_json(decision: Mapping[str, str]) -> ReasonsToKeepObjects:
    return {int(number): reason for number, reason in decision.items()}


def _answers_from_json(decision: Mapping[str, Any]) -> CopyAnswers:
    return {
        int(number): answer if isinstance(answer, str) else _copy_from_json(int(number), answer)
        for number, answer in decision.items()
    }


def _copy_to_json(copy: OrphanCopy) -> dict[str, Any]:
    return {
        "copy": copy.copy.value,
        "statement": copy.statement.to_metadata(),
        "context": dict(copy.context),
        "size_bytes": copy.size_bytes,
    }


def _copy_from_json(number: int, fields: Mapping[str, Any]) -> OrphanCopy:
    return OrphanCopy(
        number=number,
        copy=CopyKind(fields["copy"]),
        statement=LedgerStatement.from_metadata(fields["statement"]),
        context=fields["context"],
        size_bytes=fields["size_bytes"],
    )
