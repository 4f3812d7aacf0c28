"""JSON discipline, exit codes, and options in any place."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from google.protobuf.any_pb2 import Any
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from logstore import errors
from logstore.catalog import Database
from logstore.deletion.retention import RetentionPolicy
from logstore.validated_names import TopicName
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices
from workers import VERSION, cli
from workers.cli.command_errors import ExitCode, classify_error, find_error_class, get_exit_code
from workers.cli.root_command import COMMANDS, import_command, import_group
from workers.hosting.error_and_subject_interceptors import to_application_error

ROOT = Path(__file__).resolve().parents[3]
_FORMS = [("--json", "topic", "list"), ("topic", "--json", "list"), ("topic", "list", "--json")]


@pytest.mark.parametrize("form", _FORMS)
def test_json_flag_in_any_place_gives_one_document(run: Run, form: tuple[str, ...]) -> None:
    """`--json` is taken before the command and after it."""
    assert document(run(*form)) == []


@pytest.mark.parametrize("form", [("--home", "h", "up"), ("up", "--home", "h"), ("--home", "g", "up", "--home", "h")])
def test_home_flag_in_any_place_is_the_home(run: Run, services: FakeCommandServices, form: tuple[str, ...]) -> None:
    """`--home` is taken in both places, and the inner one wins."""
    assert run(*form).exit_code == 0
    assert services.calls[0][3] == services.cwd / "h"


def test_json_output_of_a_noisy_command_is_one_document(run: Run) -> None:
    """Whatever a library prints goes to stderr."""
    result = run("up", "--json")
    assert document(result)["worker_pids"] == [5]
    assert "noise" in result.stderr


@pytest.mark.parametrize(
    ("raised", "code", "name"),
    [
        (errors.InvalidInput("topic", expected="a", found="b"), 2, "InvalidInput"),
        (errors.UnknownObject("topic", expected="a", found="b"), 2, "UnknownObject"),
        (errors.LedgerStillNeeded("needed"), 3, "LedgerStillNeeded"),
        (errors.Unsupported("later"), 3, "Unsupported"),
        (errors.StoreUnavailable("s3"), 4, "StoreUnavailable"),
        (errors.ServiceFailed("java", "absent", advice="install it"), 4, "ServiceFailed"),
        (errors.LookupRefused("zookeeper: refused; grant rights"), 4, "LookupRefused"),
        (ConnectionRefusedError("nobody"), 4, "ConnectionRefusedError"),
        (errors.MissingData("gone"), 1, "MissingData"),
        (OSError(28, "No space left on device"), 1, "OSError"),
        (ZeroDivisionError("ours"), 1, "ZeroDivisionError"),
    ],
)
def test_error_any_class_gives_its_code_and_document(
    run: Run, services: FakeCommandServices, raised: Exception, code: int, name: str
) -> None:
    """Every error leaves as its exit code, in JSON on stdout and as a line on stderr."""
    services.raised = raised
    result = run("down", "--json")
    told = document(result, code)["error"]
    assert (told["type"], told["message"]) == (name, str(raised))
    assert told.get("field") == ("topic" if code == 2 else None)
    assert "error: " in result.stderr
    assert ("Traceback" in result.stderr) == (name == "ZeroDivisionError")


def test_error_without_json_leaves_stdout_empty(run: Run, services: FakeCommandServices) -> None:
    """People read errors on stderr."""
    services.raised = errors.StoreUnavailable("[bold]s3[/bold]")
    result = run("down")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "[bold]s3[/bold]" in result.stderr


def test_interrupt_exits_130_without_traceback(run: Run, services: FakeCommandServices) -> None:
    """Ctrl-C is no failure of ours."""
    services.raised = KeyboardInterrupt()
    result = run("down", "--json")
    told = document(result, 130)["error"]
    assert (told["type"], told["message"].partition(":")[0]) == ("Interrupted", "interrupted")
    assert result.stderr.count("interrupted") == 1
    assert "Traceback" not in result.output
    assert "interrupted" in run("down").stderr


@pytest.mark.parametrize(
    "args",
    [
        ("topic", "show"),
        ("nonsense",),
        ("topic", "list", "--nonsense"),
        ("topic", "append", ORDERS_TOPIC),
        ("topic", "read", ORDERS_TOPIC, "--max", "0"),
        ("ledger", "delete", ORDERS_TOPIC, "x"),
        ("ledger", "delete", ORDERS_TOPIC, "-1"),
        ("deletion", "list", "--state", "GONE"),
        ("topic", "create", "nonsense"),
        ("topic", "create", ORDERS_TOPIC, "--retention", "-1s"),
        ("topic", "create", ORDERS_TOPIC, "--retention-bytes", "-1"),
    ],
)
def test_usage_error_with_json_is_a_document_and_code_2(
    run: Run, services: FakeCommandServices, args: tuple[str, ...]
) -> None:
    """What the parser refuses looks like any other bad input, and changes nothing."""
    assert document(run(*args, "--json"), 2)["error"]["message"]
    assert run(*args).exit_code == 2
    assert services.log.found == {}


def test_builds_of_no_deployment_are_refused_naming_the_setting(run: Run) -> None:
    """Without a deployment's name workers take no part in Worker Versioning, and nothing is asked of Temporal."""
    for args in (("worker", "deploy", "--build-id", "b"), ("worker", "builds")):
        assert document(run(*args, "--json"), 2)["error"]["field"] == "deployment_name"


