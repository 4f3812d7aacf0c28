"""A managed ledger is an orphan only if no topic of a possible name exists, or if its namespace has no policies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.pulsar.orphan_managed_ledgers import (
    ManagedLedgerVerdict,
    NamePrefixes,
    judge_managed_ledger,
    list_possible_namespaces,
    list_possible_topics,
)

_PARENT = "t/ns/persistent"
_PENDING = f"{_PARENT}/a-b-sub__transaction_pending_ack"


def test_hyphens_leave_the_topic_of_pending_acknowledgements_open() -> None:
    assert list_possible_topics(_PENDING) == [f"{_PARENT}/a", f"{_PARENT}/a-b"]
    assert list_possible_topics(f"{_PARENT}/a-b") == []
    assert list_possible_topics(f"{_PARENT}/a__transaction_pending_ack") == []


@pytest.mark.parametrize("topic", ["a", "a-b"])
def test_pending_acknowledgements_of_any_possible_topic_are_kept(topic: str) -> None:
    assert judge_managed_ledger(_PENDING, existing_topics={f"{_PARENT}/{topic}"}, namespaces={"t/ns"}) is None


def test_pending_acknowledgements_without_a_topic_are_an_orphan() -> None:
    verdict = judge_managed_ledger(_PENDING, existing_topics={f"{_PARENT}/a-b-sub"}, namespaces={"t/ns"})
    assert verdict is ManagedLedgerVerdict.TOPIC_ABSENT
    assert judge_managed_ledger(f"{_PARENT}/a", existing_topics=set(), namespaces={"t/ns"}) is None


@pytest.mark.parametrize("name", ["app", "b%2Fc", ""])
def test_a_subscription_with_a_slash_looks_like_a_namespace_of_pulsar_1(name: str) -> None:
    """The names are those that Pulsar gives for the topics `orders` and `a=b` and subscriptions such as `x-y/app`."""
    pending = f"t/ns/orders-x-y/persistent/{name}__transaction_pending_ack"
    for topic in (f"{_PARENT}/orders", f"{_PARENT}/orders-x"):
        assert judge_managed_ledger(pending, existing_topics={topic}, namespaces={"t/ns"}) is None
    encoded = f"t/ns/a=b-x/persistent/{name}__transaction_pending_ack"
    assert judge_managed_ledger(encoded, existing_topics={f"{_PARENT}/a%3Db"}, namespaces={"t/ns"}) is None
    absent = ManagedLedgerVerdict.TOPIC_ABSENT
    assert judge_managed_ledger(pending, existing_topics=set(), namespaces={"t/ns"}) is absent
    assert judge_managed_ledger(pending, existing_topics=set(), namespaces={"t/ns/orders-x-y"}) is absent
    other = ManagedLedgerVerdict.NAMESPACE_ABSENT
    assert judge_managed_ledger(pending, existing_topics=set(), namespaces={"t"}) is other
    assert judge_managed_ledger("t/ns/orders-x/persistent/a", existing_topics=set(), namespaces={"t/ns"}) is other


def test_a_managed_ledger_without_its_namespace_is_an_orphan() -> None:
    absent = ManagedLedgerVerdict.NAMESPACE_ABSENT
    assert judge_managed_ledger(f"{_PARENT}/a", existing_topics=set(), namespaces={"t", "t/other"}) is absent
    old = "t/cluster/ns/persistent/a"
    assert judge_managed_ledger(old, existing_topics=set(), namespaces={"t/cluster"}) is absent
    assert judge_managed_ledger(old, existing_topics=set(), namespaces={"t/cluster/ns"}) is None


@pytest.mark.parametrize(
    "name", ["pulsar/host:8080/persistent/healthcheck", "sla-monitor/east/host:8080/persistent/healthcheck"]
)
def test_namespaces_of_brokers_need_no_policies(name: str) -> None:
    assert list_possible_namespaces(name) == []
    assert judge_managed_ledger(name, existing_topics=set(), namespaces=set()) is None


@given(st.sets(st.text("ab-", min_size=1, max_size=5)), st.text("ab-", max_size=5))
def test_prefixes_of_the_newest_name_are_kept(names: set[str], newest: str) -> None:
    """In ascending order, a name comes after all of its prefixes, and only names that begin with one lie between."""
    prefixes = NamePrefixes()
    for name in sorted({newest, *(each for each in names if each < newest)}):
        prefixes.add(name)
    assert {name for name in names if name in prefixes} == {name for name in names if newest.startswith(name)}
