"""Contract of each workflow for programs in any language, read from the code and its comments."""

import inspect
import pkgutil
import re
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from types import ModuleType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from temporalio import activity
from temporalio.workflow import _Definition

import activities
from logstore import errors
from logstore.deletion.intents import RequestRefusal
from logstore.field_bounds import Bound, FromOutside
from workers.hosting.error_and_subject_interceptors import FINAL_ERRORS
from workers.hosting.temporal_workers import WORKFLOWS
from workflows.jobs import JOB_BY_NAME

QUEUE: Final = "sexton"
"""Default of the setting `task_queue`."""

_FIELD_WITH_COMMENT: Final = re.compile(r"^    (\w+): .*?  # (.+)$")
_COMMENT_LINE: Final = re.compile(r"^    # (.+)$")
_ERROR_NAME: Final = re.compile(r"\b[A-Z]\w+")
_PARAGRAPH_END: Final = re.compile(r"\n\n|\Z")


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


@cache
def read_errors_of_activities() -> dict[str, frozenset[str]]:
    """Return the errors that the docstring of each activity lists after `Raises:`, by the activity's name."""
    names = [module.name for module in pkgutil.walk_packages(activities.__path__, f"{activities.__name__}.")]
    classes = [kind for name in names for kind in vars(import_module(name)).values() if isinstance(kind, type)]
    return {
        str(definition.name): _parse_raises(inspect.getdoc(method) or "")
        for kind in classes
        for method in vars(kind).values()
        if callable(method) and (definition := activity._Definition.from_callable(method))  # noqa: SLF001 - the SDK has no public way
    }


def is_final_error(name: str) -> bool:
    """Return whether an error ends an activity at once."""
    return issubclass(getattr(errors, name), FINAL_ERRORS)


def _parse_raises(docstring: str) -> frozenset[str]:
    section = _PARAGRAPH_END.split(docstring.partition("Raises:")[2])[0]
    return frozenset(name for name in _ERROR_NAME.findall(section) if isinstance(getattr(errors, name, None), type))


def _build_contract(workflow: type) -> WorkflowContract:
    definition, module = _Definition.must_from_class(workflow), sys.modules[workflow.__module__]
    job = JOB_BY_NAME[str(definition.name)]
    raised = {error for name in job.activities for error in read_errors_of_activities()[name]}
    has_refusal = RequestRefusal in get_args(get_type_hints(job.result).get("refused"))
    refused = (raised & {*job.guards} or job.guards) if has_refusal else ()
    return WorkflowContract(
        name=job.name,
        ids=tuple(job.id(key) for key in job.keys),
        about=_summarize_module_docstring(module),
        takes=job.request,
        gives=job.result,
        fails=tuple(sorted({*job.failures, errors.InvalidInput.__name__})),
        retried=tuple(sorted(name for name in raised if not is_final_error(name))),
        refused=tuple(sorted(refused)),
        signals=_list_contract_calls(definition.signals),
        queries=_list_contract_calls(definition.queries),
        updates=_list_contract_calls(definition.updates),
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
