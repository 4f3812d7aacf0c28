"""A short session on a throw-away stack, and what is refused in it."""

import base64
import json
import re
import subprocess
import sys
import urllib.request

import pytest

from tests.e2e.programs import http_address, run_console, run_session, send_requests
from tests.e2e.shell import ROOT, Inside, Shell
from tests.logstore.eventually import assert_eventually

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_200)]

_ODD = 'h\'o "m" ü ' + "x" * 110
_TOPIC = "persistent://public/default/orders"


def _lines(*payloads: str) -> str:
    return "".join(json.dumps({"payload": payload, "key": "k"}) + "\n" for payload in payloads)


def test_session_from_up_to_down_appends_reads_acknowledges_and_trims(shell: Shell) -> None:
    """What getting started shows, with `--json`; a start that fails half way is undone, `down` and `up` keep all."""
    (shell.folder / "sexton.toml").write_text("cursor_inline_bytes = 20\n")
    shell = shell.but(SEXTON_HOME=_ODD)
    inside = Inside(shell.folder, **shell.environ)
    elsewhere = shell.but(SEXTON_TEMPORAL_NAMESPACE="nowhere")
    assert "nowhere" in elsewhere.json("up", "--free-ports", code=4)["error"]["message"]
    assert shell.left_running() == []
    up = shell.json("up", "--free-ports")
    assert set(up) == {"temporal", "ui", "s3", "zookeeper", "database", "worker_pids", "home"}
    assert len(up["worker_pids"]) == 1
    elsewhere.json("up", "--free-ports", code=4)
    assert shell.json("up", "--free-ports") == up, "what ran before runs on, and up is idempotent"
    _be_scheduled(inside)
    _use(shell, inside)
    _be_measured(inside)
    _be_refused(inside)
    _transact(inside)
    _do_exactly_once(shell, inside)
    _deliver_later(shell, inside)
    _be_started(shell)
    _outgrow_and_describe(inside)
    kept = _be_deleted(inside)
    stopped = shell.json("down")["stopped"]
    assert {"temporal", "seaweedfs", "zookeeper"} <= set(stopped)
    assert shell.json("down") == {"stopped": []}
    assert shell.left_running() == []
    assert not all(service["ok"] for service in shell.json("status", code=4)["services"])
    shell.json("up", "--no-worker", "--free-ports")
    assert [entry["position"] for entry in shell.json("topic", "read", _TOPIC)] == [kept]
    shell.json("down")
    assert shell.left_running() == []


def _be_scheduled(shell: Shell) -> None:
    """`up` has applied the schedules, once."""
    rows = {row["id"]: row for row in shell.json("schedule", "list")}
    assert {name: (row["workflow"], row["interval_s"], row["paused"]) for name, row in rows.items()} == {
        "sexton-plan": ("reconcile-orphans", 86_400, False),
        "sexton-sweep": ("sweep-deletions", 60, False),
        "sexton-trim": ("trim-topics", 30 * 86_400, False),
        "sexton-transactions": ("sweep-transactions", 60, False),
        "sexton-delayed": ("seal-buckets", 60, False),
        "sexton-records": ("sweep-records", 60, False),
        "sexton-defragment": ("defragment-records", 3_600, False),
        "sexton-raid": ("raid-tombstones", 86_400, False),
    }


def _transact(shell: Shell) -> None:
    """Two topics and a subscription in one transaction; another one is aborted, and a third times out."""
    source, target = "persistent://public/default/paid", "persistent://public/default/shipped"
    for name in (source, target):
        shell.json("topic", "create", name)
    shell.json("topic", "subscribe", source, "shipping", "--from", "earliest")
    first = shell.json("topic", "append", source, "--file", "-", stdin=_lines("one", "two"))["first"]
    kept, gone = (shell.json("txn", "begin", "--timeout", "10m")["txn"] for _ in range(2))
    late = shell.json("txn", "begin", "--timeout", "1s")["txn"]
    for txn, payload in ((kept, "kept"), (gone, "gone")):
        shell.json("topic", "append", target, "--file", "-", "--txn", txn, stdin=_lines(payload))
    shell.json("topic", "ack", source, "--subscription", "shipping", "--position", first, "--txn", kept)
    conflict = ("topic", "ack", source, "--subscription", "shipping", "--position", first, "--txn", gone)
    assert shell.json(*conflict, code=3)["error"]["type"] == "AcknowledgementHeld"
    assert shell.json("topic", "read", target) == []
    assert len(shell.json("topic", "read", source, "--subscription", "shipping")) == 1
    assert shell.json("txn", "commit", kept) == {"state": "COMMITTED"}
    assert shell.json("txn", "abort", gone) == {"state": "ABORTED"}
    assert len(shell.json("topic", "read", target)) == 1
    assert shell.json("topic", "show", source)["subscriptions"][0]["backlog"] == 1
    assert shell.json("txn", "commit", gone, code=3)["error"]["type"] == "TransactionEnded"
    found = shell.json("txn", "show", kept)
    assert {(one["subscription"], one["how"]) for one in found["participants"]} == {
        (None, "MARKED"),
        ("shipping", "MARKED"),
    }
    assert_eventually(lambda: shell.json("txn", "show", late)["state"] == "ABORTED", within_s=60)
    assert shell.json("txn", "list") == []
    _acknowledge_past_an_abort(shell, source)


