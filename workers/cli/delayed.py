"""Group `delayed`: the index buckets of a topic's delayed messages."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, answer_topic_builds
from workers.cli.output import Answer, answer_partial_failure, answer_partial_failure_if_any, print_note
from workers.cli.shared_options import AllTopics, DryRun, Master, OneTopic, Reason, TopicArgument, select_topics
from workers.human_readable_values import decode_topic_name, format_time_to_microsecond, select_fields

if TYPE_CHECKING:
    from logstore.delayed.index_buckets import IndexBucket
    from logstore.ports.catalog.log import Topic
    from logstore.positions import LedgerId, Position
    from workflows.delayed.job_definitions import MergeBucketsResult, SealBucketsResult

delayed = create_command_group("delayed")

_BUSY = "another job works on its buckets, and took longer than this one waited"
_MAX_BUCKETS_HELP = "Merge until there are no more; by default the setting delayed_buckets, or one less than there are."

MaxBuckets = Annotated[
    int | None,
    typer.Option("--max-buckets", metavar="N", min=1, max=2**31 - 1, help=_MAX_BUCKETS_HELP, show_default=False),
]


@command(delayed, "status", "TOPIC", "TOPIC --json")
def show_index_buckets(context: CommandContext, name: TopicArgument) -> Answer:
    """Show a topic's index buckets, the memory that a consumer needs for them, and messages in no index bucket.

    SEALED: stored. MERGING: a running merge replaces it and a neighbour by one index bucket. DAMAGED: its snapshot
    cannot be read. OPEN: messages after the last index bucket, which are only in the log.
    """
    from logstore.delayed.tracker import Tracker  # noqa: PLC0415 - start-up time

    topic = context.get_topic(name)
    index = context.catalog.delayed
    bucket_list, unsealed = index.get_bucket_list(topic.topic_id), index.count_unsealed_entries(topic.topic_id)
    tracker = Tracker(context.log.delayed.snapshots)
    tracker.load_list_and_pop_rewinds(bucket_list)
    damaged_ids = {bucket.bucket_id for bucket in tracker.lost_buckets}
    states = dict.fromkeys(_find_merging_buckets(context, topic, bucket_list.buckets), "MERGING")
    states |= dict.fromkeys(damaged_ids, "DAMAGED")
    rows = [_make_bucket_row(bucket, states.get(bucket.bucket_id, "SEALED")) for bucket in bucket_list.buckets]
    if damaged_ids:
        build = f"sexton delayed build {decode_topic_name(topic.name)}"
        print_note(f"messages of these buckets come from the log, which is slower; write them anew: {build}")
    if unsealed.entries:
        rows.append(_make_unsealed_row(context, topic, unsealed.entries, bucket_list.sealed_to))
    facts = {"messages": bucket_list.messages + unsealed.entries, "memory_bytes": tracker.memory_bytes}
    display = []
    for row in rows:
        first, last = row["first_ledger"], row["last_ledger"]
        ledgers = first if first == last else f"{first} to {last}"  # null if the ledgers were removed meanwhile
        values = {"bucket": row["bucket_id"], "ledgers": ledgers}
        display.append(values | select_fields(row, "messages segments state first_due"))
    table = Answer(document=rows, display=display, title="buckets", empty="no delayed messages")
    return Answer(document={**facts, "buckets": rows}, display=facts, sections=[table])


def _make_bucket_row(bucket: "IndexBucket", state: str) -> dict[str, Any]:
    return {
        "bucket_id": bucket.bucket_id,
        "first_ledger": bucket.first.ledger_id,
        "last_ledger": bucket.last.ledger_id,
        **select_fields(bucket, "messages segments"),
        "state": state,
        **select_fields(bucket, "first last"),
        "first_due": format_time_to_microsecond(bucket.first_ms * 1_000),
        "last_due": format_time_to_microsecond(bucket.last_ms * 1_000),
    }


def _make_unsealed_row(context: CommandContext, topic: "Topic", messages: int, sealed_to: "Position") -> dict[str, Any]:
    ledgers = context.catalog.ledgers.list_ledgers(topic.topic_id, from_ledger=sealed_to.ledger_id)
    ledger_ids = [ledger.ledger_id for ledger in ledgers if ledger.span.last > sealed_to]
    return {
        "bucket_id": None,
        "first_ledger": min(ledger_ids, default=None),
        "last_ledger": max(ledger_ids, default=None),
        "messages": messages,
        "segments": 0,
        "state": "OPEN",
        **dict.fromkeys(("first", "last", "first_due", "last_due")),
    }


def _find_merging_buckets(
    context: CommandContext, topic: "Topic", buckets: "tuple[IndexBucket, ...]"
) -> "set[LedgerId]":
    from logstore.delayed.index_buckets import find_pair_to_merge  # noqa: PLC0415 - start-up time
    from workflows.delayed.job_definitions import MERGE_BUCKETS  # noqa: PLC0415

    if context.catalog.delayed.find_claim_holder(topic.topic_id) != MERGE_BUCKETS.id(topic.topic_id):
        return set()
    return {bucket.bucket_id for bucket in find_pair_to_merge(buckets) or ()}


@command(delayed, "seal", "TOPIC", "TOPIC --no-wait")
def seal_delayed_messages(context: CommandContext, name: TopicArgument, *, reason: Reason = "") -> JobOrAnswer:
    """Write a topic's delayed messages into index buckets. Remove index buckets that no reader needs any more.

    The seal ends before the first message of the oldest open transaction. Workers seal by themselves if there are
    enough messages, or if no message came for a while.
    """
    topic = context.get_topic(name)

    def answer(workflow_id: str, result: "SealBucketsResult") -> Answer:
        counts = select_fields(result, "buckets messages dropped")
        document = {"workflow_id": workflow_id, **counts, "merging": bool(result.merging)}
        if result.merging:
            print_note("it has more buckets than it may have: their merge was started, or runs")
        if result.overtaken:
            print_note("its buckets were changed by another job meanwhile: seal again for what came since")
        errors = [_BUSY] if result.held else result.troubles[: result.failed]
        return answer_partial_failure_if_any(document, [{"id": topic.topic_id, "error": error} for error in errors])

    return CommandLineJob(
        lambda client: client.seal_buckets(topic, reason, context.actor), "sealing delayed messages", answer
    )


@command(delayed, "merge", "TOPIC", "TOPIC --max-buckets 1 --json")
def merge_index_buckets(
    context: CommandContext, name: TopicArgument, *, max_buckets: MaxBuckets = None, reason: Reason = ""
) -> JobOrAnswer:
    """Merge neighbouring index buckets of a topic, two at a time. The pair with the fewest messages is first.

    Messages that have been due for a minute are left out, because readers get them from the log.
    """
    topic = context.get_topic(name)
    buckets = len(context.catalog.delayed.get_bucket_list(topic.topic_id).buckets)
    limit = max_buckets or min(context.settings.delayed_buckets, max(1, buckets - 1))
    return CommandLineJob(
        lambda client: client.merge_buckets(topic, limit, reason, context.actor), "merging buckets", _answer_merge
    )


def _answer_merge(workflow_id: str, result: "MergeBucketsResult") -> Answer:
    outcome = "" if result.outcome is None else result.outcome.value
    document = {
        "workflow_id": workflow_id,
        "outcome": outcome,
        **select_fields(result, "merges messages passed buckets"),
        "max_buckets": result.limit,
    }
    failures = [{"id": bucket_id, "error": "its snapshot cannot be read"} for bucket_id in result.damaged]
    if outcome == "HELD":
        return answer_partial_failure(document, [*failures, {"id": workflow_id, "error": _BUSY}])
    return answer_partial_failure_if_any(document, failures)


@command(delayed, "build", "TOPIC", '--all --reason "after a restore" --json')
def build_delayed_index(
    context: CommandContext,
    name: OneTopic = None,
    *,
    all_topics: AllTopics = False,
    master: Master = None,
    reason: Reason = "",
) -> JobOrAnswer:
    """Build new index buckets of one topic or of all topics from the log, and replace the existing index buckets.

    Workers seal and merge by themselves. This command reads whole logs, and repairs damaged index buckets.
    """
    topics = select_topics(context, name, all_topics=all_topics)
    context.require_store()
    return CommandLineJob(
        lambda client: client.build_delayed_index(topics, master=master or "", reason=reason, actor=context.actor),
        "building indexes",
        answer_topic_builds,
    )


@command(delayed, "clear", "TOPIC --dry-run", 'TOPIC --reason "damaged"')
def clear_delayed_index(
    context: CommandContext, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False
) -> Answer:
    """Delete all index buckets of a topic. No message is lost, because readers get due messages from the log.

    The next seal reads the log from its beginning. Index buckets that a running seal or merge writes are deleted, too.
    """
    topic = context.get_topic(name)
    index = context.catalog.delayed
    bucket_list = index.get_bucket_list(topic.topic_id)
    counts = {"buckets": len(bucket_list.buckets), "messages": bucket_list.messages}
    if dry_run:
        return Answer(document={"dry_run": True, **counts})
    if holder := index.find_claim_holder(topic.topic_id):
        print_note(f"{holder} is at work on these buckets; what it writes is deleted with them")
    return Answer(document={**counts, "buckets": index.retire_all_buckets(topic.topic_id, reason=reason)})
