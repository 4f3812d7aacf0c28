"""Keys of offloads, and verdicts on objects that nothing refers to: in doubt an object is foreign, and no orphan."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.pulsar.ledger_references import ManagedLedgerReferences, OffloadAttempt
from logstore.pulsar.offload_objects import (
    ManagedLedgerLookup,
    OffloadJudgement,
    OffloadKey,
    OffloadObject,
    OffloadRole,
    OffloadVerdict,
    find_stated_managed_ledger,
    judge_missing_objects,
    judge_unreferenced_offload,
    judge_unreferenced_upload,
    parse_offload_key,
)

_UUID = "1fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d"
_TOPIC = "t/ns/persistent/a%2Fb"


def offload_object(role: OffloadRole = OffloadRole.DATA, **changes: Any) -> OffloadObject:
    metadata = {
        "role": role.value,
        "managedledgername": _TOPIC,
        "pulsarclustername": "here",
        "s3managedledgeroffloaderformatversion": "1",
    }
    values: dict[str, Any] = {
        "key": OffloadKey(_UUID, 7, role),
        "size_bytes": 100,
        "modified_us": 1_000,
        "metadata": metadata,
    }
    return OffloadObject(**(values | changes))


def stating(key_role: OffloadRole = OffloadRole.DATA, **metadata: str | None) -> OffloadObject:
    changed = {**offload_object(key_role).metadata, **metadata}
    return offload_object(key_role, metadata={name: value for name, value in changed.items() if value is not None})


@given(st.uuids(), st.integers(0, 10**18 - 1), st.sampled_from(OffloadRole))
def test_a_key_is_parsed_as_it_is_written(uuid: UUID, ledger_id: int, role: OffloadRole) -> None:
    key = OffloadKey(str(uuid), ledger_id, role)
    assert parse_offload_key(str(key)) == key


@pytest.mark.parametrize(
    "key",
    [
        _UUID,
        f"{_UUID}-index",
        f"{_UUID}-ledger-",
        f"{_UUID}-ledger-007",
        f"{_UUID}-ledger--1",
        f"{_UUID}-ledger-7-index-index",
        f"{_UUID}-ledger-7-INDEX",
        f"{_UUID}-ledger-7\n",
        f"{_UUID}-ledger-{1 << 63}",
        f"{_UUID}-ledger-\N{ARABIC-INDIC DIGIT SEVEN}",
        f"{_UUID.upper()}-ledger-7",
        f"folder/{_UUID}-ledger-7",
        f"{_UUID}0-ledger-7",
        "ledger-7",
    ],
)
def test_any_other_key_is_foreign(key: str) -> None:
    assert parse_offload_key(key) is None


_ABSENT = ManagedLedgerLookup(exists=False, references=ManagedLedgerReferences(()))


def naming(*uuids: str, shadow_source: str = "", **changes: Any) -> ManagedLedgerLookup:
    """A managed ledger that exists, with offloads of ledger 7."""
    values: dict[str, Any] = {"complete": True, "bookkeeper_deleted": False, "bucket": "tiered"}
    offloads = tuple(OffloadAttempt(7, UUID(uuid), **(values | changes)) for uuid in uuids)
    return ManagedLedgerLookup(exists=True, references=ManagedLedgerReferences((7,), offloads, shadow_source))


_RETRIED = naming("0" * 8 + _UUID[8:])
_DAMAGED = ManagedLedgerLookup(exists=True, references=None)


@pytest.mark.parametrize(
    ("managed_ledger", "verdict"),
    [
        (_ABSENT, OffloadVerdict.OWNER_ABSENT),
        (_RETRIED, OffloadVerdict.OWNER_NOT_LISTING),
        (naming(_UUID), OffloadVerdict.REFERENCED),
        (naming(_UUID, complete=False), OffloadVerdict.REFERENCED),
        (_DAMAGED, OffloadVerdict.OWNER_UNREADABLE),
    ],
)
def test_the_managed_ledger_has_the_last_word_on_objects_of_this_cluster(
    managed_ledger: ManagedLedgerLookup, verdict: OffloadVerdict
) -> None:
    pair = [offload_object(), offload_object(OffloadRole.INDEX, size_bytes=20, modified_us=2_000)]
    assert find_stated_managed_ledger(pair, "here") == _TOPIC
    judgement = judge_unreferenced_offload(pair, managed_ledger, listed_bytes=120, listed_us=2_000)
    assert judgement.verdict is verdict
    assert verdict.is_finding is (managed_ledger in (_ABSENT, _RETRIED))


@pytest.mark.parametrize("change", [{"modified_us": 1_001}, {"modified_us": None}, {"size_bytes": 99}])
def test_objects_that_differ_from_the_listing_are_no_orphan(change: dict[str, Any]) -> None:
    judgement = judge_unreferenced_offload([offload_object(**change)], _ABSENT, listed_bytes=100, listed_us=1_000)
    assert judgement.verdict is OffloadVerdict.CHANGED


def test_objects_that_are_gone_are_no_orphan() -> None:
    judgement = find_stated_managed_ledger([], "here")
    assert isinstance(judgement, OffloadJudgement)
    assert judgement.verdict is OffloadVerdict.OBJECTS_ABSENT


@pytest.mark.parametrize(
    ("changed_us", "managed_ledger", "verdict"),
    [
        ([999, 5], None, OffloadVerdict.OWNER_UNSTATED),
        ([999], _RETRIED, OffloadVerdict.OWNER_NOT_LISTING),
        ([999], _ABSENT, OffloadVerdict.OWNER_ABSENT),
        ([999], naming(_UUID, complete=False), OffloadVerdict.REFERENCED),
        ([999], _DAMAGED, OffloadVerdict.OWNER_UNREADABLE),
        ([999, 1_000], None, OffloadVerdict.CHANGED),
        ([999, None], None, OffloadVerdict.CHANGED),
        ([], None, OffloadVerdict.OBJECTS_ABSENT),
    ],
)
def test_an_upload_is_abandoned_if_every_part_is_old_and_nothing_names_it(
    changed_us: list[int | None], managed_ledger: ManagedLedgerLookup | None, verdict: OffloadVerdict
) -> None:
    assert judge_unreferenced_upload(_UUID, changed_us, managed_ledger, before_us=1_000).verdict is verdict


@pytest.mark.parametrize(
    ("roles", "managed_ledger", "verdict"),
    [
        ([], naming(_UUID, bookkeeper_deleted=True), OffloadVerdict.DATA_LOST),
        ([OffloadRole.DATA], naming(_UUID, bookkeeper_deleted=True), OffloadVerdict.DATA_LOST),
        ([OffloadRole.INDEX], naming(_UUID), OffloadVerdict.DATA_ENDANGERED),
        (list(OffloadRole), naming(_UUID, bookkeeper_deleted=True), OffloadVerdict.OBJECTS_PRESENT),
        ([], naming(_UUID, complete=False), OffloadVerdict.CHANGED),
        ([], naming(_UUID, shadow_source="persistent://t/ns/a"), OffloadVerdict.CHANGED),
        ([], _RETRIED, OffloadVerdict.CHANGED),
        ([], _ABSENT, OffloadVerdict.CHANGED),
        ([], _DAMAGED, OffloadVerdict.OWNER_UNREADABLE),
    ],
)
def test_data_are_lost_if_a_complete_offload_lacks_an_object(
    roles: list[OffloadRole], managed_ledger: ManagedLedgerLookup, verdict: OffloadVerdict
) -> None:
    stored = [offload_object(role) for role in roles]
    judgement = judge_missing_objects(OffloadKey(_UUID, 7), stored, managed_ledger)
    assert judgement.verdict is verdict


@pytest.mark.parametrize(
    "objects",
    [
        [stating(pulsarclustername="there")],
        [stating(pulsarclustername=None)],
        [stating(pulsarclustername="Here")],
        [stating(role="index")],
        [stating(role=None)],
        [stating(managedledgername=None)],
        [stating(managedledgername="t/ns/non-persistent/a")],
        [stating(managedledgername="t/../persistent/a")],
        [stating(managedledgername="t/ns/persistent")],
        [stating(managedledgername="t/ns/persistent/a/cursor")],
        [stating(), stating(OffloadRole.INDEX, managedledgername="t/ns/persistent/other")],
        [stating(), stating(OffloadRole.INDEX, pulsarclustername="there")],
    ],
)
def test_objects_that_do_not_all_state_this_cluster_and_one_managed_ledger_are_foreign(
    objects: list[OffloadObject],
) -> None:
    judgement = find_stated_managed_ledger(objects, "here")
    assert isinstance(judgement, OffloadJudgement)
    assert judgement.verdict is OffloadVerdict.FOREIGN


def test_without_a_name_of_the_cluster_all_objects_are_foreign() -> None:
    judgement = find_stated_managed_ledger([stating(pulsarclustername="")], "")
    assert isinstance(judgement, OffloadJudgement)


def test_names_of_metadata_may_come_back_in_capitals() -> None:
    metadata = {name.capitalize(): value for name, value in offload_object().metadata.items()}
    assert find_stated_managed_ledger([offload_object(metadata=metadata)], "here") == _TOPIC
