"""Search attributes by which an operator filters workflows. All of them must be registered at the server."""

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair

from workflows.job_definition import DescribedJobInput

TOPIC = SearchAttributeKey.for_keyword("SextonTopic")  # encoded name
LEDGER_ID = SearchAttributeKey.for_int("SextonLedgerId")
OUTCOME = SearchAttributeKey.for_keyword_list("SextonOutcome")  # every outcome that occurred
RUN_ID = SearchAttributeKey.for_keyword("SextonRunId")  # batch id or plan's run id
TRANSACTION = SearchAttributeKey.for_keyword("SextonTransaction")  # tc:sequence

ALL: tuple[SearchAttributeKey[Any], ...] = (TOPIC, LEDGER_ID, OUTCOME, RUN_ID, TRANSACTION)


def list_attributes_of_request(request: DescribedJobInput) -> list[SearchAttributePair[Any]]:
    """Return the search attributes for the subject of a job's input. An empty part of the subject has none."""
    subject = request.subject()
    values: dict[SearchAttributeKey[Any], object] = {
        TOPIC: subject.topic,
        LEDGER_ID: subject.ledger_id,
        RUN_ID: subject.run_id or subject.batch_id,
        TRANSACTION: subject.txn,
    }
    return [SearchAttributePair(key, value) for key, value in values.items() if value not in {"", None}]


def ensure_topic(topic: str) -> None:
    """Set the attribute `TOPIC` of this run if the starter has not set `TOPIC`. Ignore an empty `topic`."""
    if topic and workflow.info().typed_search_attributes.get(TOPIC) is None:
        workflow.upsert_search_attributes([TOPIC.value_set(topic)])
