"""`up down env status doctor demo config worker`."""

import os
import select
import shlex
from io import FileIO
from pathlib import Path

import pytest

from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.cli import output
from workers.cli.output import announce_steps
from workers.settings import SERVICE_SETTINGS


def test_env_exports_survive_the_shell(run: Run, services: FakeCommandServices) -> None:
    """A value with quotes and dollars comes out of `eval` as it went in; JSON has the same."""
    told = document(run("env", "--json"))
    words = [shlex.split(line) for line in run("env").stdout.splitlines()]
    assert {word[1].partition("=")[0]: word[1].partition("=")[2] for word in words} == told
    assert all(word[0] == "export" and len(word) == 2 for word in words)
    assert told["AWS_SECRET_ACCESS_KEY"] == "it's; rm -rf $HOME"
    assert told["SEXTON_PRIMARY_BUCKET"] == "sexton-primary"


def test_exports_of_env_are_services_that_another_home_does_not_take(run: Run) -> None:
    """Whatever `env` exports for Sexton itself says where services are, or is the home."""
    told = [name for name in document(run("env", "--json")) if name.startswith("SEXTON_")]
    assert {name.removeprefix("SEXTON_").lower() for name in told} - {"home"} <= SERVICE_SETTINGS


_TRUST = {
    "SEXTON_TEMPORAL_CA_FILE": "/etc/sexton/ca.pem",
    "SEXTON_TEMPORAL_CERT_FILE": "/etc/sexton/worker.pem",
    "SEXTON_TEMPORAL_KEY_FILE": "/etc/sexton/worker.key",
    "SEXTON_TEMPORAL_API_KEY": "key",
    "SEXTON_PAYLOAD_KEY_FILE": "/etc/sexton/payload-keys",
    "SEXTON_S3_CA_FILE": "/etc/sexton/ca.pem",
    "SEXTON_ZOOKEEPER_AUTH": "sasl:sexton:secret",
    "SEXTON_ZOOKEEPER_ACL": "creator",
    "SEXTON_ZOOKEEPER_TLS": "on",
}


def test_env_exports_files_of_tls_and_who_we_are(run: Run, services: FakeCommandServices) -> None:
    """For other tools by their own names, for Sexton by its own; nothing of it where nothing is given."""
    plain = document(run("env", "--json"))
    assert not {name for name in plain if "TLS" in name or "_CA_" in name or name in _TRUST}
    services.environ |= _TRUST
    told = document(run("env", "--json"))
    assert told == plain | _TRUST | {
        "TEMPORAL_TLS": "true",
        "TEMPORAL_TLS_SERVER_CA_CERT_PATH": "/etc/sexton/ca.pem",
        "TEMPORAL_TLS_CLIENT_CERT_PATH": "/etc/sexton/worker.pem",
        "TEMPORAL_TLS_CLIENT_KEY_PATH": "/etc/sexton/worker.key",
        "TEMPORAL_API_KEY": "key",
        "AWS_CA_BUNDLE": "/etc/sexton/ca.pem",
    }


def test_env_refuses_an_api_key_that_is_given_twice(run: Run, services: FakeCommandServices, tmp_path: Path) -> None:
    """As every command that reaches Temporal does, instead of telling one of the two keys."""
    file = tmp_path / "api-key"
    file.write_text("another\n")
    services.environ |= {"SEXTON_TEMPORAL_API_KEY": "key", "SEXTON_TEMPORAL_API_KEY_FILE": str(file)}
    assert "expected it or temporal_api_key, not both" in run("env").stderr


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_health_one_service_not_ok_exits_4(run: Run, services: FakeCommandServices, command: str) -> None:
    """The exit code tells whether all is well; rows are told either way."""
    services.health = [{"name": "temporal", "ok": True, "detail": "1.32"}]
    assert document(run(command, "--json")) == {"services": services.health}
    services.health = [*services.health, {"name": "s3", "ok": False, "detail": "no answer"}]
    assert document(run(command, "--json"), 4) == {"services": services.health}
    assert "no answer" in run(command).stdout


