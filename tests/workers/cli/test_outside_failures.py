"""A service that is away, or refuses us: exit 4, the service named, what to try, and no word of a library's."""

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.service import RPCError

from tests.e2e.shell import Inside
from tests.infra.objects.peer import Answer, fault, scripted
from tests.workflows.workflow_harness import assert_eventually
from workers.client import workflow_search
from workers.client.temporal_connection import connect_client
from workers.settings import Settings

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(600)]

_TOPIC = "persistent://public/default/orders"
_APPEND = ("topic", "append", _TOPIC, "--file", "-")
_READ = ("topic", "read", _TOPIC, "--from", "0:0")
_WORKER = ("worker", "run")
_TRIM = ("topic", "trim", _TOPIC)
_FOREIGN = re.compile(
    r"Traceback|KeyError|botocore|Could not connect|An error occurred|pydantic|validation error|sqlite3|sqlalchemy|"
    r"psycopg|tonic|transport error|os error|EndpointConnection|ClientError|KazooTimeout|HTTPConnection|Errno"
)


class _Sexton:
    """A command line with the settings of a test, and what it says when a service is away."""

    def __init__(self, settings: Settings, said: pytest.CaptureFixture[str]) -> None:
        self.settings = settings
        self._shell = Inside(settings.home, **{**settings.environment(), "SEXTON_METRICS_ADDRESS": "off"})
        self._said = said

    def run(self, *args: str, **changes: str) -> tuple[int, str, str]:
        """Exit code, what stdout says, and stderr."""
        shell = self._shell.but(**{f"SEXTON_{name.upper()}": value for name, value in changes.items()})
        self._said.readouterr()
        ended = shell.run(*args, "--json", stdin='{"payload": "v"}\n')
        return ended.returncode, ended.stdout, ended.stderr + "".join(self._said.readouterr())

    def refusal(self, args: tuple[str, ...], changes: Mapping[str, str]) -> str:
        """What it said when it could not reach a service, in no word of a library's."""
        code, told, said = self.run(*args, **changes)
        assert code == 4, (args, changes, told, said)
        assert not _FOREIGN.search(told + said), (args, changes, told, said)
        return told

    def rows(self, changes: Mapping[str, str]) -> Mapping[str, str]:
        """What `doctor`, which says all that `status` does, tells of services that are not well."""
        found = json.loads(self.refusal(("doctor",), changes))["services"]
        return {row["name"]: row["detail"] for row in found if not row["ok"]}

    def message(self, args: tuple[str, ...], changes: Mapping[str, str]) -> str:
        """The one sentence of a refusal."""
        return str(json.loads(self.refusal(args, changes))["error"]["message"])


@pytest.fixture
def filled(settings: Settings, capfd: pytest.CaptureFixture[str]) -> _Sexton:
    """A topic with an entry, in a namespace that has our search attributes."""

    async def register() -> None:
        await workflow_search.register_search_attributes(await connect_client(settings))

    asyncio.run(register())
    found = _Sexton(settings, capfd)
    assert found.run("topic", "create", _TOPIC)[0] == 0
    code, _, said = found.run(*_APPEND)
    assert code == 0, said
    return found


def test_object_store_that_refuses_us_or_is_away_is_named_with_what_to_try(filled: _Sexton) -> None:
    """Wrong keys, no such bucket, a store that refuses everything, a page in its place, and nobody at all."""
    denied, page = fault(403, "AccessDenied"), Answer(200, b"<html>log in</html>")
    with scripted(lambda _: denied) as refusing, scripted(lambda _: page) as portal:
        table = {
            "check s3_access_key": {"s3_access_key": "NOBODY"},
            "check s3_access_key and": {"s3_secret_key": "wrong"},
            "create the bucket": {"primary_bucket": "no-such-bucket"},
            "check what the credentials may do": {"s3_endpoint": refusing.endpoint},
            "not the store's own": {"s3_endpoint": portal.endpoint},
            "nobody answers at http://127.0.0.1:1; run `sexton up`": {"s3_endpoint": "http://127.0.0.1:1"},
        }
        for number, (advice, changes) in enumerate(table.items()):
            said = filled.message(_READ if number % 2 else _APPEND, changes)
            assert said.startswith("S3: "), said
            assert advice in said, said
            rows = filled.rows(changes)
            assert advice in rows["object store"], rows
            assert rows["identity"].count("cannot be told") == 1, rows


