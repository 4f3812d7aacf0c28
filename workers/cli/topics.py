"""`topic`: create, list, show, roll, subscribe, read, acknowledge, seek, schemas, and the jobs on one topic."""

import base64
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.atomic_files import open_regular_file
from logstore.deletion.intents import DeletionState
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import InvalidInput
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, Position
from logstore.transactions.transaction_ids_and_states import TransactionId
from logstore.validated_names import TopicName, check_subscription_name, encode_topic_prefix
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode, get_exit_code_of_outcomes
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import (
    CommandLineJob,
    JobOrAnswer,
    describe_failure,
    find_failed_deletions_and_advise,
    make_deletion_answer,
)
from workers.cli.output import Answer, ConvertedRows, answer_partial_failure, print_note, sort_counts
from workers.cli.shared_options import (
    DryRun,
    DurableDelete,
    Reason,
    SubscriptionArgument,
    TopicArgument,
    Transaction,
    encode_topic,
    number_option,
)
from workers.human_readable_values import (
    decode_topic_name,
    format_table_cell,
    format_time_to_microsecond,
    select_fields,
)

if TYPE_CHECKING:
    from logstore.log.entries import Entry
    from logstore.ports.catalog.cursors import StoredCursor
    from logstore.ports.catalog.log import SubscriptionSummary, Topic, TopicSummary
    from logstore.positions import TopicId
    from workflows.offload.job_definitions import OffloadTopicResult


topic = create_command_group(
    "topic",
    order="create list show roll subscribe append trim delete offload read ack seek",
)

_SCHEME = "persistent://"
_MAX_PREFIX_LENGTH = 200

Retention = Annotated[str, typer.Option("--retention", metavar="D", help="Keep consumed ledgers so long: 15m, 3d.")]
RetentionBytes = Annotated[int | None, number_option("--retention-bytes", "Keep the newest N bytes of them.")]


def _check_name_prefix(prefix: str | None) -> str | None:
    if prefix is None:
        return None
    can_begin_name = prefix.startswith(_SCHEME) or _SCHEME.startswith(prefix)
    if not prefix or not prefix.isprintable() or not can_begin_name or len(prefix) > _MAX_PREFIX_LENGTH:
        raise InvalidInput("prefix", expected=f"how a name begins, as {_SCHEME}public/", found=prefix)
    return prefix


Prefix = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", callback=_check_name_prefix, help="Only names that begin so.")
]
State = Annotated[TopicState | None, typer.Option("--state", case_sensitive=False, help="Only topics in this state.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="NAME", help="Only names behind this one: the next page.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="The most topics to show.")]


@command(topic, "create", "TOPIC", "TOPIC --retention 3d")
def create_topic(
    context: CommandContext,
    name: TopicArgument,
    *,
    retention: Retention = "0s",
    retention_bytes: RetentionBytes = None,
    durable_delete: DurableDelete = None,
) -> Answer:
    """Create a topic. Trims delete its consumed ledgers: those past a limit, or all of them if no limit is set."""
    from workers.settings import parse_duration  # noqa: PLC0415 - start-up time

    encoded = TopicName.parse(name).encoded
    policy = RetentionPolicy(retention_s=parse_duration(retention, "retention"), retention_bytes=retention_bytes)
    topics = context.catalog.topics
    created = topics.create_topic(encoded, policy, durable_delete=durable_delete)
    return Answer(document=_make_topic_document(context, topics.summarize_topic(created)))


@command(topic, "list", "--json", "--prefix persistent://public/ --state DELETING")
def list_topics(
    context: CommandContext, *, prefix: Prefix = None, state: State = None, after: After = None, limit: Limit = 1_000
) -> Answer:
    """List topics with their ledgers, entries, bytes and subscriptions, ascending by name."""
    topics, encoded = context.catalog.topics, encode_topic_prefix(prefix or "")
    page = topics.list_topic_summaries(prefix=encoded, state=state, after=encode_topic(after) or "", limit=limit)
    if not page.topics and prefix and not topics.list_topic_summaries(prefix=encoded, limit=1).topics:
        print_note(f"no topic's name begins with {prefix}")
    if page.more:
        print_note(f"there are {page.more:,} more: go on with --after {decode_topic_name(page.topics[-1].topic.name)}")
    rows = [_make_topic_document(context, summary) for summary in page.topics]
    display = [
        select_fields(row, "name state ledgers entries bytes=size_bytes last=max_read_position")
        | {"subscriptions": ", ".join(map(_describe_backlog, row["subscriptions"]))}
        for row in rows
    ]
    return Answer(document=rows, display=display, columns_below=("subscriptions",), empty="no topics")


