"""The subject of a request: attributes of spans, and the line beside an activity and above a run in the Web UI."""

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
TRACE_ID: Final = "trace_id"  # in the details of a failure
FIELD: Final = "field"  # likewise, of what was refused as input

Fact = str | int | Sequence[int]
_MOST_LEDGERS = 20
_MOST_ERROR = 1_000  # characters of a sentence; the whole of it is in the failure


def facts_of(value: object) -> dict[str, Fact]:
    """Topic, ledgers, batch, transaction, range of rows and outcome, as far as a request or a result names them.

    Args:
        value: A request or a result of an activity or a workflow: its fields have the same names everywhere, and one
            that it lacks is left out.
    """
    return dict(_facts(value))


def _facts(value: object) -> Iterator[tuple[str, Fact]]:
    request = getattr(value, "order", value)  # a topic's deletion has what was asked for in one field
    key, chunk = getattr(value, "key", value), getattr(value, "chunk", None)
    for name, attribute in ((TOPIC, "topic"), (BATCH, "batch_id"), (TXN, "txn")):
        found = getattr(request, attribute, None) or getattr(value, attribute, None)
        if isinstance(found, str) and found:
            yield name, found
    ledger, ledgers = getattr(key, "ledger_id", None), getattr(getattr(value, "detach", value), "ledger_ids", None)
    if isinstance(ledger, int):
        yield LEDGER, ledger
    if isinstance(ledgers, list) and ledgers:
        yield LEDGERS, [int(one) for one in ledgers[:_MOST_LEDGERS]]
    if chunk is not None:
        yield ROW_RANGE, f"{chunk.first}-{chunk.last}"
    outcome = _outcome(value)
    if outcome:
        yield OUTCOME, outcome


def _outcome(value: object) -> str:
    one, many = getattr(value, "outcome", None) or getattr(value, "answer", None), getattr(value, "outcomes", None)
    if isinstance(one, Enum):
        return str(one.value)
    return counted(many) if isinstance(many, Mapping) else ""


def counted(outcomes: Mapping[str, int]) -> str:
    """`DELETED 98, STILL_IN_USE 2`, ascending by name."""
    return ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))


def sentence(kind: str, message: str) -> str:
    """An error as a span's status has it: its type, and what it says."""
    return f"{kind}: {message}"[:_MOST_ERROR]


def command_facts(command: str, arguments: Mapping[str, object]) -> dict[str, Fact]:
    """Topic, ledgers, workflow and bundle, as far as the arguments of a command name them."""
    facts: dict[str, Fact] = {}
    for name, value in arguments.items():
        if isinstance(value, str) and value.startswith("persistent://"):
            facts[TOPIC] = value
        elif name in {"ledger_id", "ledger"} or (name == "ids" and command.startswith("sexton ledger ")):
            ledgers = [value] if isinstance(value, int) else value
            if isinstance(ledgers, list) and ledgers:
                facts[LEDGERS] = [int(one) for one in ledgers[:_MOST_LEDGERS]]
        elif name in _NAMED and isinstance(value, str):
            facts[_NAMED[name]] = value
    return facts


_NAMED: Final = {"workflow_id": "temporalWorkflowID", "bundle": "sexton.bundle"}


MOST_BYTES: Final = 200
"""Of one summary; servers refuse, with the whole workflow task, what is longer than 400."""


def summary_of(request: object) -> str:
    """Rows, ledgers, topics, transaction and batch, as far as the request names them, in at most `MOST_BYTES` of UTF-8.

    Args:
        request: Of an activity or a workflow. The answer depends on nothing else: replay gives it again.
    """
    return shortened(", ".join(_parts(request)))


def shortened(text: str) -> str:
    """The text, cut to `MOST_BYTES` of UTF-8."""
    raw = text.encode()
    return text if len(raw) <= MOST_BYTES else raw[: MOST_BYTES - 3].decode(errors="ignore") + "…"


def _parts(request: object) -> Iterator[str]:
    facts, key = facts_of(request), getattr(request, "key", request)
    chunk, page = getattr(request, "chunk", None), getattr(request, "page", None)
    if chunk is not None:
        yield f"rows {chunk.first} to {chunk.last}"
    if page is not None and hasattr(page, "first"):
        yield f"topics {page.first} to {page.last}"
    if LEDGER in facts:
        yield f"ledger {facts[LEDGER]}"
    if hasattr(key, "copy"):
        yield f"copy {key.copy}"
    if LEDGERS in facts:
        yield _ledgers(request)
    yield from _many(request)
    if TXN in facts:
        yield f"transaction {facts[TXN]}"
    if isinstance(getattr(request, "tc_id", None), int):
        yield f"coordinator {getattr(request, 'tc_id')}"  # noqa: B009 - a request of any type
    yield from _page(request)
    yield from _of_records(request)
    yield from _run(request)
    if BATCH in facts:
        yield f"batch {facts[BATCH]}"
    if TOPIC in facts:
        yield str(facts[TOPIC])


def _of_records(request: object) -> Iterator[str]:
    """For how long a flush looks for changes, how old a tombstone has to be, and which function is asked of records."""
    watch_s, age_s = getattr(request, "watch_s", None), getattr(request, "eligible_age_s", None)
    if isinstance(function := getattr(request, "function", None), str):
        yield f"function {function}"
    if isinstance(watch_s, int | float):
        yield f"changes, looked for during {watch_s:g} s" if watch_s else "changes until now"
    if isinstance(age_s, int | float):
        yield f"older than {age_s:g} s"


def _run(request: object) -> Iterator[str]:
    """Of a reconciliation: its bulk job, the page of its findings, and the run of the plan."""
    job, page, run_id = (getattr(request, name, None) for name in ("job", "page", "run_id"))
    if not isinstance(run_id, str):
        return
    if isinstance(job, str):
        yield job
    if isinstance(page, int):
        yield f"page {page}"
    yield f"run {run_id}"


def _many(request: object) -> Iterator[str]:
    """Topics, or buckets of delayed messages, that are named by their ids."""
    for name, what in (("topic_ids", "topics"), ("bucket_ids", "buckets")):
        ids = getattr(request, name, None)
        if isinstance(ids, list) and ids:
            yield f"{len(ids):,} {what}: {_first(ids)}"


def _first(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")


def _ledgers(request: object) -> str:
    """The first of them, and how many there are."""
    ids = getattr(getattr(request, "detach", request), "ledger_ids")  # noqa: B009 - a request of any type
    if len(ids) == 1:
        return f"ledger {ids[0]}"
    return f"{len(ids):,} ledgers: {_first(ids)}"


def _page(request: object) -> Iterator[str]:
    """Where a page begins, and how much it takes at most."""
    after, limit = getattr(request, "after", None), getattr(request, "limit", None)
    if not isinstance(limit, int):
        return
    if after is None:
        yield f"at most {limit:,} rows"
    elif after >= 0:
        what = next((name for name in ("rows", "topics") if hasattr(request, name)), "ledgers")
        yield f"{what} after {after}"


def detail_of(details: Sequence[object], name: str) -> str | None:
    """The entry of that name in the details of a failure, or None."""
    named = (one[name] for one in details if isinstance(one, Mapping) and name in one)
    return next((str(value) for value in named), None)
