"""A job that a command started: told at once or waited for, and what it has left undone.

The copies that failed are read from the catalog once the job has ended, and not carried in its result: such lists have
no bound.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import InvalidInput, SextonError
from logstore.positions import LedgerId
from workers.cli.command import Group, command
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode, code_of_outcomes
from workers.cli.options import Wait
from workers.cli.output import Answer, note
from workers.cli.progress import watching
from workers.pages.texts import decode_topic_name

if TYPE_CHECKING:
    from temporalio.client import WorkflowHandle

    from logstore.ports.catalog import Topic
    from workers.client import Sexton
    from workflows.jobs import BuildResult

R = TypeVar("R")

MOST_FAILED = 100
"""Items under `failed`; the counts of outcomes have no such bound."""

_MOST_IDS = 10  # in a command that is shown, which stays one line
_DEAD = DeletionState.DEAD_LETTERED


def started(client: "Sexton", handle: Any) -> dict[str, object]:  # noqa: ANN401 - Temporal's handle, of any result
    """A workflow's id and the run that was started or joined, as is told at once; its page on stderr."""
    run_id = _show_page(client, handle)
    return {"workflow_id": handle.id, "run_id": run_id}


def _show_page(client: "Sexton", handle: Any) -> str | None:  # noqa: ANN401
    """Tell people where the run is in the Web UI, if one is known; the run's id."""
    run_id: str | None = handle.first_execution_run_id or handle.result_run_id or handle.run_id
    page = client.page_of(handle.id, run_id)
    if page:
        note(f"watch it: {page}")
    return run_id


async def finished(client: "Sexton", handle: Any, doing: str) -> Any:  # noqa: ANN401
    """The workflow's result; stderr tells of the wait, why it takes long and, at Ctrl-C, that the job goes on."""
    import asyncio  # noqa: PLC0415 - start-up time

    _show_page(client, handle)
    try:
        with watching(f"{doing} ({handle.id})"):
            return await client.result_of(handle, note)
    except asyncio.CancelledError:
        note(f"no longer waiting; the workflow {handle.id} goes on")
        raise


@dataclass(frozen=True, slots=True)
class Job(Generic[R]):
    """A job that a command asks for."""

    start: "Callable[[Sexton], Awaitable[WorkflowHandle[Any, R]]]"  # starts it, or joins it
    doing: str  # text for people while it is waited for
    answer: Callable[[str, R], Answer]  # from the workflow's id and its result
    begun: Callable[[Mapping[str, object]], Answer] = lambda run: Answer(document=run)  # where it is not waited for


Asked = Answer | Job[Any]
"""A job, or the answer where none is to be started."""

Body = TypeVar("Body", bound=Callable[..., Asked])


def job(app: Group, name: str, *examples: str) -> Callable[[Body], Body]:
    """As `command`, for a function that says which job is to be started.

    Its command has `--wait/--no-wait`: it tells which run it is or, having waited, what it came to.
    """

    def register(body: Body) -> Body:
        def run(context: CommandContext, *, wait: bool, **arguments: object) -> Answer:
            asked = body(context, **arguments)
            return asked if isinstance(asked, Answer) else _run(context, asked, wait=wait)

        known = inspect.signature(body)
        option = inspect.Parameter("wait", inspect.Parameter.KEYWORD_ONLY, default=True, annotation=Wait)
        run.__doc__ = body.__doc__
        run.__signature__ = known.replace(parameters=[*known.parameters.values(), option])  # type: ignore[attr-defined]
        command(app, name, *examples)(run)
        return body

    return register


def _run(context: CommandContext, asked: Job[Any], *, wait: bool) -> Answer:
    async def work(client: "Sexton") -> Answer:
        handle = await asked.start(client)
        if not wait:
            return asked.begun(started(client, handle))
        return asked.answer(handle.id, await finished(client, handle, asked.doing))

    return context.with_client(work)