@command(topic, "show", "TOPIC --json")
def show_topic(context: CommandContext, name: TopicArgument) -> Answer:
    """Show one topic."""
    topic = context.get_topic(name)
    document = _make_topic_document(context, context.catalog.topics.summarize_topic(topic))
    index = context.catalog.delayed
    bucket_list, unsealed = index.get_bucket_list(topic.topic_id), index.count_unsealed_entries(topic.topic_id)
    delayed = {
        "messages": bucket_list.messages + unsealed.entries,
        "unsealed": unsealed.entries,
        "buckets": len(bucket_list.buckets),
    }
    return Answer(document={**document, "delayed": delayed})


@command(topic, "roll", "TOPIC")
def roll_last_ledger(context: CommandContext, name: TopicArgument) -> Answer:
    """Close the topic's current ledger and open a new one."""
    rolled = context.log.topic_logs.roll(context.get_topic(name))
    return Answer(document=select_fields(rolled, "closed opened"))


class SubscriptionStart(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


From = Annotated[SubscriptionStart, typer.Option("--from", help="Begin at the first entry, or behind the last one.")]


@command(topic, "subscribe", "TOPIC billing --from earliest")
def create_subscription(
    context: CommandContext, name: TopicArgument, sub: SubscriptionArgument, *, start: From = SubscriptionStart.LATEST
) -> Answer:
    """Create a subscription. An existing subscription is shown and stays as it is."""
    check_subscription_name(sub)
    topic_id = context.get_topic(name).topic_id
    subscription = context.log.subscriptions.subscribe(topic_id, sub, latest=start is SubscriptionStart.LATEST)
    return Answer(document=_make_subscription_rows(context, topic_id, [subscription])[0])


def _make_topic_document(context: CommandContext, summary: "TopicSummary") -> dict[str, Any]:
    topic = summary.topic
    if any(subscription.backlog is None for subscription in summary.subscriptions):
        subscriptions = list(context.log.subscriptions.all(topic.topic_id))
        rows = _make_subscription_rows(context, topic.topic_id, subscriptions)
    else:
        rows = [_make_subscription_row(each, each.mark_delete, each.backlog) for each in summary.subscriptions]
    return {
        "topic_id": topic.topic_id,
        "name": decode_topic_name(topic.name),
        "state": topic.state.value,
        **select_fields(topic.policy, "retention_s retention_bytes"),
        **select_fields(topic, "durable_delete created=created_us"),
        **select_fields(summary.totals, "ledgers entries size_bytes"),
        "subscriptions": rows,
        **select_fields(summary.totals, "max_read_position=last"),
    }


def _describe_backlog(subscription: dict[str, Any]) -> str:
    backlog = subscription["backlog"]
    return f"{subscription['name']} is {'an unknown number' if backlog is None else format_table_cell(backlog)} behind"


def _make_subscription_rows(
    context: CommandContext, topic_id: "TopicId", subscriptions: "list[StoredCursor]"
) -> list[dict[str, Any]]:
    """Return rows with backlogs. If a cursor snapshot is lost, the row has no backlog and names the lost ledger."""
    states = [subscription.state for subscription in subscriptions]
    rows = []
    for subscription, backlog in zip(
        subscriptions, context.log.catalog.ledgers.count_backlogs(topic_id, states), strict=True
    ):
        lost_ledger = subscription.lost_snapshot
        known_backlog = backlog if lost_ledger is None else None
        row = _make_subscription_row(subscription, subscription.state.mark_delete, known_backlog)
        rows.append(row if lost_ledger is None else {**row, "lost_ledger": lost_ledger})
    return rows


def _make_subscription_row(
    subscription: "StoredCursor | SubscriptionSummary", mark_delete: Position, backlog: int | None
) -> dict[str, Any]:
    values = {"name": subscription.name, "mark_delete": str(mark_delete), "backlog": backlog}
    return values | select_fields(subscription, "created=created_us")


schema = create_command_group("schema", about="Schemas of a topic: set, list, show.", path="topic schema")
topic.add_typer(schema)

_SCHEMA_FIELDS = "version ledger_id size_bytes digest created=created_us"

File = Annotated[str, typer.Option("--file", metavar="F", help="The schema, at most 1 MiB; - is stdin.")]
Version = Annotated[int | None, number_option("--version", "Which; the newest by default.")]


@command(schema, "set", "TOPIC --file orders.avsc")
def set_schema(context: CommandContext, name: TopicArgument, *, file: File) -> Answer:
    """Make a file's content the newest schema of the topic. The answer has the number of the schema version.

    If the content already is the newest schema, nothing changes.
    """
    content = _read_schema_file(file)
    version = context.log.schemas.set(context.get_topic(name), content)
    return Answer(document=select_fields(version, "version ledger_id"))


@command(schema, "list", "TOPIC --json")
def list_schemas(context: CommandContext, name: TopicArgument) -> Answer:
    """List the schema versions of a topic, oldest first."""
    versions = context.log.schemas.all(context.get_topic(name).topic_id)
    return Answer(document=[select_fields(version, _SCHEMA_FIELDS) for version in versions], empty="no schema")


@command(schema, "show", "TOPIC > orders.avsc", "TOPIC --version 0")
def show_schema(context: CommandContext, name: TopicArgument, *, version: Version = None) -> Answer:
    """Print the content of a schema version, checked against its digest. With --json the content is base64."""
    read_version, content = context.log.schemas.read(context.get_topic(name), version)
    content_b64 = base64.b64encode(content).decode()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        print_note("the content is not text: shown as base64")
        text = f"{content_b64}\n"
    return Answer(document={**select_fields(read_version, _SCHEMA_FIELDS), "content_b64": content_b64}, text=text)


def _read_schema_file(file: str) -> bytes:
    from logstore.log.services.component_ledgers import MAX_SCHEMA_BYTES  # noqa: PLC0415 - start-up time

    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_SCHEMA_BYTES + 1)
        else:
            with open_regular_file(Path(file)) as source:
                content = source.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise InvalidInput("file", expected=f"a file that can be read ({error.strerror})", found=file) from error
    if not 0 < len(content) <= MAX_SCHEMA_BYTES:
        found = f"{file}: {len(content):,} bytes{' or more' if content else ''}"
        raise InvalidInput("file", expected=f"1 to {MAX_SCHEMA_BYTES:,} bytes", found=found)
    return content