def test_up_flags_are_passed_on(run: Run, services: FakeCommandServices) -> None:
    """`--no-worker` and `--free-ports` reach the stack."""
    assert run("up", "--no-worker", "--free-ports").exit_code == 0
    assert services.calls[0][:3] == ("up", True, True)


def test_up_without_a_terminal_tells_each_step_in_a_line_as_it_begins(run: Run, services: FakeCommandServices) -> None:
    """A log of it shows what takes long; the answer stays the one document on stdout."""
    told = run("up", "--json")
    assert document(told)["worker_pids"] == [5]
    assert told.stderr.splitlines()[:3] == ["starting the stack", "noise of a library", "half way"]


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_up_on_a_terminal_shows_its_step_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second that other work gets before a bar is drawn; a terminal that draws no bars gets lines."""
    monkeypatch.setattr(output, "_BAR_DELAY_S", 1e6)
    monkeypatch.setenv("TERM", kind)
    ours, theirs = os.openpty()
    with open(theirs, "w", encoding="utf-8") as terminal, open(ours, "rb", buffering=0) as screen:  # noqa: PTH123
        monkeypatch.setattr("sys.stderr", terminal)
        with announce_steps("starting the stack") as say:
            assert _seen(screen, b"starting the stack")
            say("half way")
            assert _seen(screen, b"half way")
        monkeypatch.undo()


def _seen(screen: FileIO, text: bytes) -> bool:
    shown = b""
    while text not in shown:
        ready, _, _ = select.select([screen], [], [], 60)
        if not ready:
            return False
        shown += screen.read(4096)
    return True


def test_down_names_what_was_stopped(run: Run) -> None:
    """The contract's field."""
    assert document(run("down", "--json")) == {"stopped": ["temporal", "s3"]}


def test_demo_interrupted_says_what_became_of_its_own_home(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Temporal ends with it: nothing goes on there."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("/demo is removed, with what ran in it")

    monkeypatch.setattr(services, "demo", interrupted)
    told = document(run("demo", "--json"), 130)["error"]
    assert told == {"type": "Interrupted", "message": "interrupted: /demo is removed, with what ran in it"}


def test_demo_broken_promise_exits_1(run: Run) -> None:
    """The demo's verdict is its exit code."""
    assert document(run("demo", "--json"))["ok"] is True
    assert document(run("demo", "--topics", "1", "--json"), 1)["ok"] is False


def test_config_show_masks_secrets_and_tells_origins(run: Run, services: FakeCommandServices) -> None:
    """Neither key nor the database's password is shown."""
    services.environ["SEXTON_DATABASE_URL"] = "postgresql+psycopg://me:hunter2@host/db"
    result = run("config", "show", "--json")
    rows = {row["name"]: row for row in document(result)}
    assert "hunter2" not in result.output
    assert "rm -rf" not in result.output
    assert rows["database_url"]["value"] == "postgresql+psycopg://me:***@host/db"
    assert rows["s3_secret_key"]["origin"] == "environment SEXTON_S3_SECRET_KEY"
    assert rows["deletion_retry_interval"] == {"name": "deletion_retry_interval", "value": "10m", "origin": "default"}
    assert "hunter2" not in run("config", "show").output
    services.environ["SEXTON_DATABASE_URL"] = "postgresql+psycopg://host/db?user=me&password=hunter2"
    assert "hunter2" not in run("config", "show").output


def test_worker_run_serves_the_queues_named(run: Run, services: FakeCommandServices) -> None:
    """Queues and id are passed on; without any, the settings' queue."""
    run("worker", "run", "--queue", "a", "--queue", "b", "--worker-id", "w")
    assert document(run("worker", "run", "--json"))["queues"] == ["sexton"]
    assert services.calls == [("worker", ["a", "b"], "w"), ("worker", ["sexton"], None)]
