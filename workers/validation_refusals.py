"""Refusals of values that pydantic finds invalid: of settings, and of the input of jobs."""

from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from logstore.errors import InvalidInput
from logstore.field_bounds import OutsideInput

_EXPECTED_BY_ERROR_TYPE: Final = {
    "unexpected_keyword_argument": "no field of this name",
    "extra_forbidden": "no field of this name",
    "dataclass_type": "one JSON object",
    "string_type": "text",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}


@lru_cache(maxsize=64)
def get_type_adapter(value_type: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a dataclass
    return TypeAdapter(value_type)


def require_valid_input(value: Any, task_queue: str) -> None:  # noqa: ANN401 - a dataclass
    """Raise `InvalidInput` if workers of `task_queue` would refuse the value as input of a job."""
    try:
        get_type_adapter(value.__class__).validate_python(asdict(value), context=OutsideInput(task_queue))
    except ValidationError as error:
        raise refusal_from_validation_error(error, "input") from error


def refusal_from_validation_error(error: ValidationError, subject: str) -> InvalidInput:
    """Return the refusal of the first problem. `subject` names the whole value, if the problem is in no field."""
    problem = error.errors(include_url=False)[0]
    kind, context = problem["type"], problem.get("ctx", {})
    path = ".".join(map(str, problem["loc"])) or subject
    if "missing" in kind:
        return InvalidInput(path, expected="a value", found=None)
    if kind == "json_invalid":
        return InvalidInput(path, expected="one JSON object", found=problem["msg"])
    expected = (
        _EXPECTED_BY_ERROR_TYPE.get(kind)
        or context.get("expected")  # of a bound, an enumeration or a literal
        or context.get("error")  # of a validator that raised a `ValueError`
        or problem["msg"].removeprefix("Input should be ").partition(",")[0]
    )
    return InvalidInput(path, expected=str(expected), found=problem["input"])