ENTRY_COLUMNS: Final = ("publish_ms", "deliver_at_ms", "key", "payload", "properties")
_MAX_DISPLAY_LENGTH = 80

AsSubscription = Annotated[
    str | None, typer.Option("--subscription", metavar="S", help="Leave out what it has acknowledged.")
]
OfSubscription = Annotated[str, typer.Option("--subscription", metavar="S", help="Whose cursor moves.")]
FromPosition = Annotated[str | None, typer.Option("--from", metavar="POS", help="First entry, as ledger:entry.")]
Max = Annotated[int, typer.Option("--max", metavar="N", min=1, max=1_000_000, help="The most entries.")]
Positions = Annotated[
    list[str] | None, typer.Option("--position", metavar="P", help="One entry, as ledger:entry; may be repeated.")
]
UpTo = Annotated[str | None, typer.Option("--to", metavar="P", help="Everything up to and including this entry.")]
Releases = Annotated[
    int | None,
    typer.Option("--releases", metavar="N", min=0, help="With --to: what `topic read` shows beneath the entries."),
]
SeekTo = Annotated[str, typer.Option("--to", metavar="P", help="The entry to read next, as ledger:entry.")]


@command(topic, "read", "TOPIC --subscription billing --max 10 --json")
def read_entries(
    context: CommandContext,
    name: TopicArgument,
    *,
    subscription: AsSubscription = None,
    start: FromPosition = None,
    max_entries: Max = 100,
) -> Answer:
    """Read entries that a consumer may see now, without acknowledging them.

    Due messages of index buckets (`sexton delayed status`) are first, ordered by delivery time. Then the log is read in
    its order, with the due messages that are in no index bucket.
    """
    position = None if start is None else Position.parse(start, field="from")
    if subscription is not None:
        check_subscription_name(subscription)
    topic = context.get_topic(name)
    with context.log.delivery.create_consumer(
        topic, subscription, from_position=position, columns=ENTRY_COLUMNS
    ) as consumer:
        entries = consumer.receive(max_entries)
        releases, limit = consumer.cumulative_bounds() or (None, None)
    rows = [
        {
            **select_fields(entry, "position key"),
            "payload_b64": base64.b64encode(entry.payload or b"").decode(),
            **select_fields(entry, "publish_ms deliver_at_ms properties"),
            "releases": releases if limit and entry.position < limit else None,
        }
        for entry in entries
    ]
    hint = ""
    if releases is not None and limit is not None and entries:
        last = max((entry.position for entry in entries if entry.position < limit), default=None)
        hint = f"topic ack takes --position of each entry: {limit} was not read, so --to would skip it\n"
        if last is not None:
            hint = f"topic ack takes --to {last} --releases {releases}\n"
    make_row = partial(_make_entry_display_row, has_delayed=any(entry.deliver_at_ms is not None for entry in entries))
    return Answer(
        document=rows,
        display=ConvertedRows(entries, partial(make_row, max_length=_MAX_DISPLAY_LENGTH)),
        wide_display=ConvertedRows(entries, partial(make_row, max_length=None)),
        empty="no entries",
        footer=hint,
    )


