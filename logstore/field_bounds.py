"""Bounds of fields, as metadata of annotations. pydantic checks them for settings and for the input of jobs.

`Annotated[int, Between(1, 64)]` bounds every value. `FromOutside(bound)` bounds only input of a job that does not come
from another job: input from another job was checked before, perhaps by another build. Such input is validated with an
`OutsideInput` as context. Without this context, `FromOutside` accepts every value. Temporal's converter has no context,
so that it reads the input of every run, and the results of earlier builds.

Input beyond the bounds could make a job hang, or do something unintended.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from logstore.errors import InvalidInput
from logstore.log.ledgers import CopyKind
from logstore.ownership import check_worker_id
from logstore.reconciliation.spark_master_url import MASTER_FORMS, is_spark_master_url
from logstore.records.tombstone_rules import DeleteDurability
from logstore.validated_names import TopicName, check_audit_reason, check_producer_or_actor_name

if TYPE_CHECKING:  # tasks of bulk jobs import this module, and pydantic takes a tenth of a second
    from pydantic import GetCoreSchemaHandler
    from pydantic_core.core_schema import CoreSchema, ValidationInfo

MAX_INT: Final = 2**63 - 1
"""Highest number in a column of the catalog, inclusive."""

MAX_LEDGER_IDS: Final = 10_000
"""Maximum number of ids in one request. They take up to 200 KB of one workflow payload."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Condition of every value of a field."""

    expected: str  # text after "expected" in a refusal
    find_problem: Callable[[Any], str | None]  # returns the text after "expected" for a wrong value, otherwise `None`
    ge: int | None = None  # lowest allowed number
    le: int | None = None  # highest allowed number

    def or_nothing(self) -> "Bound":
        """Return a bound that also allows an empty value."""
        return Bound(f"{self.expected}; or nothing", lambda value: self.find_problem(value) if value else None)

    def check(self, value: Any) -> Any:  # noqa: ANN401 - of any field
        if problem := self.find_problem(value):
            from pydantic_core import PydanticCustomError  # noqa: PLC0415 - see above

            raise PydanticCustomError("out_of_bounds", "{expected}", {"expected": problem})
        return value

    def __get_pydantic_core_schema__(self, source: type, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        from pydantic_core import core_schema  # noqa: PLC0415 - see above

        return core_schema.no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True, slots=True)
class OutsideInput:
    """Context of the validation of input that does not come from another job."""

    task_queue: str  # of the job


