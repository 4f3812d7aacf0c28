"""`topic …`, `ledger …`, `deletion …` and `workflow list`."""

import base64
import json
from dataclasses import replace

import pytest

from logstore.cursors.cursor_state import CursorState, require_current_releases
from logstore.errors import StoreUnavailable
from logstore.log.ledgers import Component, LedgerState
from logstore.ports.catalog.log import Ledger
from logstore.positions import LedgerId, Position, TopicId
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FAKE_TRACE_ID, FakeCommandServices, FakeDeletionResult
from workers.cli.topics import ENTRY_COLUMNS


def _lines(count: int, **more: object) -> str:
    return "".join(json.dumps({"payload": f"p{number}", **more}) + "\n" for number in range(count))


def test_topic_create_with_limits_answers_the_topic(run: Run) -> None:
    """The answer has the documented fields, and the name as it was typed."""
    name = "persistent://public/default/ü b%"
    made = document(
        run("topic", "create", name, "--retention", "3d", "--retention-bytes", "9", "--no-durable-delete", "--json")
    )
    assert made == {
        "topic_id": 7,
        "name": name,
        "state": "ACTIVE",
        "retention_s": 259_200,
        "retention_bytes": 9,
        "durable_delete": False,
        "created": "1970-01-01T00:00:01.500000Z",
        "ledgers": 1,
        "entries": 0,
        "size_bytes": 0,
        "subscriptions": [],
        "max_read_position": None,
    }
    none = {"messages": 0, "unsealed": 0, "buckets": 0}
    assert document(run("topic", "show", name, "--json")) == {**made, "delayed": none}
    assert document(run("topic", "list", "--json")) == [made]


def test_topic_create_taken_name_is_refused(run: Run, orders: str) -> None:
    """A guard's refusal is exit code 3."""
    assert document(run("topic", "create", orders, "--json"), 3)["error"]["type"] == "AlreadyExists"


def test_topic_append_lines_are_appended_in_batches(run: Run, services: FakeCommandServices, orders: str) -> None:
    """`--batch` bounds one append; the answer spans all of them."""
    told = document(run("topic", "append", orders, "--file", "-", "--batch", "2", "--json", text=_lines(5)))
    assert told == {"count": 5, "first": "4:0", "last": "4:4", "duplicates": 0}
    assert [len(one.entries) for one in services.log.appends] == [2, 2, 1]
    assert services.log.closed == 2  # the topic's creation, and this


def test_topic_append_bad_last_line_writes_nothing(run: Run, services: FakeCommandServices, orders: str) -> None:
    """All lines are checked before the first is written."""
    text = _lines(2_500) + '{"payload": 1}\n'
    error = document(run("topic", "append", orders, "--file", "-", "--json", text=text), 2)["error"]
    assert error["field"] == "line 2501: payload"
    assert services.log.appends == []


@pytest.mark.parametrize("file", [".", "absent", "/proc/self/mem"])
def test_topic_append_file_that_cannot_be_read_is_bad_input(
    run: Run, services: FakeCommandServices, orders: str, file: str
) -> None:
    """A folder, no file, and one whose disk fails."""
    error = document(run("topic", "append", orders, "--file", file, "--json"), 2)["error"]
    assert error["field"] == "file"
    assert services.log.appends == []


def test_topic_append_empty_file_counts_zero(run: Run, services: FakeCommandServices, orders: str) -> None:
    """Nothing to append is no error, and no append."""
    (services.cwd / "none.jsonl").touch()
    told = document(run("topic", "append", orders, "--file", str(services.cwd / "none.jsonl"), "--json"))
    assert told == {"count": 0, "first": None, "last": None, "duplicates": 0}
    assert services.log.appends == []


def test_topic_append_producer_travels_with_sequence_ids(run: Run, services: FakeCommandServices, orders: str) -> None:
    """Producer and sequence ids reach the log."""
    text = '{"payload_b64": "AP8=", "sequence_id": 3, "key": "k", "properties": {"a": "b"}}\n'
    assert run("topic", "append", orders, "--file", "-", "--producer", "p", text=text).exit_code == 0
    (produced,) = services.log.appends
    (entry,) = produced.entries
    assert (produced.producer, entry.sequence_id, entry.payload, entry.properties) == ("p", 3, b"\x00\xff", {"a": "b"})


