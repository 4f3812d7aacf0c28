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
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url

from infra.stack.home import StackHome
from infra.stack.stack import StackAddresses
from infra.stack.workers import live_workers
from tests.e2e.shell import Inside
from tests.faults.real import eventually
from tests.postgres import Postgres, postgres
from tests.servers import settings_on
from tests.tls import Authority, TemporalFront
from workers.client import search_attributes
from workers.client.connections import connect_client
from workers.settings import Settings

__all__ = ["postgres"]

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(600)]
_TOPIC = "persistent://public/default/orders"
_PAGES = ("/readyz", "/metrics", "/status", "/status.json")


@pytest.fixture
def canaries() -> dict[str, str]:
    """A text of each secret that stands nowhere else."""
    names = ("database", "zookeeper", "api-key", "wrong-database")
    made = {name: f"canary-{secrets.token_hex(12)}" for name in names}
    return made | {"payload": base64.b64encode(secrets.token_bytes(32)).decode()}


@pytest.fixture
def secured(
    servers: StackAddresses, postgres: Postgres, canaries: dict[str, str], tmp_path: Path
) -> Iterator[Settings]:
    """A store of the test's own behind TLS and an API key, with a password for each service."""
    files = tmp_path / "files"
    files.mkdir()
    authority = Authority(files)
    (files / "payload-keys").write_text(f"one {canaries['payload']}\n")
    (files / "api-key").write_text(canaries["api-key"])
    front = TemporalFront(servers.temporal, authority.server(), api_key=canaries["api-key"])
    with postgres.database() as name:
        url = make_url(postgres.url(name)).set(password=canaries["database"])
        yield settings_on(
            servers,
            tmp_path / "home",
            database_url=url.render_as_string(hide_password=False),
            temporal_address=front.address,
            temporal_ca_file=str(authority.ca),
            temporal_api_key_file=str(files / "api-key"),
            payload_key_file=str(files / "payload-keys"),
            zookeeper_auth=f"sasl:sexton:{canaries['zookeeper']}",
            metrics_address="127.0.0.1:0",
            http_address="127.0.0.1:0",
            log_level="DEBUG",
        )
    front.close()


@pytest.fixture
def worker(secured: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of it, which writes its log into the home."""

    async def register() -> None:
        await search_attributes.register(await connect_client(secured))

    asyncio.run(register())
    secured.home.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    with (secured.home / "worker.log").open("wb") as log:
        argv = [sys.executable, "-m", "workers", "worker", "run", "--worker-id", "w1"]
        made = subprocess.Popen(argv, env=inherited | secured.environment(), stdout=log, stderr=log)
    yield made
    made.terminate()
    made.wait(60)


def _page(settings: Settings, path: str) -> tuple[int, str]:
    """Status and text; 0 where nobody answers yet."""
    for one in live_workers(StackHome.at(settings.home)):
        with suppress(urllib.error.URLError):
            try:
                with urllib.request.urlopen(one.http_url + path, timeout=20) as answer:  # noqa: S310 - our own worker
                    return answer.status, str(answer.read(), "utf-8")
            except urllib.error.HTTPError as refused:
                return refused.code, str(refused.read(), "utf-8")
    return 0, ""


def _commands(settings: Settings, said: pytest.CaptureFixture[str], wrong_url: str) -> Iterator[str]:
    """What commands say, those that fail as well."""
    shell = Inside(settings.home, **settings.environment())

    def run(*args: str, code: int | None = 0, stdin: str = "", of: Inside = shell) -> str:
        ended = of.run(*args, stdin=stdin)
        told = ended.stdout + ended.stderr + "".join(said.readouterr())
        assert code in {None, ended.returncode}, (args, told)
        return told

    yield run("topic", "create", _TOPIC)
    yield run("topic", "append", _TOPIC, "--file", "-", stdin='{"payload": "v"}\n')
    yield run("topic", "subscribe", _TOPIC, "s")
    yield run("topic", "ack", _TOPIC, "--subscription", "s", "--to", "0:0")
    yield run("topic", "trim", _TOPIC)
    yield run("ledger", "delete", _TOPIC, "0", "--reason", "none", code=None)
    yield run("config", "show") + run("config", "show", "--json")
    yield run("doctor", "--json", code=None) + run("status", code=None)
    yield run("doctor", "--json", code=None, of=shell.but(SEXTON_DATABASE_URL=wrong_url))
    yield run("topic", "list", code=None, of=shell.but(SEXTON_DATABASE_URL=wrong_url))
    yield run("topic", "list", code=None, of=shell.but(SEXTON_DATABASE_URL=wrong_url.replace("+psycopg", "")))
    yield run("topic", "delete", f"{_TOPIC}-unknown", "--reason", "none", code=2)
    yield run("topic", "delete", _TOPIC, "--reason", "none")


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


def test_no_secret_is_written_or_shown_anywhere(
    secured: Settings,
    worker: subprocess.Popen[bytes],
    canaries: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Logs, spans, histories, metrics, pages, `config show`, `doctor`, errors; each of them has something to show."""
    asyncio.run(eventually(lambda: _page(secured, "/readyz")[0] == 200, "the worker is ready"))
    wrong = f"postgresql+psycopg://me:{canaries['wrong-database']}@127.0.0.1:1/sexton"
    seen = {f"command {number}": told for number, told in enumerate(_commands(secured, capfd, wrong))}
    seen |= {path: _page(secured, path)[1] for path in _PAGES}
    assert all(seen[path] for path in _PAGES)
    worker.terminate()
    assert worker.wait(60) == 0
    seen |= {f"history {number}": told for number, told in enumerate(asyncio.run(_histories(secured)))}
    files = [path for path in secured.home.rglob("*") if path.is_file()]
    seen |= {str(path): path.read_text("utf-8", "replace") for path in files}
    assert {"worker.log"} <= {path.name for path in files}
    assert any(path.is_relative_to(secured.traces_dir) for path in files), "spans"
    assert sum(name.startswith("history") for name in seen) >= 2
    searched = canaries | {"s3": secured.s3_secret_key.get_secret_value()}
    told = {where: _readable(text) for where, text in seen.items()}
    shown = [(name, where) for where, text in told.items() for name, one in searched.items() if one in text]
    assert shown == []
