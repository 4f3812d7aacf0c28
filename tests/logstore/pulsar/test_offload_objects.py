"""Keys of offloads, and verdicts on objects that nothing refers to: in doubt an object is foreign, and no orphan."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.pulsar.offload_objects import (
    ManagedLedgerLookup,
    OffloadJudgement,
    OffloadKey,
    OffloadObject,
    OffloadRole,
    OffloadVerdict,
    find_stated_managed_ledger,
    judge_unreferenced_offload,
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


_ABSENT = ManagedLedgerLookup(exists=False)
_RETRIED = ManagedLedgerLookup(exists=True, uuids=frozenset({"0" * 8 + _UUID[8:]}))


@pytest.mark.parametrize(
    ("managed_ledger", "verdict"),
    [
        (_ABSENT, OffloadVerdict.OWNER_ABSENT),
        (_RETRIED, OffloadVerdict.OWNER_NOT_LISTING),
        (ManagedLedgerLookup(exists=True, uuids=frozenset({_UUID})), OffloadVerdict.REFERENCED),
        (ManagedLedgerLookup(exists=True, uuids=None), OffloadVerdict.OWNER_UNREADABLE),
    ],
)
def test_the_managed_ledger_has_the_last_word_on_objects_of_this_cluster(
    managed_ledger: ManagedLedgerLookup, verdict: OffloadVerdict
) -> None:
    pair = [offload_object(), offload_object(OffloadRole.INDEX, size_bytes=20, modified_us=2_000)]
    assert find_stated_managed_ledger(pair, "here") == _TOPIC
    judgement = judge_unreferenced_offload(pair, managed_ledger, listed_bytes=120, listed_us=2_000)
    assert judgement.verdict is verdict
    assert verdict.is_orphan is (managed_ledger in {_ABSENT, _RETRIED})


@pytest.mark.parametrize("change", [{"modified_us": 1_001}, {"modified_us": None}, {"size_bytes": 99}])
def test_objects_that_differ_from_the_listing_are_no_orphan(change: dict[str, Any]) -> None:
    judgement = judge_unreferenced_offload([offload_object(**change)], _ABSENT, listed_bytes=100, listed_us=1_000)
    assert judgement.verdict is OffloadVerdict.CHANGED


def test_objects_that_are_gone_are_no_orphan() -> None:
    judgement = judge_unreferenced_offload([], _ABSENT, listed_bytes=0, listed_us=1_000)
    assert judgement.verdict is OffloadVerdict.OBJECTS_ABSENT


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
        [],
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
