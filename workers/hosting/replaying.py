"""A job's history against today's workflows, at full speed or under a debugger. No server and no activity is touched.

Under a debugger a workflow runs as plain code: outside the sandbox, in the main thread, with no limit of time for a
task. `breakpoint()` in workflow code stops there too.
"""

import asyncio
import inspect
import pdb  # noqa: T100 - what a person asks for who debugs
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.converter import DefaultFailureConverter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from logstore.errors import InvalidInput
from workers.client.payload_codec import data_converter
from workers.hosting.inputs import COMMAND_BY_WORKFLOW, CheckedPlainRunner, CheckedRunner
from workers.hosting.interceptors import WorkflowEdge
from workers.hosting.worker_sets import FAILURES, WORKFLOWS
from workers.settings import Settings

_MOST_SHOWN: Final = 200
_MESSAGE: Final = re.compile(r'message: "((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The outcome of a replay."""

    type: str
    run_id: str
    events: int
    failure: str | None = None  # None: the code of today went the way that is recorded
    nondeterministic: bool = False  # whether it went another way; otherwise the code failed by itself


def replay(history: WorkflowHistory, *, debug: bool = False, settings: Settings | None = None) -> Replayed:
    """Replay one run; a run that is not over is replayed as far as it came.

    Args:
        history: Of the run, from Temporal or from a file that Temporal's command or its Web UI wrote.
        debug: Whether the first line of the workflow's `run` stops in Python's debugger, on this process's terminal.
        settings: Say where the keys of encrypted payloads are; None: nowhere.

    Raises:
        InvalidInput: The history is none of a workflow of this build.
    """
    type_, run = _told_by(history)
    if debug:
        _stop_in(run)
    replayer = Replayer(
        workflows=WORKFLOWS,
        workflow_runner=CheckedPlainRunner() if debug else CheckedRunner(command_by_workflow=COMMAND_BY_WORKFLOW),
        workflow_failure_exception_types=FAILURES,
        data_converter=replace(  # what fails here is told on this terminal alone, and not encrypted for it
            data_converter(settings.payload_key_file if settings else "", defers=True),
            failure_converter_class=DefaultFailureConverter,
        ),
        interceptors=[WorkflowEdge()],
        debug_mode=debug,
    )
    fault = asyncio.run(replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    return Replayed(
        type=type_,
        run_id=history.run_id,
        events=len(history.events),
        failure=None if fault is None else _sentence(str(fault)),
        nondeterministic=isinstance(fault, NondeterminismError),
    )


def _sentence(fault: str) -> str:
    """The fault, without the structure of the SDK's core in which it is told."""
    found = _MESSAGE.search(fault)
    return found[1].replace('\\"', '"') if found else fault


def _told_by(history: WorkflowHistory) -> tuple[str, Callable[..., Any]]:
    """The workflow's type, and its method `run`."""
    first = history.events[0] if history.events else None
    if first is None or first.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        found = "no event" if first is None else EventType.Name(first.event_type)
        raise InvalidInput("history", expected="one that begins with the start of its workflow", found=found)
    name = first.workflow_execution_started_event_attributes.workflow_type.name
    for one in WORKFLOWS:
        defined = workflow._Definition.must_from_class(one)  # noqa: SLF001 - the SDK has no public way
        if defined.name == name:
            return name, defined.run_fn
    raise InvalidInput("history", expected="one of a workflow of this build", found=name[:_MOST_SHOWN])


class _Debugger(pdb.Pdb):
    """Python's debugger; to leave it means to let the replay go on, because what it interrupts would fail otherwise."""

    def do_quit(self, arg: str) -> bool | None:
        """Stop nowhere any more."""
        self.clear_all_breaks()
        self.message("The replay goes on to its end. Ctrl-C ends it.")
        return self.do_continue(arg)

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 - names of commands


def _stop_in(function: Callable[..., Any]) -> None:
    """Have the debugger stop at the first line of the function's body, once, in this thread."""
    code, debugger = inspect.unwrap(function).__code__, _Debugger()
    debugger.reset()
    refused = debugger.set_break(code.co_filename, code.co_firstlineno, temporary=True, funcname=code.co_name)
    if refused:
        raise InvalidInput("debug", expected="workflows whose source is there", found=refused)
    debugger.botframe = sys._getframe()  # noqa: SLF001 - as `set_trace` does, which would stop here
    debugger.set_continue()
    sys.settrace(debugger.trace_dispatch)