def _make_entry_display_row(entry: "Entry", *, has_delayed: bool, max_length: int | None) -> dict[str, object]:
    text = (entry.payload or b"").decode("utf-8", errors="replace")
    due = None if entry.deliver_at_ms is None else format_time_to_microsecond(entry.deliver_at_ms * 1_000)
    return {
        **select_fields(entry, "position key"),
        "payload": text if max_length is None or len(text) <= max_length else f"{text[: max_length - 1]}…",
        "published": format_time_to_microsecond(entry.publish_ms * 1_000),
        **({"deliver_at": due} if has_delayed else {}),
        "properties": dict(entry.properties),
    }


@command(
    topic,
    "ack",
    "TOPIC --subscription billing --to 4:99 --releases 0",
    "TOPIC --subscription billing --position 4:7 --position 4:9",
)
def acknowledge_entries(
    context: CommandContext,
    name: TopicArgument,
    *,
    subscription: OfSubscription,
    position: Positions = None,
    to: UpTo = None,
    releases: Releases = None,
    txn: Transaction = None,
) -> Answer:
    """Acknowledge single entries, or all entries up to one. With --txn, the commit acknowledges these entries.

    After an aborted transaction or a seek, and if delayed messages precede the entry, `--to` requires a number in
    --releases. `topic read --subscription S` prints this number. Without a number, acknowledge by --position.
    """
    if releases is not None and to is None:
        raise InvalidInput("releases", expected="--to beside --releases", found=releases)
    if bool(position) == (to is not None):
        raise InvalidInput("position", expected="either --position or --to", found="both" if position else "neither")
    check_subscription_name(subscription)
    positions = tuple(Position.parse(text) for text in position or ())
    up_to = None if to is None else Position.parse(to, field="to")
    cursor = context.log.subscriptions.acknowledge(
        context.get_topic(name).topic_id,
        subscription,
        positions=positions,
        up_to=up_to,
        releases=releases,
        txn=None if txn is None else TransactionId.parse(txn),
    )
    return Answer(document=select_fields(cursor, "mark_delete"))


@command(topic, "seek", "TOPIC billing --to 4:0")
def seek_subscription(context: CommandContext, name: TopicArgument, sub: SubscriptionArgument, *, to: SeekTo) -> Answer:
    """Make an entry the next one that a subscription gets. The subscription's acknowledgements are forgotten."""
    check_subscription_name(sub)
    position = Position.parse(to, field="to")
    subscription = context.log.subscriptions.seek(context.get_topic(name).topic_id, sub, position)
    return Answer(document=select_fields(subscription.state, "mark_delete"))


_BEFORE_FIRST_LEDGER = LedgerId(-1)
_MAX_PREVIEW_LEDGERS = 10_000


@command(topic, "trim", "TOPIC --dry-run", 'TOPIC --reason "end of day"')
def trim_topic(
    context: CommandContext, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False
) -> JobOrAnswer:
    """Delete ledgers that every subscription has consumed and that retention does not keep.

    The job first rolls the last ledger if this ledger is full or past its age. It also continues unfinished deletions
    of the topic that no workflow works on. --dry-run counts all unfinished deletions of the topic as pending.
    """
    topic = context.get_topic(name)
    if dry_run:
        return _preview_trim(context, topic)

    return CommandLineJob(
        lambda client: client.trim_topic(topic, reason, context.actor),
        "trimming",
        make_deletion_answer(context, "detached deleted", topic=topic),
    )