def test_topic_append_store_lost_half_way_says_what_is_written(
    run: Run, services: FakeCommandServices, orders: str
) -> None:
    """Finished in part: exit code 5, with the last line written and the error."""
    services.log.fail_append_at = (1, StoreUnavailable("s3"))
    told = document(run("topic", "append", orders, "--file", "-", "--batch", "2", "--json", text=_lines(5)), 5)
    assert (told["count"], told["written_to_line"], told["error"]["type"]) == (2, 2, "StoreUnavailable")


def test_topic_append_store_lost_at_once_is_unreachable(run: Run, services: FakeCommandServices, orders: str) -> None:
    """Nothing written: the plain error."""
    services.log.fail_append_at = (0, StoreUnavailable("s3"))
    assert document(run("topic", "append", orders, "--file", "-", "--json", text=_lines(1)), 4)


def test_topic_roll_answers_both_ledgers(run: Run, orders: str) -> None:
    """Closed and opened."""
    assert document(run("topic", "roll", orders, "--json")) == {"closed": 4, "opened": 5}


def test_topic_subscribe_read_ack_seek_follow_the_contract(
    run: Run, services: FakeCommandServices, orders: str
) -> None:
    """A consumer's way through the command line."""
    run("topic", "append", orders, "--file", "-", text=_lines(3, key="k"))
    made = document(run("topic", "subscribe", orders, "s", "--from", "earliest", "--json"))
    assert (made["mark_delete"], made["backlog"]) == ("4:-1", 3)
    entries = document(run("topic", "read", orders, "--subscription", "s", "--from", "4:0", "--max", "2", "--json"))
    assert [base64.b64decode(one["payload_b64"]) for one in entries] == [b"p0", b"p1"]
    told = {"position", "key", "payload_b64", "publish_ms", "deliver_at_ms", "properties", "releases"}
    assert set(entries[0]) == told
    assert [entry["releases"] for entry in entries] == [3, None], "only what everything before it was read with"
    (asked,) = services.log.reads
    assert asked == {
        "subscription": "s",
        "from_position": Position(LedgerId(4), 0),
        "max_entries": 2,
        "columns": ENTRY_COLUMNS,
    }
    acked = run("topic", "ack", orders, "--subscription", "s", "--position", "4:0", "--position", "4:1", "--json")
    assert document(acked) == {"mark_delete": "4:1"}
    assert services.log.written[0].positions == (Position(LedgerId(4), 0), Position(LedgerId(4), 1))
    assert document(run("topic", "ack", orders, "--subscription", "s", "--to", "4:0", "--releases", "3", "--json"))
    assert (services.log.written[1].up_to, services.log.written[1].releases) == (Position(LedgerId(4), 0), 3)
    assert document(run("topic", "seek", orders, "s", "--to", "4:2", "--json")) == {"mark_delete": "4:1"}


