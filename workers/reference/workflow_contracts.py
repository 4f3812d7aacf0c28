"""Contract of each workflow for programs in any language, read from the code and its comments."""

import inspect
import re
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import ModuleType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from temporalio.workflow import _Definition

from activities.deletion.phase_two_steps import delete_ledger_workflow_id
from logstore import errors
from logstore.deletion.intents import IntentKey, RequestRefusal
from logstore.field_bounds import Bound, FromOutside
from workers.hosting.error_and_subject_interceptors import FINAL_ERRORS
from workers.hosting.temporal_workers import WORKFLOWS
from workers.reference import reachable_errors
from workflows.delayed import job_definitions as delayed
from workflows.deletion import job_definitions as deletion
from workflows.job_definition import JobDefinition
from workflows.offload import job_definitions as offload
from workflows.pulsar import job_definitions as pulsar
from workflows.reconciliation import job_definitions as reconciliation
from workflows.records import job_definitions as records
from workflows.transactions import job_definitions as transactions

QUEUE: Final = "sexton"
"""Default of the setting `task_queue`."""

_FIELD_WITH_COMMENT: Final = re.compile(r"^    (\w+): .*?  # (.+)$")
_COMMENT_LINE: Final = re.compile(r"^    # (.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractField:
    name: str
    kind: Any  # annotated type
    default: Any  # `MISSING` if the field is required
    bounds: tuple[str, ...]  # phrases of the rules that refuse values
    about: str  # empty if the field has no comment


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractCall:
    name: str
    takes: tuple[Any, ...]
    gives: Any  # None: no answer
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContract:
    name: str
    ids: tuple[str, ...]
    about: str  # one paragraph
    takes: type
    gives: type
    fails: tuple[str, ...]  # types of errors that end the workflow
    retried: tuple[str, ...]  # types of errors after which an activity is retried
    refused: tuple[str, ...]  # types in the result's `refused`; the workflow completes
    signals: tuple[ContractCall, ...]
    queries: tuple[ContractCall, ...]
    updates: tuple[ContractCall, ...]


@cache
def list_workflow_contracts() -> tuple[WorkflowContract, ...]:
    return tuple(_build_contract(workflow) for workflow in WORKFLOWS)


def list_contract_fields(kind: type) -> list[ContractField]:
    hints, annotated_hints = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    comment_by_field = _read_field_comments(kind)
    return [
        ContractField(
            name=field.name,
            kind=hints[field.name],
            default=field.default if field.default_factory is MISSING else field.default_factory(),
            bounds=tuple(_list_bounds(annotated_hints[field.name])),
            about=comment_by_field.get(field.name, ""),
        )
        for field in fields(kind)
    ]


def _list_bounds(annotation: Any) -> list[str]:  # noqa: ANN401 - an annotation
    """Return the texts of the bounds that apply to a program's input: those for outside input, where there are any."""
    if get_origin(annotation) in {Union, UnionType}:
        return [bound for part in get_args(annotation) for bound in _list_bounds(part)]
    rules = getattr(annotation, "__metadata__", ())
    outside_bounds = [rule.get_bound(QUEUE).expected for rule in rules if isinstance(rule, FromOutside)]
    return outside_bounds or [rule.expected for rule in rules if isinstance(rule, Bound)]


def list_jobs_by_name() -> dict[str, JobDefinition[Any, Any]]:
    modules = (deletion, delayed, offload, pulsar, reconciliation, records, transactions)
    return {job.name: job for module in modules for job in vars(module).values() if isinstance(job, JobDefinition)}


def _build_contract(workflow: type) -> WorkflowContract:
    definition, module = _Definition.must_from_class(workflow), sys.modules[workflow.__module__]
    code = reachable_errors.collect_reachable_code(workflow)
    raised, guard_refusals = (
        reachable_errors.find_documented_activity_errors(code),
        reachable_errors.find_guard_refusals(code),
    )
    takes, gives = (definition.arg_types or [type(None)])[0], definition.ret_type or type(None)
    has_refusal = RequestRefusal in get_args(get_type_hints(gives).get("refused"))
    refused = (guard_refusals & raised or guard_refusals) if has_refusal else set()
    fails = getattr(module, "FAILURES", _list_errors_that_end_run(workflow, refused))
    awaited_fails = [name for child in getattr(module, "AWAITED", ()) for name in _build_contract(child).fails]
    return WorkflowContract(
        name=str(definition.name),
        ids=_list_workflow_id_forms(str(definition.name)),
        about=_summarize_module_docstring(module),
        takes=takes,
        gives=gives,
        fails=tuple(sorted({*fails, *awaited_fails, errors.InvalidInput.__name__})),
        retried=tuple(
            sorted(name for name in raised if not issubclass(reachable_errors.get_error_class(name), FINAL_ERRORS))
        ),
        refused=tuple(sorted(refused)),
        signals=_list_contract_calls(definition.signals),
        queries=_list_contract_calls(definition.queries),
        updates=_list_contract_calls(definition.updates),
    )


def _list_errors_that_end_run(workflow: type, refused: set[str]) -> set[str]:
    all_code, unguarded_code = (
        reachable_errors.collect_run_ending_code(workflow, includes_guarded=includes_guarded)
        for includes_guarded in (True, False)
    )
    raised = (
        reachable_errors.find_documented_activity_errors(all_code) - refused
    ) | reachable_errors.find_documented_activity_errors(unguarded_code, only_called=True)
    final = {name for name in raised if issubclass(reachable_errors.get_error_class(name), FINAL_ERRORS)}
    return final | reachable_errors.find_raised_failure_types(all_code)


def _list_workflow_id_forms(name: str) -> tuple[str, ...]:
    job = list_jobs_by_name().get(name)
    if job:
        return tuple(job.id(key) if key else job.id() for key in job.keys)
    if name != "delete-ledger":
        raise LookupError(f"workflow {name}: expected a job with an id, in one of the rooms that are read, found none")
    parts: dict[str, Any] = {part: f"{{{part}}}" for part in ("ledger_id", "copy", "generation", "openings")}
    return delete_ledger_workflow_id(IntentKey(**parts | {"openings": 0})), delete_ledger_workflow_id(
        IntentKey(**parts)
    )


def _summarize_module_docstring(module: ModuleType) -> str:
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")[:2]
    sentence = paragraphs[0].partition(": ")[2]
    return " ".join(f"{sentence[:1].upper()}{sentence[1:]} {paragraphs[1]}".split())


def _list_contract_calls(definitions: Any) -> tuple[ContractCall, ...]:  # noqa: ANN401 - of three types of the SDK
    return tuple(
        ContractCall(
            name=name,
            takes=tuple(definition.arg_types or ()),
            gives=getattr(definition, "ret_type", None),
            about=(inspect.getdoc(definition.fn) or "").partition("\n")[0],
        )
        for name, definition in sorted(definitions.items())
        if name
    )


@cache
def _read_field_comments(kind: type) -> dict[str, str]:
    comment_by_field: dict[str, str] = {}
    for base in reversed([part for part in kind.__mro__ if is_dataclass(part)]):
        last_field = ""
        for line in inspect.getsource(base).splitlines():
            field_match, comment_match = _FIELD_WITH_COMMENT.match(line), _COMMENT_LINE.match(line)
            if field_match:
                last_field = field_match[1]
                comment_by_field[last_field] = field_match[2]
            elif comment_match and last_field:
                comment_by_field[last_field] += f" {comment_match[1]}"
            else:
                last_field = ""
    return comment_by_field
