"""Activities say why running them twice is safe."""

import ast
import re

import pytest

from tests.architecture.source import Function, Module, decorator, modules, named

_ACTIVITIES = [
    pytest.param(module, node, id=f"{module.where}:{node.name}")
    for module in modules("activities")
    for node in module.functions
    if decorator(node, "activity.defn")
]


def test_activities_are_found() -> None:
    """An empty list would pass everything below."""
    assert len(_ACTIVITIES) >= 8


@pytest.mark.parametrize(("module", "activity"), _ACTIVITIES)
def test_activity_states_idempotency_and_errors(module: Module, activity: Function) -> None:
    """Each docstring has its fixed lines."""
    text = ast.get_docstring(activity) or ""
    for line in ("Idempotency: ", "Raises: "):
        assert re.search(rf"^{line}\S", text, re.MULTILINE), f"{module.where}: {activity.name} lacks `{line}…`"


@pytest.mark.parametrize(("module", "activity"), _ACTIVITIES)
def test_activity_has_an_explicit_name_and_one_argument(module: Module, activity: Function) -> None:
    """`capability.verb`, which a refactoring does not change, and one dataclass in."""
    call = decorator(activity, "activity.defn")
    assert call
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", named(call) or ""), f"{module.where}: {activity.name}"
    assert (named(call) or "").rpartition(".")[2] == activity.name
    assert [part.arg for part in activity.args.args] == ["self", "request"]
    assert activity.returns is not None


@pytest.mark.parametrize(("module", "activity"), _ACTIVITIES)
def test_activity_gives_signs_of_life(module: Module, activity: Function) -> None:
    """A worker that is killed in it is noticed at the heartbeat, not at the end of the whole timeout."""
    beats = decorator(activity, "beating") or "Heartbeat: " in (ast.get_docstring(activity) or "")
    assert beats, f"{module.where}: {activity.name}"