def test_topic_ack_of_a_script_that_knows_no_releases_is_refused_and_says_what_to_do(
    run: Run, services: FakeCommandServices, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3: an abort has given entries back since the script has read."""

    def acknowledge(_: object, name: str, *, up_to: Position, releases: int | None, **more: object) -> None:
        state = CursorState(Position(LedgerId(4), -1))
        require_current_releases(name, state, up_to=up_to, current_releases=2, releases_at_read=releases)

    monkeypatch.setattr(services.log.subscriptions, "acknowledge", acknowledge)
    error = document(run("topic", "ack", orders, "--subscription", "s", "--to", "4:9", "--json"), 3)["error"]
    assert error["type"] == "AcknowledgementStale"
    told = "subscription s: acknowledging everything up to 4:9: expected releases 2, found none. Read again and pass"
    assert error["message"].startswith(told)
    for option in ("--releases", "--position"):
        assert option in error["message"]


@pytest.mark.parametrize(
    ("cumulative", "shown"),
    [
        ((3, Position(LedgerId(4), 2)), "topic ack takes --to 4:1 --releases 3"),
        ((3, Position(LedgerId(4), 0)), "topic ack takes --position of each entry: 4:0 was not read"),
        (None, None),
    ],
)
def test_topic_read_shows_what_a_cumulative_acknowledgement_needs(
    run: Run, services: FakeCommandServices, orders: str, cumulative: tuple[int, Position] | None, shown: str | None
) -> None:
    """Under the table, once; people need no JSON to acknowledge after an abort."""
    services.log.cumulative = cumulative
    command = ("topic", "read", orders, "--subscription", "s")
    assert "topic ack" not in run(*command).stdout, "nothing was read"
    run("topic", "append", orders, "--file", "-", text=_lines(3))
    for options in ((), ("--wide",)):
        output = run(*command, *options).stdout
        assert shown in output.splitlines()[-1] if shown else "topic ack" not in output


def test_topic_read_without_subscription_reads_as_a_new_consumer(
    run: Run, services: FakeCommandServices, orders: str
) -> None:
    """One of no subscription, who has acknowledged nothing."""
    run("topic", "append", orders, "--file", "-", text=_lines(1))
    assert "p0" in run("topic", "read", orders).stdout
    (asked,) = services.log.reads
    assert asked == {"subscription": None, "from_position": None, "max_entries": 100, "columns": ENTRY_COLUMNS}


def test_topic_read_shows_delivery_times_where_there_are_any(run: Run, orders: str) -> None:
    """A column of dashes would take the room of others."""
    run("topic", "append", orders, "--file", "-", text='{"payload": "a"}')
    assert "deliver" not in run("topic", "read", orders).stdout
    run("topic", "append", orders, "--file", "-", text='{"payload": "b", "deliver_at": 1000}')
    shown = run("topic", "read", orders).stdout
    assert "deliver at" in shown
    assert "1970-01-01 00:00" in shown


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (("read", "--from", "4"), "from"),
        (("read", "--subscription", "a b"), "subscription"),
        (("ack", "--subscription", "s"), "position"),
        (("ack", "--subscription", "s", "--to", "4:0", "--position", "4:0"), "position"),
        (("ack", "--subscription", "s", "--to", "x"), "to"),
        (("ack", "--subscription", "s", "--position", "4:0", "--releases", "3"), "releases"),
        (("ack", "--subscription", "s", "--position", "04:0"), "position"),
    ],
)
def test_topic_bad_position_names_its_option(run: Run, orders: str, args: tuple[str, ...], field: str) -> None:
    """A position is refused by the name of the option that carried it."""
    assert document(run("topic", args[0], orders, *args[1:], "--json"), 2)["error"]["field"] == field


def test_topic_trim_waits_and_counts(run: Run, services: FakeCommandServices, orders: str) -> None:
    """The answer is the workflow's certificate; the reason travels."""
    told = document(run("topic", "trim", orders, "--reason", "why", "--json"))
    assert told == {"workflow_id": "trim-topic/7", "detached": 3, "deleted": 3, "outcomes": {"DELETED": 3}}
    assert services.client.asked == [(orders, "why")]


def test_topic_trim_no_wait_answers_at_once(run: Run, orders: str) -> None:
    """Only ids are told."""
    told = document(run("topic", "trim", orders, "--no-wait", "--json"))
    assert told == {"workflow_id": "trim-topic/7", "run_id": "run-1"}


@pytest.mark.parametrize("option", ["--wait", "--no-wait"])
def test_topic_trim_says_where_it_can_be_watched(run: Run, orders: str, option: str) -> None:
    """On stderr, whether it waits or not."""
    ended = run("topic", "trim", orders, option, "--json")
    assert document(ended)["workflow_id"] == "trim-topic/7"
    assert "watch it: http://ui/trim-topic/7/run-1\n" in ended.stderr


def test_topic_trim_dry_run_starts_nothing(run: Run, services: FakeCommandServices, orders: str) -> None:
    """What would go is told, and no workflow is started."""
    told = document(run("topic", "trim", orders, "--dry-run", "--json"))
    assert told == {"dry_run": True, "rolled": None, "detached": 2, "ledger_ids": [1, 2], "pending": 1}
    assert (services.client.asked, services.log.previews) == ([], [(None, False)])
    assert services.log.rolled == [None]


@pytest.mark.parametrize(("max_entries", "rolled"), [("7", 9), ("8", None)])
def test_topic_trim_dry_run_counts_the_last_ledger_that_the_trim_would_roll(
    run: Run, services: FakeCommandServices, orders: str, max_entries: str, rolled: int | None
) -> None:
    """One that is full by the settings goes with the same trim."""
    services.environ["SEXTON_LEDGER_MAX_ENTRIES"] = max_entries
    (ledger,) = services.log.catalog.ledgers.list_ledgers(1)
    services.log.last = replace(ledger, ledger_id=LedgerId(9), entries=7, created_us=2**60)  # full, and not old
    assert document(run("topic", "trim", orders, "--dry-run", "--json"))["rolled"] == rolled
    assert services.log.rolled == [rolled]


@pytest.mark.parametrize("outcome", ["RETRYING", "DEAD_LETTERED", "STILL_IN_USE"])
def test_ledger_delete_in_part_exits_5(run: Run, services: FakeCommandServices, orders: str, outcome: str) -> None:
    """Anything but success is told by the exit code, and by the JSON."""
    services.client.result = FakeDeletionResult({"DELETED": 1, outcome: 1})
    told = document(run("ledger", "delete", orders, "4", "5", "--json"), 5)
    outcomes = dict(sorted({"DELETED": 1, outcome: 1}.items()))
    assert told == {"workflow_id": "delete-ledgers/1", "outcomes": outcomes, "failed": [], "trace_id": FAKE_TRACE_ID}


def test_ledger_delete_ids_once_and_force_travel(run: Run, services: FakeCommandServices, orders: str) -> None:
    """Repeated ids count once; `--force` is passed on, to a dry run too."""
    assert run("ledger", "delete", orders, "5", "4", "5", "--force", "--reason", "r").exit_code == 0
    assert services.client.asked == [(orders, [5, 4], True, "r")]
    assert document(run("ledger", "delete", orders, "5", "--force", "--dry-run", "--json"))["ledger_ids"] == [5]
    assert services.log.previews == [([5], True)]


@pytest.mark.parametrize(
    ("flag", "asked"), [((), None), (("--durable-delete",), True), (("--no-durable-delete",), False)]
)
def test_delete_passes_on_what_the_command_says_of_tombstones(
    run: Run, services: FakeCommandServices, orders: str, flag: tuple[str, ...], asked: bool | None
) -> None:
    """Nothing, where it says nothing: the topic's own setting counts then."""
    assert run("ledger", "delete", orders, "5", *flag).exit_code == 0
    assert run("topic", "delete", orders, *flag).exit_code == 0
    assert services.client.durable == [asked, asked]


def test_ledger_list_shows_tombstones_where_they_are_asked_for(run: Run, orders: str) -> None:
    """They hold nothing but what names them."""
    _, stone = document(run("ledger", "list", orders, "--tombstones", "--json"))
    assert stone == {
        "ledger_id": 2,
        "component": "MANAGED_LEDGER",
        "state": "TOMBSTONE",
        "entries": None,
        "size_bytes": None,
        "copies": [],
        "generation": 1,
        "tombstone": True,
        "keys": {},
    }
    shown = run("ledger", "list", orders, "--tombstones").output
    assert "TOMBSTONE" in shown
    of_schemas = run("ledger", "list", orders, "--tombstones", "--component", "schema_storage", "--json")
    assert document(of_schemas) == []


def test_ledger_list_has_the_documented_fields(run: Run, orders: str) -> None:
    """Rows of the contract; another component has none."""
    (row,) = document(run("ledger", "list", orders, "--json"))
    assert row == {
        "ledger_id": 4,
        "component": "MANAGED_LEDGER",
        "state": "OPEN",
        "entries": 0,
        "size_bytes": 0,
        "copies": ["LEDGER"],
        "generation": 1,
        "tombstone": False,
        "keys": {},
    }
    assert document(run("ledger", "list", orders, "--component", "delayed_index", "--json")) == []


def test_ledger_list_shows_every_component_or_one(run: Run, services: FakeCommandServices, orders: str) -> None:
    """Cursor and schema ledgers stand behind those of messages, with the keys that say whose they are."""
    cursor = Ledger(
        ledger_id=LedgerId(9),
        topic_id=TopicId(7),
        component=Component.MANAGED_CURSOR,
        state=LedgerState.CLOSED,
        entries=1,
        size_bytes=5,
        last_segment=0,
        generation=0,
        created_us=0,
        closed_us=0,
        keys={"cursor": "billing"},
    )
    assert "keys" not in run("ledger", "list", orders).stdout, "a column without values"
    services.log.components = [cursor]
    assert "cursor: billing" in run("ledger", "list", orders).stdout
    rows = document(run("ledger", "list", orders, "--json"))
    assert [(row["ledger_id"], row["component"]) for row in rows] == [(4, "MANAGED_LEDGER"), (9, "MANAGED_CURSOR")]
    assert rows[1]["keys"] == {"cursor": "billing"}
    for component, ids in (("MANAGED_CURSOR", [9]), ("managed_ledger", [4]), ("SCHEMA_STORAGE", [])):
        rows = document(run("ledger", "list", orders, "--component", component, "--json"))
        assert [row["ledger_id"] for row in rows] == ids


def test_topic_show_names_a_cursor_ledger_that_is_lost(run: Run, services: FakeCommandServices, orders: str) -> None:
    """What is not known is not counted: there is no backlog to tell, and the ledger is named."""
    run("topic", "subscribe", orders, "s")
    known = services.log.subscribed["s"]
    (shown,) = document(run("topic", "show", orders, "--json"))["subscriptions"]
    assert (shown["backlog"], "lost_ledger" in shown) == (0, False)
    services.log.subscribed["s"] = replace(known, lost_snapshot=LedgerId(9))
    (shown,) = document(run("topic", "show", orders, "--json"))["subscriptions"]
    assert (shown["backlog"], shown["lost_ledger"]) == (None, 9)


def test_deletion_commands_show_the_queue(run: Run) -> None:
    """Counts and rows, with decoded topic names."""
    assert document(run("deletion", "inflight", "--json")) == {"estimated_inflight": 2, "dead_lettered": 1}
    (row,) = document(run("deletion", "list", "--state", "dead_lettered", "--json"))
    assert (row["state"], row["outcome"], row["topic"]) == (
        "DEAD_LETTERED",
        "RETRYING",
        "persistent://public/default/a b",
    )


def test_workflow_list_passes_filters_encoded(run: Run, services: FakeCommandServices) -> None:
    """Temporal knows encoded names, people decoded ones."""
    name = "persistent://public/default/a b"
    (row,) = document(run("workflow", "list", "--topic", name, "--status", "running", "--json"))
    assert services.client.asked == [(None, "Running", "persistent://public/default/a%20b", 100)]
    assert row["topic"] == name


@pytest.mark.parametrize("reason", ["a\x00b", "a\udcffb", "x" * 2001])
def test_trim_reason_that_the_audit_log_cannot_hold_is_bad_input(run: Run, reason: str) -> None:
    """Refused before anything starts, naming the field."""
    result = run("topic", "trim", "persistent://a/b/c", "--reason", reason, "--json")
    assert document(result, 2)["error"]["field"] == "reason"


def test_append_interrupted_says_once_what_is_written(run: Run, services: FakeCommandServices, orders: str) -> None:
    """Ctrl-C in the second batch: one document with count and last position, one sentence, code 130."""
    services.log.fail_append_at = (1, KeyboardInterrupt())
    result = run("topic", "append", orders, "--file", "-", "--batch", "2", "--json", text=_lines(4))
    told = document(result, 130)
    assert (told["count"], told["last"], told["written_to_line"]) == (2, "4:1", 2)
    assert told["error"]["type"] == "Interrupted"
    assert result.stderr.count("interrupted") == 1