def _acknowledge_past_an_abort(shell: Shell, source: str) -> None:
    """A script that read past what a transaction held may not acknowledge all of it, until it reads again."""
    last = shell.json("topic", "append", source, "--file", "-", stdin=_lines("three", "four"))["last"]
    (held, *_, read) = shell.json("topic", "read", source, "--subscription", "shipping")
    assert (read["position"], read["releases"]) == (last, 0)
    given_back = shell.json("txn", "begin", "--timeout", "10m")["txn"]
    ack = ("topic", "ack", source, "--subscription", "shipping")
    shell.json(*ack, "--position", held["position"], "--txn", given_back)
    (*_, read) = shell.json("topic", "read", source, "--subscription", "shipping")
    assert shell.json("txn", "abort", given_back) == {"state": "ABORTED"}
    for said in ((), ("--releases", str(read["releases"]))):
        assert shell.json(*ack, "--to", last, *said, code=3)["error"]["type"] == "AcknowledgementStale"
    entries = shell.json("topic", "read", source, "--subscription", "shipping")
    assert [entries[0]["position"], entries[-1]["position"]] == [held["position"], last]
    assert shell.json(*ack, "--to", last, "--releases", str(entries[-1]["releases"]))
    assert shell.json("topic", "read", source, "--subscription", "shipping") == []


