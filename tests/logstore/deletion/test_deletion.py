"""Decisions of phase two that need no storage."""

from typing import Any

import pytest

from logstore.deletion.intents import DeletionState, Outcome, find_missing_property, find_refusal
from logstore.log.ledgers import Component, CopyKind
from tests.logstore.builders import OWNER, intent

_KEYS = {
    Component.MANAGED_LEDGER: {},
    Component.MANAGED_CURSOR: {"cursor": "billing"},
    Component.SCHEMA_STORAGE: {"schema": "v1"},
    Component.DELAYED_INDEX: {},
    Component.TXN_SNAPSHOT: {},
}


@pytest.mark.parametrize("component", Component)
def test_intent_of_any_component_with_its_keys_misses_nothing(component: Component) -> None:
    """Every component has a rule, and a whole intent passes it."""
    assert find_missing_property(intent(component=component.value, keys=_KEYS[component])) is None


@pytest.mark.parametrize("component", [component for component in Component if _KEYS[component]])
@pytest.mark.parametrize("empty", [True, False])
def test_intent_without_its_components_key_is_invalid(component: Component, empty: bool) -> None:
    """Without the key the owner's digest would be another ledger's. Source: PIP-186, essential properties."""
    (key,) = _KEYS[component]
    found = find_missing_property(intent(component=component.value, keys={key: ""} if empty else {}))
    assert found == f"key {key!r} of {component.value}"


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"component": "WHATEVER"}, "component (found 'WHATEVER')"),
        ({"component": ""}, "component (found '')"),
        ({"topic": ""}, "topic"),
        ({"application": ""}, "application"),
        ({"copy": CopyKind.OFFLOADED_LEDGER}, "uuid of the offload context"),
        ({"copy": CopyKind.OFFLOADED_LEDGER, "context": {"uuid": "u"}}, "bucket of the offload context"),
        ({"copy": CopyKind.OFFLOADED_LEDGER, "context": {"uuid": "u", "bucket": "b"}}, None),
        ({"ledger_id": 0}, None),
    ],
)
def test_intent_missing_property_is_named(changes: dict[str, Any], missing: str | None) -> None:
    """Unknown components are never guessed at; ledger id 0 is none of the missing (apache/bookkeeper#950)."""
    assert find_missing_property(intent(**changes)) == missing


def test_refusal_of_a_referenced_copy_comes_before_any_other() -> None:
    """The list is read just before deleting: still in use ends the intent. Source: PIP-186, second phase."""
    found = find_refusal(intent(component="WHATEVER", referenced=True))
    assert found is not None
    assert found[0] is Outcome.STILL_IN_USE


def test_refusal_of_an_invalid_intent_names_the_property() -> None:
    """The dead letter says what was wrong with it."""
    assert find_refusal(intent(topic="")) == (Outcome.INVALID, "missing topic")


def test_refusal_of_a_sound_unreferenced_intent_is_none() -> None:
    """Then storage decides."""
    assert find_refusal(intent()) is None


@pytest.mark.parametrize("outcome", Outcome)
def test_outcome_is_success_exactly_when_nothing_is_left(outcome: Outcome) -> None:
    """Deleted and already gone are success, and only they; what is retried stays pending."""
    assert outcome.is_success == (outcome in {Outcome.DELETED, Outcome.ALREADY_GONE})
    assert (outcome.state is DeletionState.DELETED) == outcome.is_success
    assert (outcome.state is DeletionState.PENDING) == (outcome is Outcome.RETRYING)


def test_intent_owner_is_the_one_that_wrote_the_ledger() -> None:
    """What was detached and what stands in storage are compared by one digest."""
    assert intent().owner == OWNER
