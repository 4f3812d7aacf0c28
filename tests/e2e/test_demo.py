"""The demo is the end-to-end test: one command, every promise checked from outside, nothing left behind."""

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.shell import Shell
from tests.faults.real_world import MAX_STOP_S
from tests.logstore.eventually import assert_eventually

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill, pytest.mark.timeout(1_200)]

_WITHIN_S = 400.0  # on a busy machine, where a process alone takes a minute to start
_SMALL = ("demo", "--topics", "3", "--ledgers", "4")

_ELSEWHERE = {
    "SEXTON_HOME": "/nowhere",
    "SEXTON_TEMPORAL_ADDRESS": "127.0.0.1:1",
    "SEXTON_TEMPORAL_NAMESPACE": "production",
    "SEXTON_DATABASE_URL": "postgresql+psycopg://127.0.0.1:1/production",
    "SEXTON_S3_ENDPOINT": "http://127.0.0.1:1",
    "SEXTON_ZOOKEEPER": "127.0.0.1:1/production",
    "SEXTON_PRIMARY_BUCKET": "production",
}
"""What a shell may have exported: the demo works on servers of its own, whatever it says."""

_LYING_BUILD = '''
"""A build whose deletes say yes and do nothing, that accepts every lease, and whose merges lose a message.

It is found by every process started here.
"""
from logstore.catalog.ownership import fences
from logstore.delayed.services import bucket_merger
from logstore.deletion.services import primary_copies
from logstore.ports.object_storage import DeleteReport


def lie(objects, copies, keys, on_progress):
    return DeleteReport(deleted={key for copy in copies for key in keys(copy)})


def lose(sources, *, from_ms, on_skipped, whole=bucket_merger.merge_sorted_sources):
    for window in whole(sources, from_ms=from_ms, on_skipped=on_skipped):
        on_skipped(window.slice(len(window) - 1, len(window)))
        yield window.slice(0, len(window) - 1)


primary_copies.delete_keys_of_copies = lie
bucket_merger.merge_sorted_sources = lose
fences.lock_fence_of_lease = lambda connection, lease: None
'''


def test_demo_keeps_every_promise_and_leaves_nothing_behind(shell: Shell) -> None:
    """A worker is killed in phase two and every detached ledger is gone all the same (apache/pulsar#13526)."""
    (shell.folder / "sexton.toml").write_text('zookeeper = "127.0.0.1:1"\nzookeeper_auth = "digest:of:others"\n')
    report = shell.but(**_ELSEWHERE).json(*_SMALL)
    assert report["ok"]
    assert [one["promise"][0] for one in report["promises"]] == ["1", "2", "3", "4", "5", "6", "7", "8"]
    assert all(one["ok"] for one in report["promises"]), report
    assert report["orphans"]["ok"], report
    assert report["flipped_bits"]["ok"], report
    assert "3 times refused" in report["flipped_bits"]["seen"]
    assert report["topics"] == 3
    assert report["ledgers"] == 12
    assert report["detached"] == report["ledgers"] - report["kept"]
    assert report["deleted"] == report["detached"] - 1 > 0  # one is refused: somebody else's object lies in it
    assert shell.left_running() == []
    assert shell.left_on_disk() == ["sexton.toml"]


def test_demo_that_is_asked_to_end_twice_leaves_nothing_behind(shell: Shell) -> None:
    """It is asked again while it cleans up, and a server and a worker are only just being started."""
    demo = shell.start(*_SMALL)
    assert_eventually(lambda: [*shell.folder.glob("sexton-demo-*/pids/worker-1.json")], within_s=_WITHIN_S)
    for number in (signal.SIGINT, signal.SIGTERM):
        demo.send_signal(number)
    assert demo.wait(MAX_STOP_S) == 130
    assert shell.left_running() == []
    assert shell.left_on_disk() == []


@pytest.mark.all_faults  # a second demo is as long as the first
def test_demo_of_a_build_that_breaks_a_promise_fails_and_names_it(folder: Path) -> None:
    """A check that cannot fail is worth nothing: what lies is seen in S3, an old lease is tried out."""
    patch = folder / "lying"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(_LYING_BUILD, encoding="utf-8")
    shell = Shell(folder, PYTHONPATH=str(patch))
    ended = shell.run(*_SMALL, "--json")
    assert ended.returncode == 1, ended.stderr
    report = json.loads(ended.stdout)
    assert not report["ok"]
    broken = {one["promise"][0]: one["seen"] for one in report["promises"] if not one["ok"]}
    assert set(broken) == {"2", "5", "6", "7"}
    assert "is still there" in broken["5"]
    assert "waits in 0 buckets" in broken["6"]
    assert "is still there" in broken["2"]
    assert "is still there" in report["orphans"]["seen"]
    assert broken["7"].startswith("0 of the killed worker's")
    assert shell.left_running() == []
    assert shell.left_on_disk() == ["lying"]
