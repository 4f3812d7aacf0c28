"""Which ends are durable, which tombstones are old enough, and for which replicas they wait."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput, Unsupported
from logstore.records.tombstone_rules import (
    DURABLE_BY_DEFAULT,
    EndingOperation,
    ReplicaAcknowledgement,
    ReplicaState,
    decide_replica_state,
    eligible_before_us,
    is_durable,
    newest_manifest_applied_everywhere,
)

_SAID = st.sampled_from([None, True, False])


def test_explicit_ends_are_durable_by_default_and_upkeep_is_not() -> None:
    """Every operation has a default, and it is one of the two."""
    plain = {EndingOperation.RETENTION, EndingOperation.EXPIRY, EndingOperation.UPKEEP}
    assert {one for one in EndingOperation if is_durable(one)} == DURABLE_BY_DEFAULT
    assert set(EndingOperation) - DURABLE_BY_DEFAULT == plain


@given(st.sampled_from(list(EndingOperation)), _SAID, _SAID)
def test_a_command_wins_over_the_topic_and_that_over_the_default(
    ending: EndingOperation, topic: bool | None, asked: bool | None
) -> None:
    """Whatever the operation is."""
    said = [one for one in (asked, topic) if one is not None]
    assert is_durable(ending, topic_setting=topic, command_setting=asked) == (
        said[0] if said else ending in DURABLE_BY_DEFAULT
    )


@pytest.mark.parametrize("asked", [None, True, False])
def test_an_operation_that_this_build_does_not_know_is_refused(asked: bool | None) -> None:
    """Even where the command says it: what the operation means is not known."""
    with pytest.raises(Unsupported, match=r"durable_delete: expected an operation out of delete, .* found 'merge'"):
        is_durable("merge", command_setting=asked)
    assert is_durable("delete")


def test_a_tombstone_is_old_enough_once_it_is_older_than_the_eligible_age() -> None:
    """By microseconds, and never by an age below 0."""
    assert eligible_before_us(10_000_000, 2.5) == 7_500_000
    assert eligible_before_us(5, 0) == 5
    with pytest.raises(InvalidInput, match="eligible_age"):
        eligible_before_us(5, -1)


def _replica(name: str, manifest: int, at_us: int) -> ReplicaAcknowledgement:
    return ReplicaAcknowledgement(replica_id=name, manifest=manifest, epoch=1, at_us=at_us)


def test_a_replica_is_current_behind_or_stale() -> None:
    """STALE once it was silent for longer than the eligible age, wherever it stands."""
    states = [
        decide_replica_state(_replica("a", manifest, at_us), newest=7, now_us=10_000_000, eligible_age_s=2)
        for manifest, at_us in ((7, 8_000_000), (6, 8_000_000), (7, 7_999_999))
    ]
    assert states == [ReplicaState.CURRENT, ReplicaState.BEHIND, ReplicaState.STALE]
    revoked = replace(_replica("a", 7, 10_000_000), is_revoked=True)
    assert decide_replica_state(revoked, newest=7, now_us=10_000_000, eligible_age_s=2) is ReplicaState.STALE


def test_tombstones_wait_for_the_slowest_replica_that_is_not_stale() -> None:
    """One that is revoked holds nothing up, however new its word is, and without replicas nothing waits."""

    def applied(*replicas: ReplicaAcknowledgement) -> int:
        return newest_manifest_applied_everywhere(replicas, newest=9)

    assert applied() == 9
    assert applied(_replica("a", 5, 9_000_000), _replica("b", 3, 1_000_000)) == 3
    assert applied(_replica("a", 5, 9_000_000), replace(_replica("b", 3, 9_000_000), is_revoked=True)) == 5
    assert applied(_replica("a", 0, 9_000_000)) == 0
