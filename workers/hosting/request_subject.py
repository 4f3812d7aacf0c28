"""Topic, ledgers, batch and so on of a request: as span attributes, and as a summary in Temporal's Web UI."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

TOPIC: Final = "sexton.topic"
LEDGER: Final = "sexton.ledger"
LEDGERS: Final = "sexton.ledgers"
OUTCOME: Final = "sexton.outcome"
BATCH: Final = "sexton.batch"
TXN: Final = "sexton.txn"
ROW_RANGE: Final = "sexton.row_range"
EXIT_CODE: Final = "sexton.exit_code"
ERROR_TYPE: Final = "error.type"
TRACE_ID: Final = "trace_id"  # key in the details of a failure
FIELD: Final = "field"  # key in the details of a failure; the value is the refused field of the input

AttributeValue = str | int | Sequence[int]

_MAX_LEDGERS: Final = 20
_MAX_ERROR_CHARACTERS: Final = 1_000  # the failure has the full text
_ATTRIBUTE_BY_ARGUMENT: Final = {"workflow_id": "temporalWorkflowID", "bundle": "sexton.bundle"}

MAX_SUMMARY_BYTES: Final = 200
"""Maximum size of a summary. A server refuses a workflow task with a summary of more than 400 bytes."""


def subject_span_attributes(value: object) -> dict[str, AttributeValue]:
    """Return span attributes for topic, ledgers, batch, transaction, row range and outcome of a request or result."""
    return dict(_iterate_subject_attributes(value))


def _iterate_subject_attributes(value: object) -> Iterator[tuple[str, AttributeValue]]:
    request = getattr(value, "order", value)  # an input of `delete-topic` has its request in `order`
    key, chunk = getattr(value, "key", value), getattr(value, "chunk", None)
    for name, attribute in ((TOPIC, "topic"), (BATCH, "batch_id"), (TXN, "txn")):
        text = getattr(request, attribute, None) or getattr(value, attribute, None)
        if isinstance(text, str) and text:
            yield name, text
    ledger, ledgers = getattr(key, "ledger_id", None), getattr(getattr(value, "detach", value), "ledger_ids", None)
    if isinstance(ledger, int):
        yield LEDGER, ledger
    if isinstance(ledgers, list) and ledgers:
        yield LEDGERS, [int(ledger_id) for ledger_id in ledgers[:_MAX_LEDGERS]]
    if chunk is not None:
        yield ROW_RANGE, f"{chunk.first}-{chunk.last}"
    outcome, count_by_outcome = (
        getattr(value, "outcome", None) or getattr(value, "answer", None),
        getattr(value, "outcomes", None),
    )
    if isinstance(outcome, Enum):
        yield OUTCOME, str(outcome.value)
    elif isinstance(count_by_outcome, Mapping) and count_by_outcome:
        yield OUTCOME, ", ".join(f"{name} {count}" for name, count in sorted(count_by_outcome.items()))


def format_span_error(error_type: str, message: str) -> str:
    """Return the description of a span's error status, in at most 1,000 characters."""
    return f"{error_type}: {message}"[:_MAX_ERROR_CHARACTERS]


def command_span_attributes(command: str, arguments: Mapping[str, object]) -> dict[str, AttributeValue]:
    """Return span attributes for the topic, ledgers, workflow and bundle in the arguments of a command."""
    attributes: dict[str, AttributeValue] = {}
    for name, value in arguments.items():
        if isinstance(value, str) and value.startswith("persistent://"):
            attributes[TOPIC] = value
        elif name in {"ledger_id", "ledger"} or (name == "ids" and command.startswith("sexton ledger ")):
            ledgers = [value] if isinstance(value, int) else value
            if isinstance(ledgers, list) and ledgers:
                attributes[LEDGERS] = [int(ledger_id) for ledger_id in ledgers[:_MAX_LEDGERS]]
        elif name in _ATTRIBUTE_BY_ARGUMENT and isinstance(value, str):
            attributes[_ATTRIBUTE_BY_ARGUMENT[name]] = value
    return attributes


