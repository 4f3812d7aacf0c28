"""Attributes of spans about the work that they cover, by the names that `sexton trace` shows."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

TOPIC: Final = "sexton.topic"
LEDGER: Final = "sexton.ledger"
LEDGERS: Final = "sexton.ledgers"
OUTCOME: Final = "sexton.outcome"
BATCH: Final = "sexton.batch"
ROW_RANGE: Final = "sexton.row_range"
ATTEMPT: Final = "sexton.attempt"
EXIT_CODE: Final = "sexton.exit_code"
ERROR_TYPE: Final = "error.type"
TRACE_ID: Final = "trace_id"  # in the details of a failure

Fact = str | int | Sequence[int]
_MOST_LEDGERS = 20
_MOST_ERROR = 1_000  # characters of a sentence; the whole of it is in the failure


def facts_of(value: object) -> dict[str, Fact]:
    """Topic, ledgers, batch, range of rows and outcome, as far as a request or a result names them.

    Args:
        value: What an activity or a workflow takes or returns: its fields have the same names everywhere, and one that
            it lacks is left out.
    """
    return dict(_facts(value))


def _facts(value: object) -> Iterator[tuple[str, Fact]]:
    request = getattr(value, "order", value)  # a topic's deletion has what was asked for in one field
    key, chunk = getattr(value, "key", value), getattr(value, "chunk", None)
    for name, attribute in ((TOPIC, "topic"), (BATCH, "batch_id")):
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
