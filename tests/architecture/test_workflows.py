"""Workflow files have one fixed order of parts."""

import ast
import re

import pytest
from temporalio.common import VersioningBehavior
from temporalio.workflow import _Definition

from tests.architecture.source import ROOT, Module, decorator, modules, named
from workers.hosting.temporal_workers import WORKFLOWS
from workflows import search_attributes
from workflows.jobs import JOB_BY_NAME

_ROUTED = {"self._router.execute_at_owner"}


def _definitions(module: Module) -> list[ast.ClassDef]:
    return [node for node in module.tree.body if isinstance(node, ast.ClassDef) and decorator(node, "workflow.defn")]


_FILES = [pytest.param(module, id=module.path.stem) for module in modules("workflows") if _definitions(module)]


def test_activities_that_are_routed_are_served_by_owners() -> None:
    """One that no owner serves would be tried there for as long as its retries last."""
    calls = [node for part in _FILES for node in ast.walk(part.values[0].tree) if isinstance(node, ast.Call)]  # type: ignore[union-attr]
    routed = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) in _ROUTED}
    (serve,) = [
        node
        for module in modules("workers")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "list_owner_activities"
    ]
    served = {node.attr for node in ast.walk(serve) if isinstance(node, ast.Attribute)}
    assert routed
    assert {name.partition(".")[2] for name in routed} <= served


def test_workflows_are_found_and_hosted() -> None:
    """A workflow that no worker serves waits for ever."""
    in_source = {node.name for part in _FILES for node in _definitions(part.values[0])}  # type: ignore[arg-type]
    assert in_source == {workflow.__name__ for workflow in WORKFLOWS}


@pytest.mark.parametrize("module", _FILES)
def test_workflow_file_holds_one_workflow_of_its_own_name(module: Module) -> None:
    """`delete_ledger.py` defines `delete-ledger`, explicitly, in kebab case."""
    (definition,) = _definitions(module)
    call = decorator(definition, "workflow.defn")
    assert call
    assert named(call) == module.path.stem.replace("_", "-")
    assert definition.name == module.path.stem.title().replace("_", "")


@pytest.mark.parametrize("module", _FILES)
def test_workflow_docstring_tells_what_it_destroys_and_how_to_stop_it(module: Module) -> None:
    """What an operator asks first."""
    text = ast.get_docstring(module.tree) or ""
    assert text.startswith(f"`{module.path.stem.replace('_', '-')}`: ")
    for part in ("Destroys", "Invariant: ", "To stop it", "Source: "):
        assert part in text, f"{module.where} does not say `{part}…`"


@pytest.mark.parametrize("module", _FILES)
def test_workflow_file_keeps_the_fixed_order(module: Module) -> None:
    """Docstring, sandboxed imports, options as named values, the class."""
    (definition,) = _definitions(module)
    (imports,) = [node for node in module.tree.body if isinstance(node, ast.With)]
    assert ast.unparse(imports.items[0].context_expr) == "workflow.unsafe.imports_passed_through()"
    assert imports.lineno < definition.lineno


_WAITS = {f"workflow.{name}" for name in ("wait_condition", "wait", "sleep", "signal", "update")} | {
    "asyncio.sleep",
    "batches.start_batch",
    "batches.run_phase_two",
}


@pytest.mark.parametrize("module", _FILES)
def test_workflow_declares_its_versioning_and_is_pinned_only_if_it_waits_for_nobody(module: Module) -> None:
    """A pinned run keeps its build's workers: it awaits activities and children, no person, no batch and no time.

    One that does not declare it would keep versioned workers from starting.
    """
    (definition,) = _definitions(module)
    call = decorator(definition, "workflow.defn")
    assert call
    declared = {one.arg: ast.unparse(one.value) for one in call.keywords}.get("versioning_behavior")
    assert declared in {"VersioningBehavior.PINNED", "VersioningBehavior.AUTO_UPGRADE"}, module.where
    used = {ast.unparse(node) for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    if declared == "VersioningBehavior.PINNED":
        assert not used & _WAITS, f"{module.where} is pinned, and waits: {sorted(used & _WAITS)}"


def test_guide_names_every_workflow_by_whether_it_is_pinned() -> None:
    """An operator who takes a build back must know which runs stay on it."""
    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    for behaviour in (VersioningBehavior.PINNED, VersioningBehavior.AUTO_UPGRADE):
        heading = f"- **{behaviour.name.lower().replace('_upgrade', '-upgraded').capitalize()}** runs"
        item = guide.partition(heading)[2].partition("\n\n")[0].partition("\n- ")[0]
        declared = {
            one.name for one in map(_Definition.must_from_class, WORKFLOWS) if one.versioning_behavior is behaviour
        }
        assert set(re.findall(r"`([a-z-]+)`", item)) == declared


def test_jobs_are_what_workflows_take_and_answer() -> None:
    """Programs start a workflow by these names and types, and never import it."""
    hosted = {one.name: one for one in map(_Definition.must_from_class, WORKFLOWS)}
    assert {*hosted} == {*JOB_BY_NAME}
    for name, job in JOB_BY_NAME.items():
        assert (hosted[name].arg_types, hosted[name].ret_type) == ([job.request], job.result), name
        assert job.id("1", 2) == f"{name}/1/2"


@pytest.mark.parametrize("module", _FILES)
def test_workflow_file_defines_no_values(module: Module) -> None:
    """They live in `job_definitions.py`: the sandbox runs this file anew for each run, and its classes with it."""
    found = [node.name for node in module.tree.body if isinstance(node, ast.ClassDef) and decorator(node, "dataclass")]
    assert not found, f"{module.where}: {found} belong in job_definitions.py"


@pytest.mark.parametrize("module", _FILES)
def test_workflow_calls_activities_by_reference_with_named_options(module: Module) -> None:
    """No options inline, no names as strings, and a killed worker is noticed at the heartbeat."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "workflow.execute_activity_method":
            assert isinstance(node.args[0], ast.Attribute), f"{module.where}:{node.lineno}"
            assert [keyword.arg for keyword in node.keywords] == [None], f"{module.where}:{node.lineno}: inline options"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _ROUTED:
            assert isinstance(node.args[0], ast.Attribute), f"{module.where}:{node.lineno}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "workflow.ActivityConfig":
            given = {keyword.arg for keyword in node.keywords}
            needed = {"start_to_close_timeout", "heartbeat_timeout", "retry_policy"}
            assert needed <= given, f"{module.where}:{node.lineno}"


def test_workflows_read_no_clock_and_no_chance_of_their_own() -> None:
    """Replay must see what was: `workflow.now()`, `workflow.uuid4()`."""
    forbidden = {"time", "datetime.now", "random", "uuid", "os", "threading"}
    for module in modules("workflows"):
        assert not forbidden & {*module.imported}, module.where


def test_search_attributes_are_few_and_registered_in_one_list() -> None:
    """What an operator filters by."""
    keys = {
        name: value
        for name, value in vars(search_attributes).items()
        if name.isupper() and not name.startswith("_") and name != "ALL"
    }
    assert set(keys.values()) == set(search_attributes.ALL)
    assert all(key.name.startswith("Sexton") for key in search_attributes.ALL)
