"""What one build wrote to Temporal, the next build reads, and writes alike.

`wire_formats.json` has one payload of each type that workflows and activities exchange, with every field filled, as the
release before wrote it. A job that runs during an upgrade carries such payloads from build to build.

If a type or a field is added, record them again with `python -m tests.replay.test_wire_formats`. Nothing that is there
may change: running jobs hold it.
"""

import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_json
from temporalio import activity, workflow

import activities
from workers.hosting.temporal_workers import WORKFLOWS

_FILE: Final = Path(__file__).with_name("wire_formats.json")


def _exchanged() -> Iterator[tuple[str, Any]]:
    """Each argument and result of a workflow, a query, a signal, an update or an activity, by its place."""
    for definition in map(workflow._Definition.must_from_class, WORKFLOWS):
        assert definition.arg_types
        yield f"{definition.name} run", definition.arg_types[0]
        yield f"{definition.name} result", definition.ret_type
        handlers: dict[str | None, Any] = {**definition.queries, **definition.updates, **definition.signals}
        for name, handler in handlers.items():
            for number, argument in enumerate(handler.arg_types or []):
                yield f"{definition.name} {name} {number}", argument
            if getattr(handler, "ret_type", None) is not None:
                yield f"{definition.name} {name} result", handler.ret_type
    for definition in _activities():
        for number, argument in enumerate(definition.arg_types or []):
            yield f"{definition.name} {number}", argument
        yield f"{definition.name} result", definition.ret_type


def _activities() -> Iterator[Any]:
    for module in pkgutil.walk_packages(activities.__path__, "activities."):
        for _, owner in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            for _, method in inspect.getmembers(owner, inspect.isfunction):
                definition = activity._Definition.from_callable(method)
                if definition:
                    yield definition


def _variants(hint: Any) -> list[Any]:
    """The types of which a value may be, without None."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(origin, "__value__"):
        return _variants(origin.__value__[arguments])
    if origin is typing.Annotated:
        return _variants(arguments[0])
    if origin in {typing.Union, types.UnionType}:
        return [variant for one in arguments for variant in _variants(one)]
    return [] if hint in {None, type(None)} else [hint]


def _example(hint: Any, name: str) -> Any:  # noqa: PLR0911 - one for each form of a type
    """A value of the type. Each field has another value, so that no field can be taken for another one."""
    origin: Any = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return _example(arguments[0], name)
    if origin in {typing.Union, types.UnionType}:
        return _example(_variants(hint)[0], name)
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(_example(one, name) for one in arguments if one is not Ellipsis)
    if origin is not None and issubclass(origin, Mapping):
        return {_example(arguments[0], f"{name}_key"): _example(arguments[1], name)}
    if parameters := getattr(origin, "__parameters__", ()):
        return _dataclass_example(origin, dict(zip(parameters, arguments, strict=True)))
    if origin is not None:
        return [_example(arguments[0], name)]
    if hasattr(hint, "__supertype__"):
        return _example(hint.__supertype__, name)
    return _plain_example(hint, name)


def _plain_example(hint: Any, name: str) -> Any:  # noqa: PLR0911 - one for each plain type
    if hint is bool:
        return True
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list(hint)[-1]
    if hint is int:
        return sum(map(ord, name)) % 89 + 1
    if hint is float:
        return 0.25
    if hint is str:
        return name
    if hint is Any or hint is object:
        return name
    if dataclasses.is_dataclass(hint):
        return _dataclass_example(hint, {})
    raise TypeError(f"{name}: no example of {hint}")


def _dataclass_example(chosen: Any, given: Mapping[Any, Any]) -> Any:
    hints = {field: given.get(hint, hint) for field, hint in typing.get_type_hints(chosen).items()}
    return chosen(**{field.name: _example(hints[field.name], field.name) for field in dataclasses.fields(chosen)})


def _record() -> dict[str, Any]:
    return {
        f"{place}#{number}" if number else place: json.loads(to_json(_example(variant, place)))
        for place, hint in _exchanged()
        for number, variant in enumerate(_variants(hint))
    }


_HINTS: Final = dict(_exchanged())


@pytest.mark.parametrize("place", sorted(json.loads(_FILE.read_text(encoding="utf-8"))) if _FILE.exists() else [])
def test_payloads_of_the_release_before_are_read_and_written_alike(place: str) -> None:
    """A field that is lost, renamed or moved would stop jobs that run during the upgrade, or make them forget."""
    payload = json.loads(_FILE.read_text(encoding="utf-8"))[place]
    value = TypeAdapter(_HINTS[place.partition("#")[0]]).validate_json(json.dumps(payload))
    assert json.loads(to_json(value)) == payload


def test_every_payload_is_recorded() -> None:
    """A new one too, by the change that adds it."""
    recorded = json.loads(_FILE.read_text(encoding="utf-8"))
    assert set(_record()) <= set(recorded)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_record(), indent=1, sort_keys=True) + "\n")
