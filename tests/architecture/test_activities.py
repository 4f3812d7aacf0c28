"""Activities say why running them twice is safe."""

import ast
import re

import pytest
from temporalio import activity

from activities.deletion.ledger_deletion import LedgerDeletionActivities
from tests.architecture.source import FOLDERS, Function, Module, decorator, modules, named

_FUNCTIONS = [
    (module, node)
    for module in modules("activities")
    for node in module.functions
    if decorator(node, "define_activity")
]
_ACTIVITIES = [pytest.param(module, node, id=f"{module.where}:{node.name}") for module, node in _FUNCTIONS]


def test_activities_are_found() -> None:
    """An empty list would pass everything below."""
    assert len(_ACTIVITIES) >= 20


@pytest.mark.parametrize("module", [pytest.param(one, id=one.where) for one in modules(*FOLDERS)])
def test_activities_are_defined_in_one_way(module: Module) -> None:
    """None lets a cancellation be raised in its thread, which CPython 3.11 does not survive in `Thread.start`."""
    if module.where != "activities/heartbeats.py":
        assert "activity.defn" not in module.text


def test_a_defined_activity_has_no_cancellation_raised_in_its_thread() -> None:
    """What Temporal's worker reads of it."""
    found = activity._Definition.from_callable(LedgerDeletionActivities.detach)
    assert found is not None
    assert (found.name, found.is_async, found.no_thread_cancel_exception) == ("deletion.detach", False, True)


@pytest.mark.parametrize(("module", "activity"), _ACTIVITIES)
def test_activity_states_idempotency_and_errors(module: Module, activity: Function) -> None:
    """Each docstring has its fixed lines."""
    text = ast.get_docstring(activity) or ""
    for line in ("Idempotency: ", "Raises: "):
        assert re.search(rf"^{line}\S", text, re.MULTILINE), f"{module.where}: {activity.name} lacks `{line}…`"


@pytest.mark.parametrize(("module", "activity"), _ACTIVITIES)
def test_activity_has_an_explicit_name_and_one_argument(module: Module, activity: Function) -> None:
    """`capability.verb`, which a refactoring of the method does not change, and one dataclass in."""
    call = decorator(activity, "define_activity")
    assert call
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", named(call) or ""), f"{module.where}: {activity.name}"
    is_routed = "work_at_owner" in map(ast.unparse, activity.decorator_list)  # which passes the lease
    assert [part.arg for part in activity.args.args] == ["self", "request", *(["lease"] if is_routed else [])]
    assert activity.returns is not None


def test_no_two_activities_have_one_name() -> None:
    """A worker would serve only one of them."""
    names = [named(call) for _, node in _FUNCTIONS if (call := decorator(node, "define_activity"))]
    assert len(names) == len(_ACTIVITIES) == len(set(names))


@pytest.mark.parametrize(("module", "activity"), _ACTIVITIES)
def test_activity_gives_signs_of_life(module: Module, activity: Function) -> None:
    """A worker that is killed in it is noticed at the heartbeat, not at the end of the whole timeout."""
    beats = decorator(activity, "send_heartbeats") or "Heartbeat: " in (ast.get_docstring(activity) or "")
    assert beats, f"{module.where}: {activity.name}"
