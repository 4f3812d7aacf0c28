"""What the workers of one process serve belongs together."""

import ast
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
from temporalio import activity, workflow

from workers.assembly.activities import WorkerActivities
from workers.hosting.temporal_workers import WORKFLOWS
from workers.hosting.workflow_input_checks import COMMAND_BY_WORKFLOW
from workers.reference.reachable_errors import collect_reachable_code


def _name(function: object) -> str | None:
    definition = activity._Definition.from_callable(function) if callable(function) else None
    return definition.name if definition else None


def _asked_of_activities(kind: type) -> Iterator[str]:
    """Names of the activities that the code of a workflow mentions."""
    for module, piece in collect_reachable_code(kind):
        for node in ast.walk(piece):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = _name(getattr(getattr(module, node.value.id, None), node.attr, None))
                if name:
                    yield name


def _served() -> set[str]:
    """Names of all activities of a worker's services."""
    log = MagicMock()
    log.policies.flush_interval_s = 5.0
    return {name for method in WorkerActivities(log, MagicMock()).all() if (name := _name(method))}


@pytest.mark.parametrize("kind", WORKFLOWS, ids=lambda kind: kind.__name__)
def test_worker_has_the_activities_of_each_workflow_that_it_serves(kind: type) -> None:
    """A run whose activity nobody has would wait for ever: the worker refuses the workflows that commands host."""
    asked = set(_asked_of_activities(kind))
    name = str(workflow._Definition.must_from_class(kind).name)
    assert bool(asked - _served()) is (name in COMMAND_BY_WORKFLOW), asked - _served()