@pytest.mark.parametrize("changes", [{"s3_secret_key": "wrong"}, {"primary_bucket": "no-such-bucket"}])
def test_worker_that_the_object_store_refuses_ends_at_once(filled: _Sexton, changes: dict[str, str]) -> None:
    """It could do nothing; one that starts while the store is away waits for it."""
    assert filled.message(_WORKER, changes).startswith("S3: ")


def test_namespace_without_our_search_attributes_is_named_with_what_creates_them(filled: _Sexton) -> None:
    """Its server refuses a start, and a query, in sentences of its own; what our sentence advises mends both."""
    bare = {"temporal_namespace": f"bare-{uuid.uuid4().hex[:8]}"}
    asyncio.run(_create_namespace(filled.settings, bare["temporal_namespace"]))
    for args in (_TRIM, ("workflow", "list", "--topic", _TOPIC)):
        said = filled.message(args, bare)
        assert said.startswith("temporal: the namespace lacks our search attributes; run `temporal operator "), said
        assert "--name SextonTopic --type Keyword --name SextonLedgerId --type Int" in said, said


async def _create_namespace(settings: Settings, name: str) -> None:
    """A namespace that the server serves, with none of our search attributes."""
    kept = Duration(seconds=86_400)
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=kept)
    await (await connect_client(settings)).workflow_service.register_namespace(request)
    client = await connect_client(settings.model_copy(update={"temporal_namespace": name}))

    async def served() -> bool:
        with suppress(RPCError):
            return [one async for one in client.list_workflows()] == []
        return False

    await assert_eventually(served)


def test_other_services_that_are_away_are_named_with_what_to_try(filled: _Sexton) -> None:
    """Temporal, ZooKeeper and the database, and other servers at their addresses."""
    other = filled.settings.s3_endpoint.removeprefix("http://")
    folder = f"sqlite:///{filled.settings.home}"
    nobody = "postgresql+psycopg://me@127.0.0.1:1/sexton"
    (filled.settings.home / "text.db").write_text("no database at all, and long enough to be read as one" * 40)
    away = {"ownership": "zookeeper", "zookeeper": "127.0.0.1:1"}
    table: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
        ("temporal", "sexton up", _TRIM, {"temporal_address": "127.0.0.1:1"}),
        ("temporal", "sexton up", _WORKER, {"temporal_address": "127.0.0.1:1"}),
        ("temporal", "SEXTON_TEMPORAL_ADDRESS", _TRIM, {"temporal_address": other}),
        ("temporal", "namespace create nowhere", _TRIM, {"temporal_namespace": "nowhere"}),
        ("temporal", "namespace create nowhere", _WORKER, {"temporal_namespace": "nowhere"}),
        ("zookeeper", "sexton up", ("owners", "list"), away),
        ("zookeeper", "cannot be reached at 127.0.0.1:1", _WORKER, away),
        ("zookeeper", "sexton up", ("owners", "list"), away | {"zookeeper": other}),
        *(("database", "SEXTON_DATABASE_URL", args, {"database_url": folder}) for args in (_APPEND, _WORKER)),
        *(("database", "SEXTON_DATABASE_URL", args, {"database_url": nobody}) for args in (_READ, _TRIM)),
        ("database", "catalog upgrade", _READ, {"database_url": f"{folder}/none.db"}),
        ("database", "SEXTON_DATABASE_URL", _READ, {"database_url": f"{folder}/text.db"}),
    ]
    for service, advice, args, changes in table:
        said = filled.message(args, changes)
        assert said.startswith(f"{service}: "), said
        assert advice in said, said
    down = {"temporal_address": other, "database_url": nobody} | away
    assert set(filled.rows(down)) >= {"temporal", "database", "zookeeper", "identity", "worker"}