def summarize_request(request: object) -> str:
    """Return rows, ledgers and topics of a request, in at most `MAX_SUMMARY_BYTES`. A replay returns the same text."""
    return shorten_summary(", ".join(_iterate_summary_parts(request)))


def shorten_summary(text: str) -> str:
    """Cut the text to `MAX_SUMMARY_BYTES` of UTF-8. A cut text ends with an ellipsis."""
    encoded = text.encode()
    if len(encoded) <= MAX_SUMMARY_BYTES:
        return text
    return encoded[: MAX_SUMMARY_BYTES - 3].decode(errors="ignore") + "…"


def _iterate_summary_parts(request: object) -> Iterator[str]:
    attributes, key = subject_span_attributes(request), getattr(request, "key", request)
    chunk, page = getattr(request, "chunk", None), getattr(request, "page", None)
    if chunk is not None:
        yield f"rows {chunk.first} to {chunk.last}"
    if page is not None and hasattr(page, "first"):
        yield f"topics {page.first} to {page.last}"
    if LEDGER in attributes:
        yield f"ledger {attributes[LEDGER]}"
    if hasattr(key, "copy"):
        yield f"copy {key.copy}"
    if LEDGERS in attributes:
        ids = getattr(getattr(request, "detach", request), "ledger_ids")  # noqa: B009 - a request of any type
        yield f"ledger {ids[0]}" if len(ids) == 1 else f"{len(ids):,} ledgers: {_format_first_ids(ids)}"
    yield from _iterate_id_list_parts(request)
    if TXN in attributes:
        yield f"transaction {attributes[TXN]}"
    if isinstance(getattr(request, "tc_id", None), int):
        yield f"coordinator {getattr(request, 'tc_id')}"  # noqa: B009 - a request of any type
    yield from _iterate_page_parts(request)
    yield from _iterate_record_log_parts(request)
    yield from _iterate_reconciliation_parts(request)
    if BATCH in attributes:
        yield f"batch {attributes[BATCH]}"
    if TOPIC in attributes:
        yield str(attributes[TOPIC])


def _iterate_id_list_parts(request: object) -> Iterator[str]:
    for name, noun in (("topic_ids", "topics"), ("bucket_ids", "buckets"), ("transactions", "transactions")):
        ids = getattr(request, name, None)
        if isinstance(ids, list) and ids:
            yield f"{len(ids):,} {noun}: {_format_first_ids(ids)}"


def _iterate_record_log_parts(request: object) -> Iterator[str]:
    watch_s, age_s = getattr(request, "watch_s", None), getattr(request, "eligible_age_s", None)
    if isinstance(function := getattr(request, "function", None), str):
        yield f"function {function}"
    if isinstance(watch_s, int | float):
        yield f"changes, looked for during {watch_s:g} s" if watch_s else "changes until now"
    if isinstance(age_s, int | float):
        yield f"older than {age_s:g} s"


def _iterate_reconciliation_parts(request: object) -> Iterator[str]:
    job, page, run_id = (getattr(request, name, None) for name in ("job", "page", "run_id"))
    if not isinstance(run_id, str):
        return
    if isinstance(job, str):
        yield job
    if isinstance(page, int):
        yield f"page {page}"
    yield f"run {run_id}"


def _format_first_ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")


def _iterate_page_parts(request: object) -> Iterator[str]:
    after, limit = getattr(request, "after", None), getattr(request, "limit", None)
    if not isinstance(limit, int) or not limit:  # 0 is no limit
        return
    if after is None:
        yield f"at most {limit:,} rows"
    elif after >= 0:
        noun = next((name for name in ("rows", "topics") if hasattr(request, name)), "ledgers")
        yield f"{noun} after {after}"


def find_detail(details: Sequence[object], name: str) -> str | None:
    values = (detail[name] for detail in details if isinstance(detail, Mapping) and name in detail)
    return next((str(value) for value in values), None)
