"""The contracts of all workflows as one page of Markdown."""

import json
import re
from dataclasses import MISSING, asdict, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from workers.reference.contracts import QUEUE, CallFacts, Contract, FieldFacts, contracts, fields_of

_HEAD: Final = f"""# Workflows

What a program in any language must know to start our jobs. `make reference` writes this page from the code.

- **Task queue**: `{QUEUE}` for all, which is the setting `task_queue`; of `rebuild-catalog` one of its own, which the
  command `sexton records rebuild` serves; of `follow-records` `{QUEUE}-follow-` and the replica, with hyphens in place
  of slashes, which `sexton records follow` serves.
- **Id**: start each under exactly the id that stands here: it keeps two starts from doing the work twice. Where a form
  has no key, a schedule appends the time.
- **Input**: exactly one JSON object, in the encoding `json/plain`, with no field but those below. What is not that
  fails the workflow at once with `InvalidInput`: the field, what was expected and what was found. A signal like that is
  ignored, with a warning in the worker's log; an update is refused to its sender. A field without a default must be
  given. `carried` and what is said to have been visited are how one run of a job tells the next one: leave them out.
- **Names** of topics are encoded, at most 200 characters: as search attributes in the Web UI show them.
- **Errors**: the type of the outermost failure, one of those that the job's steps say they raise. Every workflow may
  also end with `UnknownFault` (a bug, after ten attempts), `TimeoutError`, `TerminatedError` and `CancelledError`.
  Where the store itself is not as it must be, every one that changes something may end with `CatalogAdopting` (the
  catalog is being rebuilt, or is a replica), `CatalogMismatch` (a bucket is another catalog's), `CatalogOutdated` (the
  database is older than its record log) or `CatalogVersionMismatch`.
  Errors that are *tried again* end a job only where attempts are limited, as those of uploads and of bulk jobs are.
- **Refused**: a guard refused what was asked, and nothing changed. The workflow completes, and `refused` in its result
  says why; `stopped` does where it has done something before.
"""
_NONE: Final = re.compile(r"\bNone\b")
_PLAIN: Final[dict[Any, str]] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "any JSON",
}


def page() -> str:
    """The text, which ends with one line break."""
    found = contracts()
    inputs = {one.takes for one in found}
    index = "".join(
        f"| [`{one.name}`](#{one.name}) | {_types(one.ids, '<br>')} | {one.about.partition('. ')[0]} |\n"
        for one in found
    )
    values = sorted(_values(found) - inputs - {one.gives for one in found}, key=lambda kind: kind.__name__)
    return "\n".join(
        [
            _HEAD,
            "| workflow | id | what it makes true |\n|---|---|---|",
            index,
            *map(_section, found),
            "## Values in values\n",
            *map(_value, values),
        ]
    )


def _section(one: Contract) -> str:
    calls = [("Signal", one.signals), ("Query", one.queries), ("Update", one.updates)]
    lines = [
        f"## {one.name}\n",
        f"{one.about}\n",
        f"- **Id**: {_types(one.ids)}",
        *(f"- **{what}** {_call(call)}" for what, made in calls for call in made),
        f"- **Fails with**: {_types(one.fails)}",
        *([f"- **Refused**: {_types(one.refused)}"] if one.refused else []),
        *([f"- **Tried again**: {_types(one.retried)}"] if one.retried else []),
        f"\n### Input of {one.name}\n",
        _table(fields_of(one.takes), given=True),
        f"### Result of {one.name}\n",
        _table(fields_of(one.gives), given=False),
    ]
    return "\n".join(lines)


def _call(call: CallFacts) -> str:
    takes = f" takes {', '.join(map(_kind, call.takes))}" if call.takes else ""
    gives = f" answers with {_kind(call.gives)}" if call.gives not in {None, NoneType} else ""
    return f"`{call.name}`{takes}{gives}: {call.about}"


def _types(names: tuple[str, ...], between: str = ", ") -> str:
    return between.join(f"`{name}`" for name in names)


def _value(kind: type) -> str:
    about = (kind.__doc__ or "").partition("\n")[0]
    if issubclass(kind, Enum):
        return f"### {kind.__name__}\n\n{about} One of {_types(tuple(str(one.value) for one in kind))}.\n"
    return f"### {kind.__name__}\n\n{about}\n\n{_table(fields_of(kind), given=True)}"


def _table(found: list[FieldFacts], *, given: bool) -> str:
    """Fields, with what has to be given where that is asked."""
    if not found:
        return "Nothing.\n"
    head = (
        "| field | type | default | bounds | |\n|---|---|---|---|---|" if given else "| field | type | |\n|---|---|---|"
    )
    rows = []
    for one in found:
        more = [_shown(one.default), "; ".join(one.bounds)] if given else []
        rows.append(
            "| " + " | ".join([f"`{one.name}`", _kind(one.kind), *more, _NONE.sub("null", one.about)]).rstrip() + " |"
        )
    return "\n".join([head, *rows]) + "\n"


def _shown(default: object) -> str:
    if default is MISSING:
        return "must be given"
    if is_dataclass(default) and not isinstance(default, type):
        return "its own defaults" if any(asdict(default).values()) else "empty"
    return f"`{json.dumps(default)}`"


def _kind(kind: Any) -> str:  # noqa: ANN401 - an annotation
    """An annotation in the words of JSON; values of ours as links to their tables."""
    arguments = get_args(kind)
    if get_origin(kind) in {Union, UnionType}:
        return " or ".join(map(_kind, arguments))
    if get_origin(kind) in {list, tuple}:
        return f"list of {_kind(arguments[0])}"
    if get_origin(kind) is dict:
        return f"object of {_kind(arguments[0])} to {_kind(arguments[1])}"
    if kind in _PLAIN:
        return _PLAIN[kind]
    return _linked(kind)


def _linked(kind: type) -> str:
    """Its name, which leads to its table: that of the workflow which takes or returns it, or its own."""
    for one in contracts():
        if kind is one.takes:
            return f"[{kind.__name__}](#input-of-{one.name})"
        if kind is one.gives:
            return f"[{kind.__name__}](#result-of-{one.name})"
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _values(found: tuple[Contract, ...]) -> set[type]:
    """Every dataclass and every enumeration that inputs, results and calls hold, at any depth."""
    calls = [call for one in found for call in (*one.signals, *one.queries, *one.updates)]
    todo: list[Any] = [*(part for one in found for part in (one.takes, one.gives))]
    todo += [part for call in calls for part in (*call.takes, call.gives)]
    met: set[type] = set()
    while todo:
        kind = todo.pop()
        todo += get_args(kind)
        if isinstance(kind, type) and kind not in met and (is_dataclass(kind) or issubclass(kind, Enum)):
            met.add(kind)
            todo += [one.kind for one in fields_of(kind)] if is_dataclass(kind) else []
    return met
