"""The contracts of workflows are read from the code."""

import json
import re
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

import workflows
from activities.deletion.phase_two_steps import delete_ledger_workflow_id
from activities.transactions.coordinate_transactions import broadcast_workflow_id
from logstore.deletion.intents import IntentKey
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.replay.record import HISTORIES
from tests.workflows.test_malformed import GOOD
from workers.reference.workflow_contracts import (
    WorkflowContract,
    is_final_error,
    list_contract_fields,
    list_workflow_contracts,
    read_errors_of_activities,
)
from workflows.delayed.job_definitions import SEAL_BUCKETS, BuildDelayedIndexInput, SealBucketsInput
from workflows.deletion.job_definitions import (
    DELETE_LEDGER,
    FAILED_OUTCOMES,
    DeleteLedgerInput,
    DeletionPolicy,
    TrimTopicInput,
)
from workflows.job_definition import JobDefinition
from workflows.jobs import JOB_BY_NAME
from workflows.reconciliation.job_definitions import SCRUB_LEDGERS, ScrubLedgersInput
from workflows.records.job_definitions import FLUSH_RECORDS, FOLLOW_RECORDS, FollowRecordsInput
from workflows.transactions.job_definitions import BROADCAST_TRANSACTION, BroadcastTransactionInput

_FOUND = {one.name: one for one in list_workflow_contracts()}
_SCHEDULED = "activityTaskScheduledEventAttributes"
_PLACEHOLDER = re.compile(r"{\w+}")
_WORKFLOWS = Path(workflows.__path__[0])


@pytest.mark.parametrize("contract", _FOUND.values(), ids=lambda one: one.name)
def test_contract_names_every_field_that_a_start_needs(contract: WorkflowContract) -> None:
    """Good starts, as the tests of malformed input vary them, give what must be given, and nothing unknown."""
    told = {one.name: one for one in list_contract_fields(contract.takes)}
    given = set(GOOD[contract.name])
    assert given <= set(told)
    assert {name for name, one in told.items() if one.default is MISSING} <= given


def test_field_has_its_type_its_default_its_bounds_and_the_comment_beside_it() -> None:
    """Each of them from where the code has it."""
    told = {one.name: one for one in list_contract_fields(TrimTopicInput)}
    assert (told["topic_id"].kind, told["topic_id"].default, told["topic_id"].bounds) == (int, MISSING, ("0 or more",))
    assert told["topic"].about == "encoded; for filters and people"
    assert told["topic"].bounds == ("persistent://tenant/namespace/topic",)
    assert told["actor"].bounds == ("1 to 200 printable characters, not . or ..; or nothing",)
    policy = {one.name: one for one in list_contract_fields(DeletionPolicy)}
    assert (policy["chunk"].default, policy["chunk"].bounds) == (100, ("1 to 1,000",))
    inherited = {one.name: one for one in list_contract_fields(BuildDelayedIndexInput)}
    assert inherited["run_id"].about == "empty: the job takes one"
    assert inherited["queue"].bounds == ("sexton-bulk, or nothing: workers serve no other for these",)


@pytest.mark.parametrize("job", JOB_BY_NAME.values(), ids=lambda one: one.name)
def test_ids_are_made_of_what_the_request_names(job: JobDefinition[Any, Any]) -> None:
    """The id of each good start has one of the forms that the reference lists."""
    request = TypeAdapter(job.request).validate_python(GOOD[job.name])
    forms = [_PLACEHOLDER.sub(".+", form) for form in _FOUND[job.name].ids]
    assert any(re.fullmatch(form, job.id_of_request(request)) for form in forms)


def test_ids_of_some_jobs() -> None:
    """A transaction is written with a hyphen, and many topics as a digest."""
    assert _FOUND["seal-buckets"].ids == ("seal-buckets", "seal-buckets/{topic_id}")
    assert SEAL_BUCKETS.id_of_request(SealBucketsInput()) == "seal-buckets"
    assert SEAL_BUCKETS.id_of_request(SealBucketsInput(topic_id=0)) == "seal-buckets/0"
    broadcast = BroadcastTransactionInput(txn="3:17")
    assert BROADCAST_TRANSACTION.id_of_request(broadcast) == "broadcast-transaction/3-17"
    assert broadcast_workflow_id(TransactionId(3, 17)) == "broadcast-transaction/3-17"
    assert SCRUB_LEDGERS.id_of_request(ScrubLedgersInput()) == "scrub-ledgers"
    assert SCRUB_LEDGERS.id_of_request(ScrubLedgersInput(topic_ids=[7])) == "scrub-ledgers/7"
    assert re.fullmatch("scrub-ledgers/[0-9a-f]{16}", SCRUB_LEDGERS.id_of_request(ScrubLedgersInput(topic_ids=[7, 8])))
    assert _FOUND["follow-records"].ids[0] == "follow-records/{replica}"
    follow = FollowRecordsInput(replica="far/one", seed=True, watch_s=1.0)
    assert FOLLOW_RECORDS.id_of_request(follow) == "follow-records/far/one/seed"
    assert FOLLOW_RECORDS.id_of_request(replace(follow, seed=False)) == "follow-records/far/one/watch"
    key = IntentKey(ledger_id=1, copy="LEDGER", generation=2, openings=3)
    deletion = DeleteLedgerInput(key=key, topic="", catalog_epoch=1)
    assert DELETE_LEDGER.id_of_request(deletion) == delete_ledger_workflow_id(key) == "delete-ledger/1/LEDGER/2/3"


