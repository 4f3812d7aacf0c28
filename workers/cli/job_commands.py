"""Jobs that commands start. The answer is the started run, or the job's result with its failures."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from logstore.errors import SextonError
from logstore.positions import LedgerId
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode, get_exit_code_of_outcomes
from workers.cli.output import MAX_FAILURES, Answer, answer_partial_failure, print_note, show_progress_bar, sort_counts
from workers.human_readable_values import decode_topic_name, select_fields

if TYPE_CHECKING:
    from temporalio.client import WorkflowHandle

    from logstore.deletion.intents import DeletionIntent
    from logstore.ports.catalog.log import Topic
    from workers.client import Sexton
    from workflows.topic_build_types import BuildResult

Result = TypeVar("Result")

_MAX_IDS = 10  # ids in a suggested command, which must fit into one line


def announce_run(client: "Sexton", handle: Any) -> dict[str, object]:  # noqa: ANN401 - Temporal's handle, of any result
    """Return the ids of the workflow and of the started or joined run. A note shows the run's page in the Web UI."""
    run_id: str | None = handle.first_execution_run_id or handle.result_run_id or handle.run_id
    page = client.format_web_ui_url(handle.id, run_id)
    if page:
        print_note(f"watch it: {page}")
    return {"workflow_id": handle.id, "run_id": run_id}


async def wait_with_progress(client: "Sexton", handle: Any, activity: str) -> Any:  # noqa: ANN401
    """Return the workflow's result. Notes say why the job does not move, and after Ctrl-C that the job continues."""
    import asyncio  # noqa: PLC0415 - start-up time

    announce_run(client, handle)
    try:
        with show_progress_bar(f"{activity} ({handle.id})"):
            return await client.wait_for_result(handle, print_note)
    except asyncio.CancelledError:
        print_note(f"no longer waiting; the workflow {handle.id} goes on")
        raise


@dataclass(frozen=True, slots=True)
class CommandLineJob(Generic[Result]):
    start: "Callable[[Sexton], Awaitable[WorkflowHandle[Any, Result]]]"  # starts or joins the job
    activity: str  # shown while the user waits
    answer: Callable[[str, Result], Answer]  # takes the workflow's id and its result
    answer_started: Callable[[Mapping[str, object]], Answer] = lambda run: Answer(document=run)  # for `--no-wait`

    def run(self, context: CommandContext, *, wait: bool) -> Answer:
        async def start_and_answer(client: "Sexton") -> Answer:
            handle = await self.start(client)
            if not wait:
                return self.answer_started(announce_run(client, handle))
            return self.answer(handle.id, await wait_with_progress(client, handle, self.activity))

        return context.run_with_client(start_and_answer)


JobOrAnswer = CommandLineJob[Any] | Answer
"""Job to start, or an answer if no job is needed, as with `--dry-run`."""


def answer_deletion_outcomes(
    context: CommandContext,
    document: Mapping[str, object],
    outcomes: Mapping[str, int],
    *,
    topic: "Topic | None" = None,
    batch_id: str | None = None,
    ledger_ids: Sequence[LedgerId] | None = None,
) -> Answer:
    document = {**document, "outcomes": sort_counts(outcomes)}
    if get_exit_code_of_outcomes(outcomes) is ExitCode.DONE:
        return Answer(document=document)
    intents = find_failed_deletions_and_advise(context, topic=topic, batch_id=batch_id, ledger_ids=ledger_ids)
    rows = [
        {"id": intent.row_id, "ledger_id": intent.ledger_id, "error": describe_failure(intent)} for intent in intents
    ]
    return answer_partial_failure(document, rows)


def make_deletion_answer(
    context: CommandContext,
    fields: str = "",
    *,
    topic: "Topic | None" = None,
    ledger_ids: Sequence[LedgerId] | None = None,
) -> Callable[[str, Any], Answer]:
    """Return the `answer` of a `CommandLineJob` whose result has `outcomes`. `fields` are more fields of the result."""

    def answer(workflow_id: str, result: Any) -> Answer:  # noqa: ANN401 - the results of jobs have no common class
        document = {"workflow_id": workflow_id, **select_fields(result, fields)}
        return answer_deletion_outcomes(context, document, result.outcomes, topic=topic, ledger_ids=ledger_ids)

    return answer


def answer_topic_builds(workflow_id: str, result: "BuildResult") -> Answer:
    document = {"workflow_id": workflow_id, "run_id": result.run_id, **sort_counts(result.counts)}
    if not result.counts.get("unreadable"):
        return Answer(document=document)
    causes = (topic.partition(": ") for topic in result.left_out)
    return answer_partial_failure(document, [{"topic": topic, "error": error} for topic, _, error in causes])


def find_failed_deletions_and_advise(
    context: CommandContext,
    *,
    topic: "Topic | None" = None,
    batch_id: str | None = None,
    ledger_ids: Sequence[LedgerId] | None = None,
) -> "Sequence[DeletionIntent]":
    """Return at most 100 failed deletions, newest first. Notes say what an operator can do."""
    from logstore.deletion.intents import DeletionState  # noqa: PLC0415 - start-up time

    topic_id = None if topic is None else topic.topic_id
    try:
        intents = context.catalog.deletions.list_failed_intents(
            topic_id=topic_id, batch_id=batch_id, ledger_ids=ledger_ids, limit=MAX_FAILURES
        )
    except SextonError as fault:  # the answer is complete without the failures
        print_note(f"the catalog does not say which failed ({fault}); see `sexton deletion list`")
        return []
    topic_option = "" if topic is None else f" --topic {decode_topic_name(topic.name)}"
    dead_ids = [str(intent.row_id) for intent in intents if intent.state is DeletionState.DEAD_LETTERED]
    if dead_ids:
        ids = " ".join(dead_ids[:_MAX_IDS]) + (" …" if len(dead_ids) > _MAX_IDS else "")
        print_note(f"dead letters: sexton deletion list --state DEAD_LETTERED{topic_option}")
        print_note(f"once their cause is mended: sexton deletion redrive {ids}")
    if len(dead_ids) < len(intents):
        print_note(f"tried again by workflows of their own: sexton deletion list --state PENDING{topic_option}")
    return intents


def describe_failure(intent: "DeletionIntent") -> str:
    """Return the intent's last error. Without an error, return its outcome or the workflow that works on the intent."""
    status = intent.outcome.value if intent.outcome else f"{intent.handed_to} is at work on it"
    return intent.last_error or intent.damage or status