def test_command_without_a_stack_says_what_to_try(run: Run, services: FakeCommandServices) -> None:
    """No stack, no guess at addresses: exit code 4 with advice."""
    services.environ.clear()
    for args in (("topic", "list"), ("workflow", "list"), ("env",), ("worker", "run")):
        assert "sexton up" in document(run(*args, "--json"), 4)["error"]["message"]


def test_command_with_a_database_of_its_own_needs_no_s3_address(run: Run, services: FakeCommandServices) -> None:
    """In production the bucket is at AWS and has no address to configure."""
    services.environ.pop("SEXTON_S3_ENDPOINT")
    services.environ["SEXTON_DATABASE_URL"] = "postgresql+psycopg://host/db"
    assert document(run("topic", "list", "--json")) == []
    assert "AWS_ENDPOINT_URL_S3" not in document(run("env", "--json"))


def test_command_that_opens_the_log_is_traced_once_by_its_name(run: Run, services: FakeCommandServices) -> None:
    """One span covers the command, whatever it opens."""
    run("topic", "create", ORDERS_TOPIC)
    services.calls.clear()
    run("--json", "topic", "trim", ORDERS_TOPIC)
    assert services.calls == [("traced", "sexton topic trim")]


@pytest.mark.parametrize(
    ("kind", "code"), [("LedgerStillNeeded", 3), ("DEAD_LETTERED", 5), ("StoreUnavailable", 4), ("Strange", 1)]
)
def test_failure_of_workflow_error_is_known_by_its_type(kind: str, code: int) -> None:
    """An error that crossed Temporal is recognised by its class name, however deep it is wrapped."""
    inner = ApplicationError("why", type=kind)
    outer = ApplicationError("what")
    outer.__cause__ = inner
    failure = classify_error(WorkflowFailureError(cause=outer))
    assert (failure.code, failure.type, failure.message) == (code, kind, "why")


def test_failure_of_bad_input_that_crossed_temporal_keeps_its_field() -> None:
    """As a detail of the failure, which the worker's edge adds: a message is for people."""
    refused = errors.UnknownObject("ledger", expected="a ledger of the topic", found=99)
    failure = classify_error(WorkflowFailureError(cause=to_application_error(refused)))
    assert (failure.code, failure.field) == (ExitCode.USAGE, "ledger")


def test_failure_of_workflow_that_gave_up_is_the_workflows_own_type() -> None:
    """What the workflow decided counts, not what its last activity failed with."""
    inner = ApplicationError("s3 is away", type="StoreUnavailable")
    outer = ApplicationError("attempts exhausted", type="DEAD_LETTERED")
    outer.__cause__ = inner
    assert classify_error(WorkflowFailureError(cause=outer)).code is ExitCode.PARTIAL