@pytest.mark.parametrize("job", JOB_BY_NAME.values(), ids=lambda one: one.name)
def test_activities_and_children_are_those_that_recorded_runs_start(job: JobDefinition[Any, Any]) -> None:
    """The recorded histories of each type are replayed with the workflows of today, and go through every activity."""
    events = [
        event for path in HISTORIES.glob(f"{job.name}/*/*.json") for event in json.loads(path.read_text())["events"]
    ]
    scheduled = [one[_SCHEDULED] for one in events if _SCHEDULED in one]
    assert {*job.activities} == {one["activityType"]["name"] for one in scheduled}
    starts_jobs = any("startChildWorkflowExecutionInitiatedEventAttributes" in one for one in events)
    assert job.starts_jobs is (starts_jobs or job is FLUSH_RECORDS), "a flush starts a child after a thousand blocks"


@pytest.mark.parametrize("job", JOB_BY_NAME.values(), ids=lambda one: one.name)
def test_each_final_error_of_an_activity_refuses_the_job_or_ends_it_or_is_handled(job: JobDefinition[Any, Any]) -> None:
    """And a job ends with no error that nothing of it raises."""
    raised = {error for name in job.activities for error in read_errors_of_activities()[name] if is_final_error(error)}
    assert raised <= {*job.guards, *job.failures, *job.handled_errors, "InvalidInput"}
    assert {*job.handled_errors} <= raised
    of_other_jobs = {error for other in JOB_BY_NAME.values() if job.starts_jobs for error in other.failures}
    code = "".join(path.read_text() for path in _WORKFLOWS.rglob("*.py") if path.name != "job_definitions.py")
    own = {error for error in job.failures if f'"{error}"' in code} | {*FAILED_OUTCOMES}
    assert {*job.failures} <= raised | of_other_jobs | own


def test_errors_are_those_of_the_activities_and_of_the_workflow_itself() -> None:
    """What a guard refuses is a result; what an owner lost is looked up again; a dead letter fails by its outcome."""
    batch = _FOUND["delete-ledgers"]
    assert batch.refused == ("LedgerStillNeeded", "UnknownObject")
    assert {"InvalidInput", "LookupRefused"} <= set(batch.fails)
    assert "StoreUnavailable" in batch.retried
    assert not {"NotOwner", "LedgerStillNeeded"} & {*batch.fails, *batch.retried}
    assert {"DEAD_LETTERED", "NoProgress", "UNKNOWN"} <= set(_FOUND["delete-ledger"].fails)
    assert "OffloadOvertaken" in _FOUND["offload-ledger"].fails
    assert _FOUND["offload-topic"].refused == (), "its `refused` is a count"
    assert "CatalogAdopting" in _FOUND["end-records"].refused
    assert "CatalogAdopting" not in _FOUND["apply-orphans"].refused, "guards of another room are not its own"


def test_errors_that_a_workflow_makes_a_result_of_do_not_fail_it() -> None:
    """What a guard refuses, what is told in the result, and what an update's sender is told."""
    assert _FOUND["follow-records"].fails == _FOUND["end-records"].fails == ("InvalidInput",)
    assert "MissingData" in _FOUND["follow-records"].refused
    assert "FunctionFailed" in _FOUND["end-records"].refused
    assert _FOUND["offload-topic"].fails == ("InvalidInput",), "an ask that fails is told"
    assert _FOUND["build-delayed-index"].fails == ("CorruptData", "InvalidInput", "UnknownObject")


def test_errors_that_no_guard_looks_at_fail_a_workflow() -> None:
    """Behind its first step, where the same is refused, and of a batch that it waits for."""
    assert {"CatalogMismatch", "PreconditionFailed", "StaleCatalog"} <= set(_FOUND["apply-orphans"].fails)
    assert {"CatalogMismatch", "PreconditionFailed", "StaleCatalog"} <= set(_FOUND["apply-orphans"].refused)
    assert "ClaimHeld" in _FOUND["trim-topic"].fails
    assert "ClaimHeld" not in _FOUND["trim-topics"].fails


def test_calls_are_those_that_a_workflow_answers() -> None:
    """Signals, queries and updates, with what they take and give."""
    batch = _FOUND["delete-ledgers"]
    assert [one.name for one in batch.updates] == ["pause", "resume", "set_rate"]
    assert [one.name for one in batch.queries] == ["progress"]
    assert [(one.name, one.takes) for one in _FOUND["trim-topic"].signals] == [("again", ())]