def counted(outcomes: Mapping[str, int]) -> dict[str, int]:
    """Outcomes as plain text and numbers, ascending by name."""
    return {str(name): int(count) for name, count in sorted(outcomes.items())}


def ended(
    context: CommandContext,
    document: Mapping[str, object],
    outcomes: Mapping[str, int],
    *,
    topic: "Topic | None" = None,
    batch_id: str | None = None,
    ledger_ids: Sequence[LedgerId] | None = None,
) -> Answer:
    """The answer of a job that deletes: if it ended in part, with what failed of this topic, batch or these ledgers."""
    whole = {**document, "outcomes": counted(outcomes)}
    if code_of_outcomes(outcomes) is ExitCode.DONE:
        return Answer(document=whole)
    left = left_of(context, topic=topic, batch_id=batch_id, ledger_ids=ledger_ids)
    return in_part(whole, [{"id": one.row_id, "ledger_id": one.ledger_id, "error": why(one)} for one in left])


def in_part(document: Mapping[str, object], failed: Sequence[Mapping[str, object]]) -> Answer:
    """A job that is finished in part: the items that failed are in the document, and for people in a table below."""
    items = list(failed[:MOST_FAILED])
    table = Answer(document=items, title="failed", beneath=("error",))
    shown = {name: value for name, value in document.items() if name != "failed"}
    return Answer(
        document={**document, "failed": items}, shown=shown, more=[table] if items else [], code=ExitCode.PARTIAL
    )


def one_or_all(context: CommandContext, name: str | None, *, all_topics: bool) -> "list[Topic] | None":
    """The topic that is named, or None for all.

    Raises:
        InvalidInput: Neither or both were asked for, or there is no such topic.
    """
    if (name is None) is not all_topics:
        found = "neither" if name is None else f"{name} and --all"
        raise InvalidInput("topic", expected="the name of one topic, or --all", found=found)
    return None if name is None else [context.topic(name)]


def built(workflow_id: str, result: "BuildResult") -> Answer:
    """The answer of a bulk build; finished in part where topics could not be read."""
    document = {"workflow_id": workflow_id, "run_id": result.run_id, **counted(result.counts)}
    if not result.counts.get("unreadable"):
        return Answer(document=document)
    left = (one.partition(": ") for one in result.left_out)
    return in_part(document, [{"topic": topic, "error": why} for topic, _, why in left])


def left_of(
    context: CommandContext,
    *,
    topic: "Topic | None" = None,
    batch_id: str | None = None,
    ledger_ids: Sequence[LedgerId] | None = None,
) -> Sequence[DeletionIntent]:
    """At most `MOST_FAILED` deletions that failed, newest first; says on stderr what to do about them."""
    topic_id = None if topic is None else topic.topic_id
    try:
        found = context.catalog.deletions.failures(
            topic_id=topic_id, batch_id=batch_id, ledger_ids=ledger_ids, limit=MOST_FAILED
        )
    except SextonError as fault:  # what the job came to is known, and is the answer
        note(f"the catalog does not say which failed ({fault}); see `sexton deletion list`")
        return []
    of_topic = "" if topic is None else f" --topic {decode_topic_name(topic.name)}"
    dead = [str(one.row_id) for one in found if one.state is _DEAD]
    if dead:
        ids = " ".join(dead[:_MOST_IDS]) + (" …" if len(dead) > _MOST_IDS else "")
        note(f"dead letters: sexton deletion list --state DEAD_LETTERED{of_topic}")
        note(f"once their cause is mended: sexton deletion redrive {ids}")
    if len(dead) < len(found):
        note(f"tried again by workflows of their own: sexton deletion list --state PENDING{of_topic}")
    return found


def why(one: DeletionIntent) -> str:
    """The last error of a deletion, or what is known in its place."""
    known = one.outcome.value if one.outcome else f"{one.handed_to} is at work on it"
    return one.last_error or one.damage or known
