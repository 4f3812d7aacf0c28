"""Replay of a job's history against the workflows of this build, with or without a debugger.

Under a debugger a workflow runs outside the sandbox, in the main thread, and its tasks have no timeout.
"""

import asyncio
import inspect
import pdb  # noqa: T100 - the command offers a debugger
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
from workers.client.data_converter import make_data_converter
from workers.hosting.error_and_subject_interceptors import WorkflowErrorAndSubjectInterceptor
from workers.hosting.temporal_workers import UNREADABLE_INPUT_ERRORS, WORKFLOWS
from workers.hosting.workflow_input_checks import COMMAND_BY_WORKFLOW, InputCheckingDebugRunner, InputCheckingRunner
from workers.settings import Settings

_MAX_NAME_CHARACTERS: Final = 200
_MESSAGE: Final = re.compile(r'message: "((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReplayResult:
    type: str
    run_id: str
    events: int
    failure: str | None = None  # None: the code of this build makes the same decisions
    nondeterministic: bool = False  # True: the code decides differently; False with a failure: the code raised an error


def replay_history(
    history: WorkflowHistory, *, debug: bool = False, settings: Settings | None = None
) -> HistoryReplayResult:
    """Replay one run. An unfinished run is replayed to the end of its history.

    Args:
        history: History from Temporal, or from a file that Temporal's command or Web UI wrote.
        debug: Stop in Python's debugger, on this process's terminal, at the first line of the workflow's `run`.
        settings: Settings with the keys of workflow payloads. `None` means no keys.

    Raises:
        InvalidInput: The history is not of a workflow of this build.
    """
    workflow_type, run = _find_workflow_of_history(history)
    if debug:
        _start_debugger_at(run)
    replayer = Replayer(
        workflows=WORKFLOWS,
        workflow_runner=InputCheckingDebugRunner()
        if debug
        else InputCheckingRunner(command_by_workflow=COMMAND_BY_WORKFLOW),
        workflow_failure_exception_types=UNREADABLE_INPUT_ERRORS,
        data_converter=replace(  # failures are shown on this terminal, so they are not encrypted
            make_data_converter(settings.payload_key_file if settings else "", defers_decryption_errors=True),
            failure_converter_class=DefaultFailureConverter,
        ),
        interceptors=[WorkflowErrorAndSubjectInterceptor()],
        debug_mode=debug,
    )
    fault = asyncio.run(replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    failure = None if fault is None else str(fault)
    if failure and (match := _MESSAGE.search(failure)):
        failure = match[1].replace('\\"', '"')
    return HistoryReplayResult(
        type=workflow_type,
        run_id=history.run_id,
        events=len(history.events),
        failure=failure,
        nondeterministic=isinstance(fault, NondeterminismError),
    )


def _find_workflow_of_history(history: WorkflowHistory) -> tuple[str, Callable[..., Any]]:
    first = history.events[0] if history.events else None
    if first is None or first.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        event = "no event" if first is None else EventType.Name(first.event_type)
        raise InvalidInput("history", expected="one that begins with the start of its workflow", found=event)
    name = first.workflow_execution_started_event_attributes.workflow_type.name
    for workflow_class in WORKFLOWS:
        definition = workflow._Definition.must_from_class(workflow_class)  # noqa: SLF001 - the SDK has no public way
        if definition.name == name:
            return name, definition.run_fn
    raise InvalidInput("history", expected="one of a workflow of this build", found=name[:_MAX_NAME_CHARACTERS])


class _NonAbortingDebugger(pdb.Pdb):
    """Python's debugger, but `quit` continues the replay, because an aborted replay would look like a failure."""

    def do_quit(self, arg: str) -> bool | None:
        self.clear_all_breaks()
        self.message("The replay goes on to its end. Ctrl-C ends it.")
        return self.do_continue(arg)

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 - names of commands


def _start_debugger_at(function: Callable[..., Any]) -> None:
    code, debugger = inspect.unwrap(function).__code__, _NonAbortingDebugger()
    debugger.reset()
    problem = debugger.set_break(code.co_filename, code.co_firstlineno, temporary=True, funcname=code.co_name)
    if problem:
        raise InvalidInput("debug", expected="workflows whose source is there", found=problem)
    debugger.botframe = sys._getframe()  # noqa: SLF001 - as in `pdb.set_trace`, which would stop in this function
    debugger.set_continue()
    sys.settrace(debugger.trace_dispatch)
