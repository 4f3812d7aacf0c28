"""The contract of each workflow for programs in any language, read from the code that serves it.

Names, types and defaults are those of the values that the workflow takes and returns; bounds are those by which input
is refused; what a field means is the comment beside it; errors are those that its activities say they raise.
"""

import inspect
import re
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final, get_args, get_type_hints

from temporalio.workflow import _Definition

from activities.deletion.phase_two import delete_ledger_id
from logstore import errors
from logstore.deletion.intents import IntentKey, Refusal
from workers.hosting.interceptors import FINAL
from workers.hosting.worker_sets import WORKFLOWS
from workers.reference import failures
from workflows import limits
from workflows.delayed import values as delayed
from workflows.deletion import values as deletion
from workflows.jobs import Job
from workflows.offload import values as offload
from workflows.reconciliation import values as reconciliation
from workflows.records import values as records
from workflows.transactions import values as transactions

QUEUE: Final = "sexton"
"""The task queue where the setting `task_queue` names no other."""

_BESIDE: Final = re.compile(r"^    (\w+): .*?  # (.+)$")
_ABOVE: Final = re.compile(r"^    # (.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFacts:
    """One field of a value."""

    name: str
    kind: Any  # its type, as annotated
    default: Any  # `MISSING`: it must be given
    bounds: tuple[str, ...]  # as a refusal says them
    about: str  # "" where the name says all


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """A signal, a query or an update."""

    name: str
    takes: tuple[Any, ...]
    gives: Any  # None: nothing
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One workflow."""

    name: str
    ids: tuple[str, ...]
    about: str  # a paragraph
    takes: type
    gives: type
    fails: tuple[str, ...]  # types of errors that no attempt can help
    retried: tuple[str, ...]  # types of errors after which an activity is tried again
    refused: tuple[str, ...]  # types that `refused` in the result may have; the workflow completes
    signals: tuple[CallFacts, ...]
    queries: tuple[CallFacts, ...]
    updates: tuple[CallFacts, ...]


@cache
def contracts() -> tuple[Contract, ...]:
    """Of every workflow that workers serve, in their order."""
    return tuple(_contract(one) for one in WORKFLOWS)


def fields_of(kind: type) -> list[FieldFacts]:
    """The fields of a dataclass, in their order."""
    hints, told = get_type_hints(kind), _comments(kind)
    return [
        FieldFacts(
            name=one.name,
            kind=hints[one.name],
            default=one.default if one.default_factory is MISSING else one.default_factory(),
            bounds=tuple(rule.phrase for rule in limits.rules_of(kind, one.name, queue=QUEUE)),
            about=told.get(one.name, ""),
        )
        for one in fields(kind)
    ]


def jobs() -> dict[str, Job[Any, Any]]:
    """Every job that programs start, by its name."""
    rooms = (deletion, delayed, offload, reconciliation, records, transactions)
    return {one.name: one for room in rooms for one in vars(room).values() if isinstance(one, Job)}


def _contract(workflow: type) -> Contract:
    definition, module = _Definition.must_from_class(workflow), sys.modules[workflow.__module__]
    code = failures.reached(workflow)
    raised, guards = failures.raised(code), failures.guards(code)
    takes, gives = (definition.arg_types or [type(None)])[0], definition.ret_type or type(None)
    answers = Refusal in get_args(get_type_hints(gives).get("refused"))
    refused = (guards & raised or guards) if answers else set()
    fails = getattr(module, "FAILURES", _fails(workflow, refused))
    awaited = (_contract(one) for one in getattr(module, "AWAITED", ()))
    return Contract(
        name=str(definition.name),
        ids=_ids(str(definition.name)),
        about=_about(module),
        takes=takes,
        gives=gives,
        fails=tuple(sorted({*fails, *(name for one in awaited for name in one.fails), errors.InvalidInput.__name__})),
        retried=tuple(sorted(name for name in raised if not issubclass(failures.known(name), FINAL))),
        refused=tuple(sorted(refused)),
        signals=_calls(definition.signals),
        queries=_calls(definition.queries),
        updates=_calls(definition.updates),
    )


def _fails(workflow: type, refused: set[str]) -> set[str]:
    """What ends a run: failures of its own, what no guard looks at, and what a guard lets pass."""
    whole, unguarded = (failures.ending(workflow, guarded=one) for one in (True, False))
    raised = (failures.raised(whole) - refused) | failures.raised(unguarded, only_called=True)
    return {name for name in raised if issubclass(failures.known(name), FINAL)} | failures.said(whole)


def _ids(name: str) -> tuple[str, ...]:
    """The forms of a workflow's id.

    Raises:
        LookupError: No job has this name, and no other workflow starts one under a known id.
    """
    job = jobs().get(name)
    if job:
        return tuple(job.id(key) if key else job.id() for key in job.keys)
    if name != "delete-ledger":
        raise LookupError(f"workflow {name}: expected a job with an id, in one of the rooms that are read, found none")
    parts: dict[str, Any] = {part: f"{{{part}}}" for part in ("ledger_id", "copy", "generation", "openings")}
    return delete_ledger_id(IntentKey(**parts | {"openings": 0})), delete_ledger_id(IntentKey(**parts))


def _about(module: ModuleType) -> str:
    """The first two paragraphs of its text: what the job makes true, and what it destroys."""
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")[:2]
    first = paragraphs[0].partition(": ")[2]
    return " ".join(f"{first[:1].upper()}{first[1:]} {paragraphs[1]}".split())


def _calls(defined: Any) -> tuple[CallFacts, ...]:  # noqa: ANN401 - of three types of the SDK
    return tuple(
        CallFacts(
            name=name,
            takes=tuple(one.arg_types or ()),
            gives=getattr(one, "ret_type", None),
            about=(inspect.getdoc(one.fn) or "").partition("\n")[0],
        )
        for name, one in sorted(defined.items())
        if name
    )


@cache
def _comments(kind: type) -> dict[str, str]:
    """The comment beside each field of the class and of those above it."""
    told: dict[str, str] = {}
    for one in reversed([part for part in kind.__mro__ if is_dataclass(part)]):
        last = ""
        for line in inspect.getsource(one).splitlines():
            beside, more = _BESIDE.match(line), _ABOVE.match(line)
            if beside:
                last = beside[1]
                told[last] = beside[2]
            elif more and last:
                told[last] += f" {more[1]}"
            else:
                last = ""
    return told
