"""Definition of a job for programs that start or query it.

Each capability has its definitions, inputs and results in `job_definitions.py`. These modules import no activity and no
workflow. A program that only starts jobs therefore loads neither activities nor workflows.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class DescribedJobInput(Protocol):
    def details(self) -> str:
        """Describe the job and the command that shows the job's progress. The Web UI shows this text."""


Q = TypeVar("Q", bound=DescribedJobInput)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobDefinition(Generic[Q, R]):
    """Definition of a job: name, types of input and result, and forms of the workflow id."""

    name: str
    request: type[Q]
    result: type[R]
    keys: tuple[str, ...] = ("",)  # forms of the key in an id, with placeholders in braces; "": no key

    def id(self, *key: object) -> str:
        """Return the workflow id, `{name}/{key}`. At most one workflow per id runs at a time.

        A schedule appends the time of the start to the id of a job without a key. While an earlier run of the schedule
        is running, the schedule starts no other run.
        """
        return "/".join([self.name, *map(str, key)])