def _do_exactly_once(shell: Shell, inside: Shell) -> None:
    """The example consumes, transforms and produces; it is killed in the midst, and two of it run at once."""
    names = {name: f"persistent://shop/main/{name}" for name in ("paid", "shipped", "invoices")}
    for name in names.values():
        inside.json("topic", "create", name)
    inside.json("topic", "subscribe", names["paid"], "shipping", "--from", "earliest")
    payloads = [f"order {number}" for number in range(12)]
    inside.json("topic", "append", names["paid"], "--file", "-", stdin=_lines(*payloads))
    program = str(ROOT / "docs" / "examples" / "exactly_once.py")
    killed = subprocess.Popen(
        [sys.executable, program], cwd=shell.folder, env=shell.environ, stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout
    assert killed.stdout.readline().endswith("2 entries\n")
    killed.kill()
    killed.communicate()
    others = [
        subprocess.Popen([sys.executable, program], cwd=shell.folder, env=shell.environ, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [one.wait(120) for one in others] == [0, 0]
    wanted = sorted(payload.upper() for payload in payloads)
    for target in ("shipped", "invoices"):
        read = inside.json("topic", "read", names[target], "--max", "100")
        assert sorted(base64.b64decode(entry["payload_b64"]).decode() for entry in read) == wanted
    assert inside.json("topic", "read", names["paid"], "--subscription", "shipping") == []


def _deliver_later(shell: Shell, inside: Shell) -> None:
    """Reminders come when they are due; what is later is sealed, merged and cleared, and stays in the log."""
    name, year = "persistent://home/main/reminders", 2_000_000_000_000
    inside.json("topic", "create", name)
    inside.json("topic", "subscribe", name, "bell", "--from", "earliest")
    program = [sys.executable, str(ROOT / "docs" / "examples" / "delayed_delivery.py"), "2", "0", "1"]
    ended = subprocess.run(program, cwd=shell.folder, env=shell.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    told = [line.partition(": ")[2].split(", ") for line in ended.stdout.splitlines()]
    assert sorted(words for words, _ in told) == ["0 s have passed", "1 s have passed", "2 s have passed"]
    assert all(int(late.split()[0]) >= 0 for _, late in told)
    for at in range(2):
        line = json.dumps({"payload": f"later {at}", "deliver_at": year + at}) + "\n"
        inside.json("topic", "append", name, "--file", "-", stdin=line)
        assert inside.json("delayed", "seal", name)["messages"] == 1
    assert inside.json("topic", "read", name, "--subscription", "bell") == []
    found = inside.json("delayed", "status", name)
    assert [(one["messages"], one["state"]) for one in found["buckets"]] == [(1, "SEALED")] * 2
    assert inside.json("topic", "show", name)["delayed"] == {"messages": 2, "unsealed": 0, "buckets": 2}
    assert inside.json("delayed", "merge", name)["merges"] == 1
    assert inside.json("delayed", "clear", name, "--reason", "a test") == {"buckets": 1, "messages": 2}
    assert [one["state"] for one in inside.json("delayed", "status", name)["buckets"]] == ["OPEN"]
    refused = json.dumps({"payload": "x", "deliver_at": 10**15 // 10**3 * 250}) + "\n"
    assert (
        inside.json("topic", "append", name, "--file", "-", stdin=refused, code=2)["error"]["field"]
        == "line 1: deliver_at"
    )


def _be_deleted(shell: Shell) -> str:
    """A topic goes whole, and its name is free; where the one entry of the next one is."""
    told = shell.json("topic", "delete", _TOPIC, "--dry-run")
    components = ("MANAGED_CURSOR", "MANAGED_LEDGER", "SCHEMA_STORAGE")
    assert (told["ledgers"], told["subscriptions"]) == (dict.fromkeys(components, 1), 1)
    assert shell.json("topic", "delete", _TOPIC, "--reason", "a test")["outcomes"] == {"DELETED": 3}
    shell.json("topic", "delete", _TOPIC, code=2)
    assert shell.json("topic", "create", _TOPIC)["ledgers"] == 0
    return str(shell.json("topic", "append", _TOPIC, "--file", "-", stdin=_lines("v"))["first"])


def _use(shell: Shell, inside: Shell) -> None:
    """Run the commands of a reader of getting started. Then nothing but a later message is left."""
    run_console(shell, "docs/getting-started.md", "A first topic, a first trim")
    assert _inflight(inside) == (0, 0)
    appended = inside.json("topic", "append", _TOPIC, "--file", "-", stdin=_lines("c"))
    assert inside.json("topic", "trim", _TOPIC)["detached"] == 0, "nothing is acknowledged yet"
    rows = inside.json("topic", "read", _TOPIC, "--subscription", "billing")
    assert [row["position"] for row in rows] == [appended["first"]]


def _be_started(shell: Shell) -> None:
    """The guide's session prints what stands there; a job is started, and its result read, over plain HTTP."""
    guide = "docs/guides/programs.md"
    run_session(shell, guide)
    started, ended = send_requests(guide, http_address(shell.folder / _ODD))
    assert started["started"]
    (last,) = ended["history"]["events"]
    (result,) = last["workflowExecutionCompletedEventAttributes"]["result"]
    assert (result["failed"], result["topics"] > 0) == (0, True)


def _be_measured(shell: Shell) -> None:
    """`status` says where each worker shows its metrics: Temporal's own and ours, as the trims left them."""
    found = shell.json("status")["services"]
    assert all(service["ok"] for service in found)
    services = {service["name"]: service["detail"] for service in found}
    (url,) = re.findall(r"http://127\.0\.0\.1:[0-9]+/metrics", services["worker"])
    assert_eventually(lambda: _scraped(url)["sexton_deletion_estimated_inflight"] == 0, within_s=60)  # read every 15 s
    metrics = _scraped(url)
    _be_probed(services["worker"])
    builds = shell.json("worker", "builds")
    assert (builds["deployment"], builds["current"], builds["ramping"]) == ("e2e", builds["own"], None)
    assert services["deployment"] == f"e2e: {builds['own']} is current"
    assert shell.json("worker", "deploy", "--build-id", builds["own"])["current"] == builds["own"]
    assert metrics["temporal_workflow_completed"] >= 2
    assert metrics["temporal_activity_execution_latency_count"] > 0
    assert {"temporal_activity_schedule_to_start_latency_bucket", "temporal_worker_task_slots_available"} <= set(
        metrics
    )
    assert metrics["sexton_worker_ready"] == 1
    assert metrics["sexton_deletion_dead_lettered"] == 0
    (deleted,) = shell.json("deletion", "list")
    sums = ("ledgers_sent", "received", "ledgers_deleted", "acknowledged", "batches", "deleted_objects")
    assert {name: metrics[f"sexton_deletion_{name}_total"] for name in sums} == dict.fromkeys(sums[:5], 1) | {
        "deleted_objects": 2
    }, "one ledger of one segment, its statement, and nothing twice"
    assert metrics["sexton_deletion_deleted_bytes_total"] > deleted["size_bytes"] > 0
    told = shell.json("ledger", "explain", str(deleted["ledger_id"]))
    assert (told["state"], told["verdict"].endswith("confirmed by storage")) == ("DELETED", True)
    assert [one["reason"] for one in told["decisions"]] == ["end of day", "end of day"]


def _be_probed(worker: str) -> None:
    """It is ready, by its own word on each thing that it needs; its metrics are at the address of its probes too."""
    (probes,) = re.findall(r"(http://127\.0\.0\.1:[0-9]+)[,)]", worker)
    with urllib.request.urlopen(f"{probes}/readyz", timeout=60) as answer:  # noqa: S310 - of the stack that was just started
        said = json.load(answer)
    assert (said["ready"], said["phase"]) == (True, "serving")
    checks = ["worker", "temporal", "database", "primary bucket", "schedules"]
    assert [one["name"] for one in said["checks"] if one["ok"]] == checks
    assert _scraped(f"{probes}/metrics")["temporal_workflow_completed"] >= 2


def _scraped(url: str) -> dict[str, float]:
    """Metrics by name, summed over their labels."""
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - of the stack that was just started
        lines = str(answer.read(), "utf-8").splitlines()
    summed: dict[str, float] = {}
    for line in (one for one in lines if not one.startswith("#")):
        name = line.partition("{")[0]
        summed[name] = summed.get(name, 0) + float(line.rpartition(" ")[2])
    return summed


def _be_refused(shell: Shell) -> None:
    """A refusal has its exit code, and changes nothing."""
    before = (shell.json("topic", "show", _TOPIC), shell.json("ledger", "list", _TOPIC))
    opened = str(before[1][-1]["ledger_id"])
    bad = _lines("x") + "not json\n"
    assert "line 2" in shell.json("topic", "append", _TOPIC, "--file", "-", stdin=bad, code=2)["error"]["message"]
    shell.json("topic", "create", _TOPIC, code=3)
    shell.json("ledger", "delete", _TOPIC, opened, "--force", "--reason", "a test", code=3)
    assert (shell.json("topic", "show", _TOPIC), shell.json("ledger", "list", _TOPIC)) == before


def _outgrow_and_describe(shell: Shell) -> None:
    """A cursor whose state goes to a ledger, and to the next; a schema; and what is retired is deleted."""
    added = shell.json("topic", "append", _TOPIC, "--file", "-", stdin=_lines(*"abcdef"))
    ledger, first = (int(part) for part in added["first"].split(":"))
    for entry in (first + 3, first + 5):
        shell.json("topic", "ack", _TOPIC, "--subscription", "billing", "--position", f"{ledger}:{entry}")
    (cursor,) = shell.json("ledger", "list", _TOPIC, "--component", "MANAGED_CURSOR")
    assert cursor["keys"] == {"cursor": "billing"}
    read = shell.json("topic", "read", _TOPIC, "--subscription", "billing", "--from", added["first"])
    assert [entry["position"] for entry in read] == [f"{ledger}:{first + number}" for number in (0, 1, 2, 4)]
    schema = shell.json("topic", "schema", "set", _TOPIC, "--file", "-", stdin='{"type": "string"}')
    assert shell.run("topic", "schema", "show", _TOPIC).stdout == '{"type": "string"}'
    shell.json("topic", "trim", _TOPIC)
    retired = [one for one in shell.json("deletion", "list", "--topic", _TOPIC) if one["component"] == "MANAGED_CURSOR"]
    assert [one["ledger_id"] < cursor["ledger_id"] for one in retired] == [True]
    _wait_until_nothing_is_inflight(shell)  # the sweep may have come first
    listed = [one["ledger_id"] for one in shell.json("ledger", "list", _TOPIC)]
    assert {cursor["ledger_id"], schema["ledger_id"]} < set(listed)


def _inflight(shell: Shell) -> tuple[int, int]:
    """Deletions that are not confirmed, and dead letters."""
    found = shell.json("deletion", "inflight")
    return found["estimated_inflight"], found["dead_lettered"]


def _wait_until_nothing_is_inflight(shell: Shell) -> None:
    assert_eventually(lambda: _inflight(shell) == (0, 0))


def test_command_without_a_stack_says_what_to_do_and_exits_4(shell: Shell) -> None:
    """A service that cannot be reached is named, with what to try."""
    told = shell.json("topic", "trim", _TOPIC, code=4)["error"]["message"]
    assert "sexton up" in told
    assert shell.left_running() == []
