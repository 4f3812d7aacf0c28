"""Who may import whom."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, modules

_VENDORS = {
    "logstore": {"pyarrow", "numpy", "pyroaring", "google"},  # google: protobuf
    "activities": {"temporalio", "pydantic", "typing_extensions", "activities", "logstore"},  # these say wire values
    "workflows": {"temporalio", "workflows", "activities", "logstore"},
}
_VENDORS["logstore"].add("logstore")
_CATALOG_VENDORS = _VENDORS["logstore"] | {
    "sqlalchemy",
    "sqlmodel",
    "alembic",
    "pydantic",
    "psycopg",
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "adbc_driver_sqlite",
}
_VENDORS_OF_MODULE = {
    "logstore/trace_id.py": {"opentelemetry"},
    "logstore/field_bounds.py": {"pydantic", "pydantic_core"},
}


def test_import_contracts_hold() -> None:
    """Layers import only the layers below them."""
    program = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("folder", _VENDORS)
def test_folder_imports_only_allowed_libraries(folder: str) -> None:
    """Whatever vendor comes next is refused too, for this is a list of what is allowed."""
    assert not [
        (module.where, name)
        for module in modules(folder)
        for name in module.imported
        if name.partition(".")[0] not in _allowed_libraries(folder, module.where)
    ]


def _allowed_libraries(folder: str, where: str) -> set[str]:
    vendors = _CATALOG_VENDORS if where.startswith("logstore/catalog/") else _VENDORS[folder]
    return {*vendors, *sys.stdlib_module_names, *_VENDORS_OF_MODULE.get(where, ())}


def test_migrations_import_nothing_that_changes() -> None:
    """What a migration did once it does for ever, whatever becomes of the code around it."""
    migrations = [one for one in modules("logstore") if "migrations/versions" in one.where]
    allowed = {"alembic", "sqlalchemy"} | sys.stdlib_module_names
    assert migrations
    imported = [(one.where, name) for one in migrations for name in one.imported]
    assert not [(where, name) for where, name in imported if name.partition(".")[0] not in allowed]


def test_client_loads_no_activity_no_workflow_and_no_worker() -> None:
    """A command that starts a job costs what it imports: names, ids and values are all that it needs of the job."""
    told = "import sys, workers.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {
        f"workflows.{name}"
        for name in ("job_definition", "jobs", "task_queues", "topic_build_types", "search_attributes")
    }
    files = {".".join(module.path.relative_to(ROOT).with_suffix("").parts) for module in modules("workflows")}
    values = {name for name in files if name.endswith((".job_definitions", ".__init__"))}
    refused = {"temporalio.worker", "temporalio.contrib.opentelemetry", "boto3", "pyarrow"} | files - values - wanted
    assert "workflows.job_definition" in loaded.split()
    assert not [name for name in loaded.split() if name in refused or name.startswith("activities")]


def test_modules_carry_no_vague_names() -> None:
    """A name says what a thing is for."""
    vague = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    assert not [module.where for module in modules() if vague & {*module.path.with_suffix("").parts}]
