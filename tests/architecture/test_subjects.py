"""Requests and results name their subjects, which summaries, spans and search attributes show."""

import dataclasses
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from temporalio import activity, workflow

from activities.owner_routing import OwnerRoutedAnswer
from logstore.subjects import HasSubject
from tests.architecture.source import modules
from workers.hosting.temporal_workers import WORKFLOWS

_OUTCOME_FIELDS = {"outcome", "outcomes"}


def _activities() -> Iterator[Any]:
    for module in modules("activities"):
        name = ".".join(module.path.with_suffix("").parts[module.path.parts.index("activities") :])
        for _, kind in inspect.getmembers(import_module(name.removesuffix(".__init__")), inspect.isclass):
            yield from filter(activity._Definition.from_callable, filter(callable, vars(kind).values()))


_HINTS = [get_type_hints(function) for function in _activities()]
_WORKFLOWS = [workflow._Definition.must_from_class(kind) for kind in WORKFLOWS]
_INPUTS: set[Any] = {
    *(kind for hints in _HINTS for name, kind in hints.items() if name != "return"),
    *(kind for definition in _WORKFLOWS for kind in definition.arg_types or []),
}
_RESULTS: set[Any] = {
    *(hints["return"] for hints in _HINTS),
    *(
        kind
        for hints in _HINTS
        if get_origin(hints["return"]) is OwnerRoutedAnswer
        for kind in get_args(hints["return"])
    ),
    *(definition.ret_type for definition in _WORKFLOWS),
}


def test_inputs_are_found() -> None:
    """An empty list would pass everything below."""
    assert len(_INPUTS) > 80


@pytest.mark.parametrize("kind", sorted(_INPUTS, key=str))
def test_input_names_its_subject(kind: type) -> None:
    """An input about nothing in particular derives from `HasSubject` itself."""
    assert issubclass(kind, HasSubject)


def test_result_with_an_outcome_names_it() -> None:
    """Of a step as of a whole job."""
    kinds: list[Any] = [kind for kind in _RESULTS if dataclasses.is_dataclass(kind)]
    with_outcome = [kind for kind in kinds if _OUTCOME_FIELDS & {one.name for one in dataclasses.fields(kind)}]
    assert len(with_outcome) > 10
    assert not [kind for kind in with_outcome if not issubclass(kind, HasSubject)]
