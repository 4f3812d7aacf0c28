"""`delayed`: the buckets of a topic's delayed messages: see them, seal, merge, build, and throw them away."""

from typing import TYPE_CHECKING, Annotated

import typer

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode
from workers.cli.jobs import Asked, Job, built, in_part, job, one_or_all
from workers.cli.options import AllTopics, DryRun, Master, OneTopic, Reason, TopicArgument
from workers.cli.output import Answer, note
from workers.pages.texts import decode_topic_name, format_time_us, select_fields

if TYPE_CHECKING:
    from logstore.delayed.buckets import Bucket
    from logstore.ports.catalog import Topic
    from logstore.positions import LedgerId
    from workflows.delayed.values import MergeBucketsResult, SealBucketsResult

delayed = group("delayed", "Delayed messages: the buckets of their index.")

_BUSY = "another job works on its buckets, and took longer than this one waited"

MaxBuckets = Annotated[
    int | None,
    typer.Option(
        "--max-buckets",
        metavar="N",
        min=1,
        max=2**31 - 1,
        help="Merge until there are no more; by default the setting delayed_buckets, or one less than there are.",
        show_default=False,
    ),
]


@command(delayed, "status", "TOPIC", "TOPIC --json")
def status(context: CommandContext, name: TopicArgument) -> Answer:
    """Show a topic's buckets, what no bucket has yet, and the memory that a consumer's process needs for them.

    SEALED: in storage. MERGING: two of them become one. DAMAGED: in the list, and its snapshot cannot be read. OPEN:
    behind the last bucket, in the log alone.
    """
    from logstore.delayed.tracker import Tracker  # noqa: PLC0415 - start-up time

    topic = context.topic(name)
    index = context.catalog.delayed
    listed, unsealed = index.listed(topic.topic_id), index.unsealed(topic.topic_id)
    tracker = Tracker(context.log.delayed.snapshots)
    tracker.load(listed)
    damaged = {one.bucket_id for one in tracker.lost_buckets}
    merging = _merging(context, topic, listed.buckets)
    rows = [
        _row(one, "DAMAGED" if one.bucket_id in damaged else "MERGING" if one.bucket_id in merging else "SEALED")
        for one in listed.buckets
    ]
    if damaged:
        anew = f"sexton delayed build {decode_topic_name(topic.name)}"
        note(f"messages of these buckets come from the log, which is slower; write them anew: {anew}")
    if unsealed.entries:
        rows.append(_open_row(context, topic, unsealed.entries))
    facts = {"messages": listed.messages + unsealed.entries, "memory_bytes": tracker.memory_bytes}
    table = Answer(document=rows, shown=[_shown(one) for one in rows], title="buckets", empty="no delayed messages")
    return Answer(document={**facts, "buckets": rows}, shown=facts, more=[table])


def _row(one: "Bucket", state: str) -> dict[str, object]:
    return {
        "bucket_id": one.bucket_id,
        "first_ledger": one.first.ledger_id,
        "last_ledger": one.last.ledger_id,
        **select_fields(one, "messages segments"),
        "state": state,
        "first": str(one.first),
        "last": str(one.last),
        "first_due": format_time_us(one.first_ms * 1_000),
        "last_due": format_time_us(one.last_ms * 1_000),
    }


def _open_row(context: CommandContext, topic: "Topic", messages: int) -> dict[str, object]:
    """Messages behind the last bucket: from its end to the end of the log."""
    sealed_to = context.catalog.delayed.listed(topic.topic_id).sealed_to
    ledgers = context.catalog.ledgers.listed(topic.topic_id, from_ledger=sealed_to.ledger_id)
    behind = [one.ledger_id for one in ledgers if one.span.last > sealed_to]
    ends = {"first_ledger": min(behind, default=None), "last_ledger": max(behind, default=None)}
    rest = dict.fromkeys(("first", "last", "first_due", "last_due"))
    return {"bucket_id": None, **ends, "messages": messages, "segments": 0, "state": "OPEN", **rest}


def _shown(row: dict[str, object]) -> dict[str, object]:
    first, last = row["first_ledger"], row["last_ledger"]
    rest = {name: row[name] for name in ("messages", "segments", "state", "first_due")}
    return {"bucket": row["bucket_id"], "ledgers": str(first) if first == last else f"{first} to {last}", **rest}


