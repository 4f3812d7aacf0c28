"""A store with a secret in every setting that takes one: nothing that it writes or shows has any of them."""

import asyncio
import base64
import os
import re
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import make_url
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.service import RPCError

from infra.stack.embedded_stack import StackAddresses
from infra.stack.stack_home import StackHome, read_live_workers
from tests.e2e.shell import Inside
from tests.faults.real_world import wait_until_true
from tests.postgres import PostgresServer, postgres
from tests.servers import create_store_settings
from tests.tls_servers import RecordingProxy, TemporalTlsProxy, TlsCertificateAuthority, TlsProxy
from tests.workflows.workflow_harness import assert_eventually
from tests.zookeeper_with_users import run_zookeeper_with_users
from workers.client import workflow_search
from workers.client.temporal_connection import connect_client
from workers.settings import Settings

__all__ = ["postgres"]

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(600)]
_TOPIC = "persistent://public/default/orders"
_PAGES = ("/readyz", "/metrics", "/status", "/status.json")


@pytest.fixture
def canaries() -> dict[str, str]:
    """A text of each secret that stands nowhere else, and of what jobs are told."""
    names = ("database", "zookeeper", "api-key", "wrong-database", "reason", "message")
    made = {name: f"canary-{secrets.token_hex(12)}" for name in names}
    return made | {"payload": base64.b64encode(secrets.token_bytes(32)).decode()}