@dataclass(frozen=True, slots=True)
class FromOutside:
    """Bound of input that does not come from another job. The bound may depend on the job's task queue."""

    bound: Bound | Callable[[str], Bound]

    def get_bound(self, task_queue: str) -> Bound:
        return self.bound if isinstance(self.bound, Bound) else self.bound(task_queue)

    def check(self, value: Any, info: "ValidationInfo") -> Any:  # noqa: ANN401 - of any field
        if isinstance(info.context, OutsideInput):
            return self.get_bound(info.context.task_queue).check(value)
        return value

    def __get_pydantic_core_schema__(self, source: type, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        from pydantic_core import core_schema  # noqa: PLC0415 - see above

        return core_schema.with_info_after_validator_function(self.check, handler(source))


def between(low: int, high: int = MAX_INT) -> Bound:
    """Return a bound of numbers. Both ends are allowed."""
    expected = f"{low:,} or more" if high == MAX_INT else f"{low:,} to {high:,}"
    return Bound(expected, lambda value: None if low <= value <= high else expected, low, high)


def bound_where(expected: str, allows: Callable[[Any], bool]) -> Bound:
    return Bound(expected, lambda value: None if allows(value) else expected)


def bound_from_check(check: Callable[[str], object]) -> Bound:
    """Return a bound of texts for which `check` raises no `InvalidInput`. A line break must be refused."""

    def find_problem(value: str) -> str | None:
        try:
            check(value)
        except InvalidInput as error:
            return error.expected
        return None

    return Bound(find_problem("\n") or "", find_problem)


def one_of(kinds: type[StrEnum]) -> Bound:
    return bound_where(f"one of {', '.join(kinds)}", lambda value: value in set(kinds))


def id_list(max_ids: int) -> Bound:
    return bound_where(
        f"1 to {max_ids:,} ids, each 0 or more",
        lambda ids: 0 < len(ids) <= max_ids and all(0 <= number <= MAX_INT for number in ids),
    )


# Bounds of settings, and of the fields of jobs that get the settings' values

DAY_S: Final = 86_400
MAX_DURATION_S: Final = 36_500 * DAY_S
"""Longest duration in seconds, inclusive."""

POSITIVE: Final = between(1)
MAX_INTERVAL_S: Final = 30 * DAY_S
INTERVAL_S: Final = between(0, MAX_INTERVAL_S)
DELETION_PARALLELISM: Final = between(1, 256)
DELETION_ATTEMPTS: Final = between(1, 1_000_000)
RETRY_INTERVAL_S: Final = between(0, MAX_INTERVAL_S)
ROWS_PER_CHUNK: Final = between(1, 1_000)  # all parallel chunks of a batch have no more rows together
UPLOAD_TIMEOUT_S: Final = between(1, DAY_S)
UPLOAD_PARALLELISM: Final = between(1, 64)
FUNCTION_NAME_FORM: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""Pattern of the name of a record function."""

# Fields of inputs of jobs

CatalogNumber = Annotated[int, FromOutside(between(0))]  # an id, a generation, an epoch, or a time in microseconds
LastVisitedId = Annotated[int, FromOutside(between(-1))]  # -1: none was visited
PageSize = Annotated[int, FromOutside(between(1, 1_000))]
Share = Annotated[float, FromOutside(between(0, 1))]
AgeS = Annotated[float, FromOutside(between(0, MAX_DURATION_S))]
PauseS = Annotated[float, FromOutside(INTERVAL_S)]
WatchS = Annotated[float, FromOutside(between(0, 3_600))]

_TOPIC_NAME: Final = bound_from_check(TopicName.from_encoded)
EncodedTopicName = Annotated[str, FromOutside(_TOPIC_NAME)]
EncodedTopicNameOrNothing = Annotated[str, FromOutside(_TOPIC_NAME.or_nothing())]
Actor = Annotated[
    str, FromOutside(bound_from_check(partial(check_producer_or_actor_name, "actor")).or_nothing())
]  # or nothing
Reason = Annotated[str, FromOutside(bound_from_check(check_audit_reason))]
WorkerIdOrNothing = Annotated[str, FromOutside(bound_from_check(check_worker_id).or_nothing())]

_MAX_BATCH_ID_CHARACTERS: Final = 200  # a workflow id, which also has the workflow's name, may have 255
_BATCH_ID: Final = bound_where(
    f"1 to {_MAX_BATCH_ID_CHARACTERS} printable characters",
    lambda value: 0 < len(value) <= _MAX_BATCH_ID_CHARACTERS and value.isprintable(),
)
BatchId = Annotated[str, FromOutside(_BATCH_ID)]
BatchIdOrNothing = Annotated[str, FromOutside(_BATCH_ID.or_nothing())]
_RUN_ID_FORM: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")  # part of the names of folders, workflows and batches
_RUN_ID: Final = bound_where(
    "1 to 64 of a-z, 0-9 and -, as `orphans plan` names it", lambda value: _RUN_ID_FORM.fullmatch(value) is not None
)
RunId = Annotated[str, FromOutside(_RUN_ID)]
RunIdOrNothing = Annotated[str, FromOutside(_RUN_ID.or_nothing())]

IdsOrNothing = Annotated[list[int], FromOutside(id_list(MAX_LEDGER_IDS).or_nothing())]
CopyName = Annotated[str, FromOutside(one_of(CopyKind))]
Durability = Annotated[str, FromOutside(one_of(DeleteDurability))]
SparkMasterOrNothing = Annotated[
    str, FromOutside(bound_where(f"{MASTER_FORMS}; or nothing", lambda url: not url or is_spark_master_url(url)))
]