def _preview_trim(context: CommandContext, topic: "Topic") -> Answer:
    last = context.catalog.ledgers.last_ledger(topic.topic_id)
    policy = context.services.roll_policy(context.settings)
    is_due = last is not None and policy.is_due(last, now_us=time.time_ns() // 1_000)
    rolled = last.ledger_id if last is not None and is_due else None
    detached = context.catalog.phase_one.preview_detach(topic.topic_id, None, force=False, rolled=rolled)
    pending = context.catalog.deletions.list_intents(
        DeletionState.PENDING, topic=topic.name, ledger_id=None, limit=_MAX_PREVIEW_LEDGERS
    )
    counts = {"detached": len(detached), "ledger_ids": detached, "pending": len(pending)}
    return Answer(document={"dry_run": True, "rolled": rolled, **counts})


@command(topic, "delete", "TOPIC --dry-run", 'TOPIC --reason "moved elsewhere"')
def delete_topic(
    context: CommandContext,
    name: TopicArgument,
    *,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Delete a topic with its subscriptions, schemas, delayed messages and every ledger, needed or not.

    Transactions in which the topic takes part continue without it. A running deletion is joined, and a stopped deletion
    is continued. After the deletion, you can create a topic of the same name.
    """
    topic = context.get_topic(name)
    if dry_run:
        contents = context.catalog.phase_one.count_topic_contents(topic.topic_id)
        copies = {component: dict(kinds) for component, kinds in contents.copies.items()}
        counts = {**select_fields(contents, "ledgers"), "copies": copies, "subscriptions": contents.subscriptions}
        return Answer(document={"dry_run": True, **counts})
    return CommandLineJob(
        lambda client: client.delete_topic(topic, reason, context.actor, durable_delete=durable_delete),
        "deleting the topic",
        make_deletion_answer(context, topic=topic),
    )


Ledgers = Annotated[
    list[int] | None, number_option("--ledger", "Only this ledger; may be given several times.", metavar="ID")
]
DeletePrimary = Annotated[
    bool, typer.Option("--delete-primary", help="Then delete primary copies; ledgers are read from their tiered ones.")
]


@command(topic, "offload", "TOPIC --dry-run", "TOPIC --ledger 4 --ledger 5", 'TOPIC --delete-primary --reason "cold"')
def offload_topic(
    context: CommandContext,
    name: TopicArgument,
    *,
    ledger: Ledgers = None,
    delete_primary: DeletePrimary = False,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Copy closed ledgers to the tiered bucket, and check the copies by reading them. Ledgers stay readable."""
    topic = context.get_topic(name)
    ledger_ids = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledger)] if ledger else None
    offloads = context.catalog.offloads
    if ledger_ids is not None:
        offloads.require_offloadable(topic.topic_id, ledger_ids)
    if dry_run:
        after, limit = _BEFORE_FIRST_LEDGER, _MAX_PREVIEW_LEDGERS
        offloaded = offloads.list_offload_candidates(topic.topic_id, ledger_ids, after=after, limit=limit)
        published = offloads.list_removable_primaries(topic.topic_id, ledger_ids, after=after, limit=limit)
        removed = {*offloaded, *(copy.statement.ledger_id for copy in published)} if delete_primary else set()
        counts = {"offloaded": len(offloaded), "ledger_ids": offloaded, "removed": sorted(removed)}
        return Answer(document={"dry_run": True, **counts})
    return CommandLineJob(
        lambda client: client.offload_topic(topic, ledger_ids, delete_primary, reason, context.actor),
        "offloading",
        partial(_answer_offload, context, topic, delete_primary=delete_primary),
    )


def _answer_offload(
    context: CommandContext, topic: "Topic", workflow_id: str, result: "OffloadTopicResult", *, delete_primary: bool
) -> Answer:
    outcomes = sort_counts(result.outcomes)
    document: dict[str, object] = {
        "workflow_id": workflow_id,
        **select_fields(result, "offloaded bytes=size_bytes already gone running"),
        "failed": [],
        **select_fields(result, "failed_count=failed refused refusals"),
        "errors": _sort_by_ledger(result.errors),
    }
    if delete_primary:
        document |= select_fields(result, "removed unproved")
        document |= {"doubts": _sort_by_ledger(result.doubts), "outcomes": outcomes}
    always = {"workflow_id", "offloaded", "bytes", *(["removed"] if delete_primary else [])}
    in_table = {"failed", "errors", "doubts"}
    display = {name: value for name, value in document.items() if name in always or (value and name not in in_table)}
    has_failed_deletions = get_exit_code_of_outcomes(outcomes) is ExitCode.PARTIAL
    if not (result.failed or result.running or result.unproved or result.refused or has_failed_deletions):
        return Answer(document=document, display=display)
    errors = [*result.errors.items(), *result.doubts.items()]
    if has_failed_deletions:
        intents = find_failed_deletions_and_advise(context, topic=topic)
        errors += [(intent.ledger_id, f"deletion {intent.row_id}: {describe_failure(intent)}") for intent in intents]
    failures = [{"id": ledger_id, "error": error} for ledger_id, error in errors]
    return replace(answer_partial_failure(document, failures), display=display)


def _sort_by_ledger(texts: Mapping[int, str]) -> dict[str, str]:
    return {str(ledger_id): text for ledger_id, text in sorted(texts.items())}