_TOLD = {"reason", "message"}  # what is no secret, but stands in no history and on no wire
Wires = dict[str, RecordingProxy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A store of the test's own of which everything is secured that can be; each password is a service's own."""

    settings: Settings
    environ: dict[str, str]  # the settings as processes are told them: each secret in a file
    canaries: dict[str, str]
    wires: Wires


@pytest.fixture
def wires(
    servers: StackAddresses, postgres: PostgresServer, canaries: dict[str, str], tmp_path: Path
) -> Iterator[tuple[Wires, TlsCertificateAuthority, str]]:
    """Each service behind TLS that asks for our certificate where it can, and what could be read before it."""
    (tmp_path / "files").mkdir()
    authority = TlsCertificateAuthority(tmp_path / "files")
    pair, ours = authority.server(), authority.ca
    with (
        ExitStack() as ended,
        postgres.database() as name,
        run_zookeeper_with_users(sexton=canaries["zookeeper"]) as users,
    ):
        socket = make_url(postgres.url(name)).query["host"]
        fronts: dict[str, TlsProxy | TemporalTlsProxy] = {
            "temporal": TemporalTlsProxy(servers.temporal, pair, client_ca=ours, api_key=canaries["api-key"]),
            "database": TlsProxy(f"{socket}/.s.PGSQL.5432", pair, client_ca=ours),
            "s3": TlsProxy(servers.s3.removeprefix("http://"), pair),
            "zookeeper": TlsProxy(users, pair, client_ca=ours),
        }
        made = {service: RecordingProxy(front.address) for service, front in fronts.items()}
        for one in (*fronts.values(), *made.values()):
            ended.callback(one.close)
        yield made, authority, postgres.url(name)


@pytest.fixture
def secured(
    servers: StackAddresses, wires: tuple[Wires, TlsCertificateAuthority, str], canaries: dict[str, str], tmp_path: Path
) -> Secured:
    """By files alone."""
    found, authority, plain_url = wires
    files = tmp_path / "files"
    (files / "payload-keys").write_text(f"one {canaries['payload']}\n")
    (files / "api-key").write_text(canaries["api-key"])
    ours = authority.pair("ours", "sexton")
    trust = {"ca_file": str(authority.ca), "cert_file": str(ours.cert), "key_file": str(ours.key)}
    words = {"sslrootcert": str(authority.ca), "sslcert": str(ours.cert), "sslkey": str(ours.key)}
    host, _, port = found["database"].address.partition(":")
    url = make_url(plain_url).set(
        host=host, port=int(port), password=canaries["database"], query={"sslmode": "verify-full", **words}
    )
    settings = create_store_settings(servers, tmp_path / "home", database_url=plain_url).with_changes(
        database_url=url.render_as_string(hide_password=False),
        temporal_address=found["temporal"].address,
        temporal_namespace=f"secured-{secrets.token_hex(4)}",
        temporal_api_key_file=str(files / "api-key"),
        payload_key_file=str(files / "payload-keys"),
        s3_endpoint=f"https://{found['s3'].address}",
        s3_ca_file=str(authority.ca),
        ownership="zookeeper",
        zookeeper=found["zookeeper"].address,
        zookeeper_auth=f"sasl:sexton:{canaries['zookeeper']}",
        zookeeper_acl="creator",
        **{f"{service}_{name}": path for service in ("temporal", "zookeeper") for name, path in trust.items()},
        metrics_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        log_level="DEBUG",
    )
    told = settings.environment()
    for name in ("DATABASE_URL", "S3_ACCESS_KEY", "S3_SECRET_KEY", "ZOOKEEPER_AUTH"):
        path = files / name.lower()
        path.write_text(told.pop(f"SEXTON_{name}"))
        told[f"SEXTON_{name}_FILE"] = str(path)
    return Secured(settings=settings, environ=told, canaries=canaries, wires=found)


@pytest.fixture
def worker(secured: Secured) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of it, which writes its log into the home."""
    settings = secured.settings

    async def register() -> None:
        client = await connect_client(settings.model_copy(update={"temporal_namespace": "default"}))
        request = RegisterNamespaceRequest(
            namespace=settings.temporal_namespace, workflow_execution_retention_period=Duration(seconds=86_400)
        )
        await client.workflow_service.register_namespace(request)
        own = await connect_client(settings)

        async def registered() -> bool:
            with suppress(RPCError):
                await workflow_search.register_search_attributes(own)
                return not await workflow_search.find_missing_search_attributes(own)
            return False

        await assert_eventually(registered)

    asyncio.run(register())
    settings.home.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    with (settings.home / "worker.log").open("wb") as log:
        argv = [sys.executable, "-m", "workers", "worker", "run", "--worker-id", "w1"]
        made = subprocess.Popen(argv, env=inherited | secured.environ, stdout=log, stderr=log)
    yield made
    made.terminate()
    made.wait(60)


def _page(settings: Settings, path: str) -> tuple[int, str]:
    """Status and text; 0 where nobody answers yet."""
    for one in read_live_workers(StackHome.at(settings.home)):
        with suppress(urllib.error.URLError):
            try:
                with urllib.request.urlopen(one.http_url + path, timeout=20) as answer:  # noqa: S310 - our own worker
                    return answer.status, str(answer.read(), "utf-8")
            except urllib.error.HTTPError as refused:
                return refused.code, str(refused.read(), "utf-8")
    return 0, ""


def _commands(shell: Inside, said: pytest.CaptureFixture[str], canaries: dict[str, str]) -> Iterator[str]:
    """What commands say, those that fail as well."""
    reason, line = ("--reason", canaries["reason"]), f'{{"payload": "{canaries["message"]}"}}\n'
    wrong_url = f"postgresql+psycopg://me:{canaries['wrong-database']}@127.0.0.1:1/sexton"

    def run(*args: str, code: int | None = 0, stdin: str = "", of: Inside = shell) -> str:
        ended = of.run(*args, stdin=stdin)
        told = ended.stdout + ended.stderr + "".join(said.readouterr())
        assert code in {None, ended.returncode}, (args, told)
        return told

    yield run("topic", "create", _TOPIC)
    yield run("topic", "append", _TOPIC, "--file", "-", stdin=line)
    yield run("topic", "subscribe", _TOPIC, "s")
    yield run("topic", "ack", _TOPIC, "--subscription", "s", "--to", "0:0")
    yield run("topic", "roll", _TOPIC)
    yield run("topic", "trim", _TOPIC)
    yield run("topic", "append", _TOPIC, "--file", "-", stdin=line)
    ledger = str(shell.json("topic", "roll", _TOPIC)["closed"])
    assert shell.json("ledger", "delete", _TOPIC, ledger, "--force", *reason)["outcomes"] == {"DELETED": 1}
    yield run("config", "show") + run("config", "show", "--json")
    yield run("doctor", "--json", code=None) + run("status", code=None)
    other = shell.but(SEXTON_DATABASE_URL_FILE="", SEXTON_DATABASE_URL=wrong_url)
    yield run("doctor", "--json", code=None, of=other)
    yield run("topic", "list", code=None, of=other)
    yield run("topic", "list", code=None, of=other.but(SEXTON_DATABASE_URL=wrong_url.replace("+psycopg", "")))
    yield run("topic", "delete", f"{_TOPIC}-unknown", *reason, code=2)


def _large_jobs(shell: Inside, canaries: dict[str, str]) -> None:
    """A transaction that is committed, and jobs of Spark that read the catalog and every bucket."""
    txn = shell.json("txn", "begin")["txn"]
    line = f'{{"payload": "{canaries["message"]}"}}\n'
    shell.json("topic", "append", _TOPIC, "--file", "-", "--txn", txn, stdin=line)
    assert shell.json("txn", "commit", txn) == {"state": "COMMITTED"}
    (read,) = shell.json("topic", "read", _TOPIC)
    assert base64.b64decode(read["payload_b64"]).decode() == canaries["message"]
    assert shell.json("txn", "snapshot", _TOPIC)["topics"] == 1
    assert not any(shell.json("orphans", "plan")["findings"].values())


async def _histories(settings: Settings) -> list[str]:
    client = await connect_client(settings)
    query = f"TaskQueue = '{settings.task_queue}'"
    runs = [one async for one in client.list_workflows(query)]
    return [(await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()).to_json() for one in runs]


def _readable(text: str) -> str:
    """The text, and what stands in it as base64."""
    found = re.findall(r"[A-Za-z0-9+/]{16,}", text)
    decoded = (base64.b64decode(one[: len(one) // 4 * 4]) for one in found)
    return text + " ".join(one.decode("utf-8", "replace") for one in decoded)


def _processes(worker: subprocess.Popen[bytes]) -> dict[str, str]:
    """What anybody on the machine can read of the worker and its children, and their owner of their environments."""
    own = psutil.Process(worker.pid)
    found = [own, *own.children(recursive=True)]
    return {f"process {one.pid} {one.name()}": f"{one.cmdline()} {one.environ()}" for one in found}


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.all_faults)])
def test_no_secret_is_written_or_shown_anywhere_and_nothing_travels_in_plain(
    secured: Secured, worker: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str], *, thorough: bool
) -> None:
    """Logs, spans, histories, metrics, pages, `config show`, `doctor`, errors, processes, and every connection.

    Each of them has something to show. Thoroughly: with a transaction and jobs of Spark as well.
    """
    settings, canaries = secured.settings, secured.canaries
    asyncio.run(wait_until_true(lambda: _page(settings, "/readyz")[0] == 200, "the worker is ready"))
    shell = Inside(settings.home, **secured.environ)
    seen = {f"command {number}": told for number, told in enumerate(_commands(shell, capfd, canaries))}
    if thorough:
        _large_jobs(shell, canaries)
    seen["command last"] = str(shell.json("topic", "delete", _TOPIC, "--reason", canaries["reason"]))
    seen |= {path: _page(settings, path)[1] for path in _PAGES}
    assert all(seen[path] for path in _PAGES)
    seen |= _processes(worker)
    assert thorough == any("java" in name for name in seen)
    worker.terminate()
    assert worker.wait(60) == 0
    histories = {f"history {number}": told for number, told in enumerate(asyncio.run(_histories(settings)))}
    assert len(histories) >= 3
    files = [path for path in settings.home.rglob("*") if path.is_file()]
    seen |= {str(path): path.read_text("utf-8", "replace") for path in files}
    assert {"worker.log"} <= {path.name for path in files}
    assert any(path.is_relative_to(settings.traces_dir) for path in files), "spans"
    searched = canaries | {"s3": settings.s3_secret_key.get_secret_value()}
    hidden = {name: one for name, one in searched.items() if name not in _TOLD}
    assert _found(hidden, {where: _readable(told) for where, told in seen.items()}) == []
    assert _found(searched, {where: _readable(told) for where, told in histories.items()}) == []
    for service, wire in secured.wires.items():
        assert sum(len(answered) for _, answered in wire.heard) > 1_000, service
        assert wire.plain() == [], service
        heard = "".join(part.decode("latin-1") for pair in wire.heard for part in pair)
        assert _found(searched | {"topic": "public/default"}, {service: heard}) == []


def _found(searched: dict[str, str], told: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, where) for where, text in told.items() for name, one in searched.items() if one in text]
