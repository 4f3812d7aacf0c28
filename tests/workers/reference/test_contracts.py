"""The contracts of workflows are read from the code."""

import re
import sys
from dataclasses import MISSING
from types import ModuleType

import pytest

from tests.workflows.test_malformed import GOOD
from workers.reference import reachable_errors
from workers.reference.workflow_contracts import (
    WorkflowContract,
    _list_workflow_id_forms,
    list_contract_fields,
    list_jobs_by_name,
    list_workflow_contracts,
)
from workflows.delayed.job_definitions import BuildDelayedIndexInput
from workflows.deletion.job_definitions import DeletionPolicy, TrimTopicInput

_FOUND = {one.name: one for one in list_workflow_contracts()}
_PLACEHOLDER = re.compile(r"{(\w+)}")


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


def test_ids_are_made_of_what_the_request_names() -> None:
    """A program can fill in each form; a transaction is written with a hyphen."""
    for name, job in list_jobs_by_name().items():
        known = {one.name for one in list_contract_fields(job.request)} | (
            {"tc", "sequence"} if "txn" in GOOD[name] else set()
        )
        assert {part for key in job.keys for part in _PLACEHOLDER.findall(key)} <= known, name
    assert _FOUND["seal-buckets"].ids == ("seal-buckets", "seal-buckets/{topic_id}")
    assert _FOUND["follow-records"].ids[0] == "follow-records/{replica}"
    with pytest.raises(LookupError, match="workflow no-such-job: expected a job with an id"):
        _list_workflow_id_forms("no-such-job")
    assert _FOUND["delete-ledger"].ids[1] == "delete-ledger/{ledger_id}/{copy}/{generation}/{openings}"


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


def test_only_what_a_workflow_reaches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a module that several share each has what its own methods name, and of a class the methods that are used."""
    shared = ModuleType("workflows.shared_by_two")
    source = """
from temporalio.exceptions import ApplicationError

GUARDS = ("CatalogAdopting",)

def used():
    raise ApplicationError("", type="Used")

def unused():
    raise ApplicationError("", type="Unused", details=GUARDS)

class Kept:
    def asked(self):
        used()

    def never(self):
        unused()

class One:
    def __init__(self, kept: Kept):
        kept.asked()
"""
    monkeypatch.setattr("inspect.getsource", lambda _: source)
    monkeypatch.setitem(sys.modules, shared.__name__, shared)
    exec(source, shared.__dict__)  # noqa: S102 - the text above
    code = reachable_errors.collect_reachable_code(shared.One)
    assert reachable_errors.find_raised_failure_types(code) == {"Used"}
    assert reachable_errors.find_guard_refusals(code) == set()


def test_calls_are_those_that_a_workflow_answers() -> None:
    """Signals, queries and updates, with what they take and give."""
    batch = _FOUND["delete-ledgers"]
    assert [one.name for one in batch.updates] == ["pause", "resume", "set_rate"]
    assert [one.name for one in batch.queries] == ["progress"]
    assert [(one.name, one.takes) for one in _FOUND["trim-topic"].signals] == [("again", ())]
