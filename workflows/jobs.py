"""A job as a program knows it that starts it or looks at it; `values.py` of its room has it with its input and result.

Neither imports an activity or a workflow, so that a program which only starts jobs loads none.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Request(Protocol):
    """The input of a job."""

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""


Q = TypeVar("Q", bound=Request)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Job(Generic[Q, R]):
    """A workflow, by its type's name."""

    name: str
    request: type[Q]
    result: type[R]
    keys: tuple[str, ...] = ("",)  # the forms of what `id` takes, with what varies in braces; "": none

    def id(self, *key: object) -> str:
        """`{name}/{key}`: one at a time of each key. Ids of topics and ledgers are never used again.

        A job without a key is one at a time of all: a schedule appends its time, and skips a run while one is at work.
        """
        return "/".join([self.name, *map(str, key)])
