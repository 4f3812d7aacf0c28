"""A service that is away, or refuses us: exit 4, the service named, what to try, and no word of a library's."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.infra.objects.peer import Answer, fault, scripted
from workers.client import search_attributes
from workers.client.connections import connect_client
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


def _sexton(settings: Settings, *args: str, **changes: str) -> tuple[int, str, str]:
    """Exit code, what stdout says, and stderr."""
    told = {f"SEXTON_{name.upper()}": value for name, value in changes.items()}
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("sexton")), *args, "--json"],
        env={**os.environ, **settings.environment(), "SEXTON_METRICS_ADDRESS": "off", **told},
        cwd=settings.home,
        input='{"payload": "v"}\n',
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def filled(settings: Settings) -> Settings:
    """A topic with an entry, in a namespace that has our search attributes."""

    async def register() -> None:
        await search_attributes.register(await connect_client(settings))

    asyncio.run(register())
    assert _sexton(settings, "topic", "create", _TOPIC)[0] == 0
    code, _, said = _sexton(settings, *_APPEND)
    assert code == 0, said
    return settings


def _message(settings: Settings, args: tuple[str, ...], changes: Mapping[str, str]) -> str:
    code, told, said = _sexton(settings, *args, **changes)
    assert code == 4, (args, changes, told, said)
    assert not _FOREIGN.search(told + said), (args, changes, told, said)
    return str(json.loads(told)["error"]["message"])


def test_object_store_that_refuses_us_or_is_away_is_named_with_what_to_try(filled: Settings) -> None:
    """Wrong keys, no such bucket, a store that refuses everything, a page in its place, and nobody at all."""
    denied, page = fault(403, "AccessDenied"), Answer(200, b"<html>log in</html>")
    with scripted(lambda _: denied) as refusing, scripted(lambda _: page) as portal:
        table = {
            "check s3_access_key": {"s3_access_key": "NOBODY"},
            "check s3_access_key and": {"s3_secret_key": "wrong"},
            "create the bucket": {"primary_bucket": "no-such-bucket"},
            "check what the credentials may do": {"s3_endpoint": refusing.endpoint},
            "not the store's own": {"s3_endpoint": portal.endpoint},
            "nobody answers at http://127.0.0.1:1; see `sexton status`": {"s3_endpoint": "http://127.0.0.1:1"},
        }
        for number, (advice, changes) in enumerate(table.items()):
            said = _message(filled, _READ if number % 2 else _APPEND, changes)
            assert said.startswith("S3: "), said
            assert advice in said, said
            rows = _rows(filled, changes)
            assert advice in rows["object store"], rows
            assert rows["identity"].count("cannot be told") == 1, rows


def _rows(settings: Settings, changes: Mapping[str, str]) -> Mapping[str, str]:
    """What `doctor`, which says all that `status` does, tells of services that are not well."""
    code, told, said = _sexton(settings, "doctor", **changes)
    assert code == 4, said
    assert not _FOREIGN.search(told + said), (changes, told, said)
    return {row["name"]: row["detail"] for row in json.loads(told)["services"] if not row["ok"]}


@pytest.mark.parametrize("changes", [{"s3_secret_key": "wrong"}, {"primary_bucket": "no-such-bucket"}])
def test_worker_that_the_object_store_refuses_ends_at_once(filled: Settings, changes: dict[str, str]) -> None:
    """It could do nothing; one that starts while the store is away waits for it."""
    assert _message(filled, _WORKER, changes).startswith("S3: ")


def test_other_services_that_are_away_are_named_with_what_to_try(filled: Settings) -> None:
    """Temporal, ZooKeeper and the database, and other servers at their addresses."""
    other = filled.s3_endpoint.removeprefix("http://")
    folder = f"sqlite:///{filled.home}"
    nobody = "postgresql+psycopg://me@127.0.0.1:1/sexton"
    (filled.home / "text.db").write_text("no database at all, and long enough to be read as one" * 40)
    away = {"ownership": "zookeeper", "zookeeper": "127.0.0.1:1"}
    table: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
        ("temporal", "sexton up", _TRIM, {"temporal_address": "127.0.0.1:1"}),
        ("temporal", "sexton up", _WORKER, {"temporal_address": "127.0.0.1:1"}),
        ("temporal", "SEXTON_TEMPORAL_ADDRESS", _TRIM, {"temporal_address": other}),
        ("temporal", "namespace create nowhere", _TRIM, {"temporal_namespace": "nowhere"}),
        ("temporal", "namespace create nowhere", _WORKER, {"temporal_namespace": "nowhere"}),
        ("zookeeper", "sexton up", ("owners", "list"), away),
        ("zookeeper", "sexton up", _WORKER, away),
        ("zookeeper", "sexton up", ("owners", "list"), away | {"zookeeper": other}),
        *(("database", "SEXTON_DATABASE_URL", args, {"database_url": folder}) for args in (_APPEND, _WORKER)),
        *(("database", "SEXTON_DATABASE_URL", args, {"database_url": nobody}) for args in (_READ, _TRIM)),
        ("database", "catalog upgrade", _READ, {"database_url": f"{folder}/none.db"}),
        ("database", "SEXTON_DATABASE_URL", _READ, {"database_url": f"{folder}/text.db"}),
    ]
    for service, advice, args, changes in table:
        said = _message(filled, args, changes)
        assert said.startswith(f"{service}: "), said
        assert advice in said, said
    down = {"temporal_address": other, "database_url": nobody} | away
    assert set(_rows(filled, down)) >= {"temporal", "database", "zookeeper", "identity", "worker"}
