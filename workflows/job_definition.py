"""Definition of a job: all that programs, schedules, the command line and the reference know of it.

Each capability has its definitions, inputs and results in `job_definitions.py`, and `workflows/jobs.py` lists all jobs.
These modules import no activity and no workflow. A program that only starts jobs therefore loads neither activities nor
workflows.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Protocol, TypeVar

from logstore.subjects import Subject


class DescribedJobInput(Protocol):
    def subject(self) -> Subject: ...
    def details(self) -> str:
        """Describe the job and the command that shows the job's progress. The Web UI shows this text."""


Q = TypeVar("Q", bound=DescribedJobInput)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSchedule:
    """Schedule that starts a job again and again. Its id is the actor of the runs."""

    id: str
    interval: str  # setting with the seconds between two runs; 0 turns the schedule off
    required_setting: str = ""  # setting without which the job is not scheduled
    fields: Mapping[str, object] = field(default_factory=dict)  # values of fields of the input
    setting_by_field: Mapping[str, str] = field(default_factory=dict)  # settings with values of fields of the input
    triggers_immediately: bool = False  # whether the first run starts at once, instead of after one interval


@dataclass(frozen=True, slots=True)
class JobDefinition(Generic[Q, R]):
    """Definition of a job: types, workflow id, summary, queue, schedule, activities and errors.

    `activities` and the errors are what `docs/reference/workflows.md` says. Tests compare them with the activities that
    runs schedule, and with the errors in the docstrings of these activities.
    """

    name: str
    request: type[Q]
    result: type[R]
    summary: Callable[[Q], str]  # one line about a run, for the Web UI
    keys: tuple[str, ...] = ("",)  # forms of the key in an id, with fields of the input in braces; "": no key
    choose_key: Callable[[Q], str] | None = None  # key of a run; None: `keys` has one form
    queue: Callable[[str], str] | None = None  # task queue in the input's field `queue`, from the workflow's task queue
    schedule: JobSchedule | None = None
    command: str = ""  # command that serves the workflow itself; empty: every worker serves it
    starts_jobs: bool = False  # whether the workflow starts other jobs
    advice_after_stop: str = ""  # what stays after a termination, and how to continue
    explains_waits: bool = False  # whether the progress says why the job waits for a person, or for a time
    activities: tuple[str, ...] = ()  # names of all activities that a run may schedule
    guards: Collection[str] = ()  # error types that end the job as refused, with the refusal in its result
    failures: tuple[str, ...] = ()  # error types that end the run as failed, besides `InvalidInput`
    handled_errors: tuple[str, ...] = ()  # final errors of activities that neither refuse the job nor end the run

    def id(self, *key: object) -> str:
        """Return the workflow id, `{name}/{key}`. At most one workflow per id runs at a time.

        A schedule appends the time of the start to the id of a job without a key. While an earlier run of the schedule
        is running, the schedule starts no other run.
        """
        return "/".join([self.name, *(str(part) for part in key if part != "")])

    def id_of_request(self, request: Q) -> str:
        if self.choose_key:
            return self.id(self.choose_key(request))
        (form,) = self.keys
        values: Any = {field.name: getattr(request, field.name) for field in fields(request)}  # type: ignore[arg-type]
        return self.id(form.format(**values))