def test_failure_of_lost_temporal_is_unreachable() -> None:
    """Temporal's own errors tell a lost connection from a refusal."""
    lost = RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")
    absent = RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")
    assert (classify_error(lost).code, classify_error(absent).code) == (ExitCode.UNREACHABLE, ExitCode.FAILED)
    assert "connection refused" not in classify_error(lost).message


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED"])
def test_failure_of_temporal_outside_names_it_and_what_to_try_in_our_words(status: str) -> None:
    """No text of a transport reaches people."""
    failure = classify_error(RPCError("tonic::transport::Error(Transport, ...)", RPCStatusCode[status], b""))
    assert (failure.code, failure.type) == (ExitCode.UNREACHABLE, "ServiceFailed")
    assert failure.message.startswith("temporal: it ")
    assert "tonic" not in failure.message


def test_failure_of_missing_namespace_names_it() -> None:
    """A name that was mistyped is outside of us, and no fault of ours."""
    detail = Any()
    detail.Pack(NamespaceNotFoundFailure(namespace="nope"))
    raw = GrpcStatus(code=5, message="Namespace nope is not found.", details=[detail]).SerializeToString()
    failure = classify_error(RPCError("Namespace nope is not found.", RPCStatusCode.NOT_FOUND, raw))
    assert failure.code is ExitCode.UNREACHABLE
    assert "no namespace nope; correct SEXTON_TEMPORAL_NAMESPACE" in failure.message


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (
            RPCStatusCode.NOT_FOUND,
            errors.UnknownObject("workflow", expected="one that runs", found="x"),
            ExitCode.USAGE,
        ),
        (RPCStatusCode.NOT_FOUND, errors.PreconditionFailed("it ended"), ExitCode.REFUSED),
        (RPCStatusCode.CANCELLED, errors.ServiceFailed("worker", "silent", advice="start one"), ExitCode.UNREACHABLE),
    ],
)
def test_failure_of_ours_raised_from_temporals_is_ours(
    status: RPCStatusCode, error: errors.SextonError, code: ExitCode
) -> None:
    """What we made of Temporal's error says more than that error."""
    error.__cause__ = RPCError("workflow not found for ID", status, b"")
    failure = classify_error(error)
    assert (failure.code, failure.type, failure.message) == (code, type(error).__name__, str(error))


def test_error_named_every_class_of_ours_is_found() -> None:
    """No class of the tree is forgotten, and no other name is ours."""
    ours = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SextonError)]
    assert all(find_error_class(kind.__name__) is kind for kind in ours)
    assert find_error_class("ValueError") is None
    assert get_exit_code(errors.CatalogVersionMismatch) is ExitCode.REFUSED


def test_name_of_an_earlier_build_is_shown_harmless_and_still_found(run: Run, services: FakeCommandServices) -> None:
    """Control characters and markup in a name are shown, not obeyed; no new topic gets such a name."""
    name = "persistent://public/default/[red]\x1b[2J"
    assert run("topic", "create", name).exit_code == 2
    services.log.catalog.topics.create_topic(TopicName.parse_existing(name).encoded, RetentionPolicy())
    assert run("topic", "delete", name).exit_code == 0
    for form in ((), ("--wide",)):
        shown = run("topic", "list", *form).stdout
        assert r"[red]\x1b[2J" in shown
        assert "\x1b" not in shown


def test_registry_names_every_command_and_says_of_each_what_its_module_says() -> None:
    """The root's help is written from the table; a command that the table lacks could not be called."""
    folder = Path(cli.__file__).parent
    decorator = re.compile("^@command[(]", re.MULTILINE)
    files = [path for path in folder.rglob("*.py") if decorator.search(path.read_text("utf-8"))]
    defined = {".".join(path.relative_to(folder).with_suffix("").parts) for path in files}
    assert defined == {module for entry in COMMANDS.values() for module in (entry.module, *entry.other_modules)}
    for name, entry in COMMANDS.items():
        found = import_command(name)
        assert found.name == name
        first = " ".join((found.help or "").split())
        assert entry.group or first == entry.about
        assert first.startswith(entry.about.rstrip(".")), name
    single = {name for name, entry in COMMANDS.items() if entry.group}
    groups = {(entry.module, entry.group) for entry in COMMANDS.values() if entry.group}
    assert single == {name for each in groups for name in import_group(*each).list_commands(None)}


