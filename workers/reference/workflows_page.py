"""Contracts of all workflows as one Markdown page."""

import json
import re
import textwrap
from dataclasses import MISSING, asdict, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from workers.reference.workflow_contracts import (
    QUEUE,
    ContractCall,
    ContractField,
    WorkflowContract,
    list_contract_fields,
    list_workflow_contracts,
)

_HEAD: Final = f"""# Workflows

This page is for programs in any language that start Sexton's jobs. `make reference` writes it from the code.

- **Task queue**: `{QUEUE}`, or the value of the setting `task_queue`. `rebuild-catalog` has its own queue, which the
  command `sexton records rebuild` serves. `follow-records` uses `{QUEUE}-follow-` and the name of the replica, with
  hyphens instead of slashes. The command `sexton records follow` serves that queue.
- **Id**: start each workflow under exactly the id on this page. The id keeps two starts from doing the work twice. If
  an id has no key, a schedule appends the time.
- **Input**: exactly one JSON object, in the encoding `json/plain`, with no field but those below. Any other input fails
  the workflow at once with `InvalidInput`. The message names the field, the expected value and the value found. A field
  without a default is required. Leave out `carried` and fields for visited objects: one run of a job fills them in for
  the next run.
- **Invalid signals and updates**: an invalid signal is ignored, with a warning in the worker's log. The sender of an
  invalid update gets an error.
- **Names** of topics are encoded, at most 200 characters, as search attributes in the Web UI show them.
- **Errors**: the type of the outermost failure. It is one of the errors that the job's activities list. Every
  workflow may also end with `UnknownFault` (a bug, after ten attempts), `TimeoutError`, `TerminatedError` and
  `CancelledError`.
  Every workflow that changes something may end with one of these errors:
  - `CatalogAdopting`: the catalog is being rebuilt, or is a replica database.
  - `CatalogMismatch`: a bucket belongs to another catalog.
  - `CatalogOutdated`: the database is older than its record log.
  - `CatalogVersionMismatch`: the catalog has another version than the build.
- **Tried again**: these errors end a job only if its attempts are limited, as those of uploads and of bulk jobs are.
- **Refused**: a guard refused the request, and nothing changed. The workflow completes, and `refused` in its result has
  the reason. If the job had done a part of its work before, `stopped` has the reason instead.
"""
_PYTHON_NONE: Final = re.compile(r"\bNone\b")
_JSON_TYPE_NAMES: Final[dict[Any, str]] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "any JSON",
}


def render_workflows_page() -> str:
    all_contracts = list_workflow_contracts()
    inputs = {contract.takes for contract in all_contracts}
    results = {contract.gives for contract in all_contracts}
    index = "".join(
        f"| [`{contract.name}`](#{contract.name}) | {_join_code(contract.ids, '<br>')}"
        f" | {contract.about.partition('. ')[0]} |\n"
        for contract in all_contracts
    )
    values = sorted(_collect_value_types(all_contracts) - inputs - results, key=lambda kind: kind.__name__)
    return "\n".join(
        [
            _HEAD,
            "| workflow | id | what it makes true |\n|---|---|---|",
            index,
            *map(_format_contract, all_contracts),
            "## Values in values\n",
            *map(_format_value_type, values),
        ]
    )


def _format_contract(contract: WorkflowContract) -> str:
    calls_by_kind = [("Signal", contract.signals), ("Query", contract.queries), ("Update", contract.updates)]
    items = [
        f"- **Id**: {_join_code(contract.ids)}",
        *(f"- **{kind}** {_format_call(call)}" for kind, calls in calls_by_kind for call in calls),
        f"- **Fails with**: {_join_code(contract.fails)}",
        *([f"- **Refused**: {_join_code(contract.refused)}"] if contract.refused else []),
        *([f"- **Tried again**: {_join_code(contract.retried)}"] if contract.retried else []),
    ]
    lines = [
        f"## {contract.name}\n",
        f"{_wrap(contract.about)}\n",
        *map(_wrap, items),
        f"\n### Input of {contract.name}\n",
        _format_field_table(list_contract_fields(contract.takes), is_input=True),
        f"### Result of {contract.name}\n",
        _format_field_table(list_contract_fields(contract.gives), is_input=False),
    ]
    return "\n".join(lines)


def _wrap(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _format_call(call: ContractCall) -> str:
    takes = f" takes {', '.join(map(_format_type, call.takes))}" if call.takes else ""
    gives = f" answers with {_format_type(call.gives)}" if call.gives not in {None, NoneType} else ""
    return f"`{call.name}`{takes}{gives}: {call.about}"


def _join_code(names: tuple[str, ...], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


def _format_value_type(kind: type) -> str:
    about = (kind.__doc__ or "").partition("\n")[0]
    if issubclass(kind, Enum):
        members = _join_code(tuple(str(member.value) for member in kind))
        return f"### {kind.__name__}\n\n{_wrap(f'{about} One of {members}.')}\n"
    return f"### {kind.__name__}\n\n{_wrap(about)}\n\n{_format_field_table(list_contract_fields(kind), is_input=True)}"


def _format_field_table(rows: list[ContractField], *, is_input: bool) -> str:
    if not rows:
        return "Nothing.\n"
    head = (
        "| field | type | default | bounds | |\n|---|---|---|---|---|"
        if is_input
        else "| field | type | |\n|---|---|---|"
    )
    lines = []
    for row in rows:
        input_cells = [_format_default(row.default), "; ".join(row.bounds)] if is_input else []
        cells = [f"`{row.name}`", _format_type(row.kind), *input_cells, _PYTHON_NONE.sub("null", row.about)]
        lines.append("| " + " | ".join(cells).rstrip() + " |")
    return "\n".join([head, *lines]) + "\n"


def _format_default(default: object) -> str:
    if default is MISSING:
        return "must be given"
    if is_dataclass(default) and not isinstance(default, type):
        return "its own defaults" if any(asdict(default).values()) else "empty"
    return f"`{json.dumps(default)}`"


def _format_type(kind: Any) -> str:  # noqa: ANN401 - an annotation
    arguments = get_args(kind)
    if get_origin(kind) in {Union, UnionType}:
        return " or ".join(map(_format_type, arguments))
    if get_origin(kind) in {list, tuple}:
        return f"list of {_format_type(arguments[0])}"
    if get_origin(kind) is dict:
        return f"object of {_format_type(arguments[0])} to {_format_type(arguments[1])}"
    if kind in _JSON_TYPE_NAMES:
        return _JSON_TYPE_NAMES[kind]
    return _format_type_link(kind)


def _format_type_link(kind: type) -> str:
    for contract in list_workflow_contracts():
        if kind is contract.takes:
            return f"[{kind.__name__}](#input-of-{contract.name})"
        if kind is contract.gives:
            return f"[{kind.__name__}](#result-of-{contract.name})"
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _collect_value_types(all_contracts: tuple[WorkflowContract, ...]) -> set[type]:
    calls = [call for contract in all_contracts for call in (*contract.signals, *contract.queries, *contract.updates)]
    pending: list[Any] = [kind for contract in all_contracts for kind in (contract.takes, contract.gives)]
    pending += [kind for call in calls for kind in (*call.takes, call.gives)]
    values: set[type] = set()
    while pending:
        kind = pending.pop()
        pending += get_args(kind)
        if isinstance(kind, type) and kind not in values and (is_dataclass(kind) or issubclass(kind, Enum)):
            values.add(kind)
            pending += [field.kind for field in list_contract_fields(kind)] if is_dataclass(kind) else []
    return values