def _merging(context: CommandContext, topic: "Topic", buckets: "tuple[Bucket, ...]") -> "set[LedgerId]":
    """The two that a merge is at work on, as far as the claim of the list and the order of merges tell."""
    from logstore.delayed.buckets import pair_to_merge  # noqa: PLC0415 - start-up time
    from workflows.delayed.values import MERGE_BUCKETS  # noqa: PLC0415

    holder = context.catalog.delayed.holder(topic.topic_id)
    if holder != MERGE_BUCKETS.id(topic.topic_id):
        return set()
    return {one.bucket_id for one in pair_to_merge(buckets) or ()}


@job(delayed, "seal", "TOPIC", "TOPIC --no-wait")
def seal(context: CommandContext, name: TopicArgument, *, reason: Reason = "") -> Asked:
    """Put a topic's delayed messages into buckets, as far as consumers may see the log; also drop buckets that passed.

    Workers do so by themselves when there are enough messages, or when none came for a while.
    """
    topic = context.topic(name)
    return Job(
        lambda client: client.seal_buckets(topic, reason, context.actor),
        "sealing delayed messages",
        lambda workflow_id, result: _sealed(topic, workflow_id, result),
    )


def _sealed(topic: "Topic", workflow_id: str, result: "SealBucketsResult") -> Answer:
    counts = {"buckets": result.buckets, "messages": result.messages, "dropped": result.dropped}
    document = {"workflow_id": workflow_id, **counts, "merging": bool(result.merging)}
    if result.merging:
        note("it has more buckets than it may have: their merge was started, or runs")
    if result.overtaken:
        note("its buckets were changed by another job meanwhile: seal again for what came since")
    why = [_BUSY] if result.held else result.troubles[: result.failed]
    return (
        in_part(document, [{"id": topic.topic_id, "error": one} for one in why]) if why else Answer(document=document)
    )


@job(delayed, "merge", "TOPIC", "TOPIC --max-buckets 1 --json")
def merge(
    context: CommandContext, name: TopicArgument, *, max_buckets: MaxBuckets = None, reason: Reason = ""
) -> Asked:
    """Merge a topic's buckets two by two: those neighbours first that have the fewest messages.

    Messages that have been due for a minute are left out; they are in the log, which delivers them.
    """
    topic = context.topic(name)
    there = len(context.catalog.delayed.listed(topic.topic_id).buckets)
    most = max_buckets or min(context.settings.delayed_buckets, max(1, there - 1))
    return Job(lambda client: client.merge_buckets(topic, most, reason, context.actor), "merging buckets", _merged)


def _merged(workflow_id: str, result: "MergeBucketsResult") -> Answer:
    outcome = "" if result.outcome is None else result.outcome.value
    counts = {"merges": result.merges, "messages": result.messages, "passed": result.passed}
    ends = {"buckets": result.buckets, "max_buckets": result.limit}
    document = {"workflow_id": workflow_id, "outcome": outcome, **counts, **ends}
    failed = [{"id": one, "error": "its snapshot cannot be read"} for one in result.damaged]
    if outcome == "HELD":
        failed.append({"id": workflow_id, "error": _BUSY})
    return in_part(document, failed) if failed or outcome == "HELD" else Answer(document=document)


@job(delayed, "build", "TOPIC", '--all --reason "after a restore" --json')
def build(
    context: CommandContext,
    name: OneTopic = None,
    *,
    all_topics: AllTopics = False,
    master: Master = None,
    reason: Reason = "",
) -> Asked:
    """Build the buckets of a topic, or of all, from the delivery times in the log, in the place of those before.

    Workers seal and merge by themselves; this reads whole logs, and mends buckets that are damaged.
    """
    topics = one_or_all(context, name, all_topics=all_topics)
    context.require_store()
    return Job(
        lambda client: client.build_delayed_index(topics, master=master or "", reason=reason, actor=context.actor),
        "building indexes",
        built,
    )


@command(delayed, "clear", "TOPIC --dry-run", 'TOPIC --reason "damaged"')
def clear(context: CommandContext, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False) -> Answer:
    """Throw all buckets of a topic away. No message is lost: they are in the log, and come from there when due.

    The next seal looks through the log from its beginning. What a seal or a merge writes meanwhile is deleted, too.
    """
    topic = context.topic(name)
    index = context.catalog.delayed
    listed = index.listed(topic.topic_id)
    told = {"buckets": len(listed.buckets), "messages": listed.messages}
    if dry_run:
        return Answer(document={"dry_run": True, **told})
    if holder := index.holder(topic.topic_id):
        note(f"{holder} is at work on these buckets; what it writes is deleted with them")
    return Answer(document={**told, "buckets": index.clear(topic.topic_id, reason=reason)}, code=ExitCode.DONE)