def test_root_help_shows_the_table(run: Run) -> None:
    """Each command with its line, in that order."""
    shown = run("--help").stdout
    places = [shown.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)


_LIGHT = {"asyncio", "rich", "pydantic", "sqlalchemy", "alembic", "boto3", "pyarrow", "numpy", "kazoo", "temporalio"}
_LIGHT |= {"opentelemetry", "importlib.metadata", "psycopg", "pyspark"}


@pytest.mark.parametrize("asked", ["--version", "--help"])
def test_version_and_help_import_nothing_but_the_parser(asked: str) -> None:
    """What a command needs is imported by that command."""
    assert not _LIGHT & _imported_by(asked)


_HEAVY = {
    "rich",
    "sqlmodel",
    "sqlalchemy.orm",
    "sqlalchemy.dialects.postgresql",
    "alembic",
    "boto3",
    "botocore",
    "pyarrow",
    "numpy",
    "pandas",
    "psycopg",
    "kazoo",
    "pyspark",
}


@pytest.mark.parametrize("asked", ["topic list", "deletion inflight", "audit list", "config show"])
def test_command_that_reads_sql_imports_neither_temporal_nor_a_store(tmp_path: Path, asked: str) -> None:
    """Nearly all that a command costs are its imports."""
    loaded = _imported_by(*asked.split(), "--json", home=_with_catalog(tmp_path))
    assert "sqlalchemy" in loaded
    assert not loaded & {
        *_HEAVY,
        "temporalio",
        "workers.assembly",
        "logstore.log.services",
        "logstore.catalog.log.group_commit",
    }


@pytest.mark.parametrize("asked", [f"topic trim {ORDERS_TOPIC}", "deletion sweep", "workflow list"])
def test_command_that_starts_a_workflow_imports_no_store(tmp_path: Path, asked: str) -> None:
    """It asks Temporal, and perhaps the catalog; the worker asks the stores."""
    home = _with_catalog(tmp_path)
    _imported_by("topic", "create", ORDERS_TOPIC, home=home)
    loaded = _imported_by(*asked.split(), "--json", home=home, code=4)  # there is no Temporal at that address
    assert "temporalio" in loaded
    assert not loaded & _HEAVY


def _with_catalog(home: Path) -> str:
    ports = {"temporal": 1, "s3": 1, "zookeeper": 1}
    (home / "ports.json").write_text(json.dumps(ports))
    database = Database(f"sqlite:///{home}/catalog.db")
    migrate_or_copy_catalog(database)
    database.close()
    return str(home)


def _imported_by(*args: str, home: str = "/nonexistent", code: int = 0) -> set[str]:
    """The modules that a process of its own has loaded when the command has ended."""
    program = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: sys.stderr.write('\\nLOADED ' + json.dumps(sorted(sys.modules))))\n"
        "from workers.cli import app\n"
        "app(sys.argv[1:])"
    )
    environ = {**os.environ, "SEXTON_HOME": home}
    argv = [sys.executable, "-c", program, *args]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)
    assert ended.returncode == code, ended.stderr
    return set(json.loads(ended.stderr.rpartition("LOADED ")[2]))


def test_version_is_that_of_the_package() -> None:
    """A constant, for to ask the package takes longer than the answer."""
    assert metadata.version("sexton") == VERSION


def test_help_and_start_load_no_vendor_sdk() -> None:
    """`sexton --help` stays quick: what commands need is imported by the command."""
    code = (
        "import sys; from workers.cli import app\n"
        "heavy = {'temporalio', 'pyarrow', 'boto3', 'sqlalchemy', 'pyspark', 'kazoo', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_version_is_printed(run: Run) -> None:
    """`--version` answers without a command."""
    assert run("--version").stdout.strip()
