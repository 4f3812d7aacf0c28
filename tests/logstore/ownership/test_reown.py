"""What a worker does with its bundles once it is connected again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.ownership import BundleId, BundleOwnerNode, ReownAttempts, ReownDecision, decide_reown

_NOW, _OLD, _FOREIGN = 0x1000_0001, 0x1000_0000, 0x2000_0007
_ACQUIRED = [None, _OLD, _NOW]


def _node(worker_id: str, session: int) -> BundleOwnerNode:
    return BundleOwnerNode(worker_id=worker_id, session=session, version=0)


@pytest.mark.parametrize("acquired", _ACQUIRED)
@pytest.mark.parametrize(
    ("node", "verdict"),
    [
        (None, ReownDecision.CREATE),
        (_node("us", _OLD), ReownDecision.WAIT),
        (_node("them", _FOREIGN), ReownDecision.UNLOAD),
        (_node("them", _OLD), ReownDecision.UNLOAD),
        (_node("them", 0), ReownDecision.UNLOAD),
    ],
)
def test_reown_node_not_of_this_session_is_told_alike_whatever_is_remembered(
    node: BundleOwnerNode | None, verdict: ReownDecision, acquired: int | None
) -> None:
    """Absent, ours and about to vanish, foreign: no case hangs on a flag (apache/pulsar#10351, #17664)."""
    assert decide_reown(node, session=_NOW, worker_id="us", acquiring_session=acquired) is verdict


@pytest.mark.parametrize(
    ("acquired", "verdict"),
    list(zip(_ACQUIRED, [ReownDecision.CREATE, ReownDecision.CREATE, ReownDecision.KEEP], strict=True)),
)
def test_reown_node_of_this_session_is_kept_under_a_claim_of_it_alone(
    acquired: int | None, verdict: ReownDecision
) -> None:
    """The third case (apache/pulsar#10351); where only the create is known to have landed, the fence is raised too."""
    assert decide_reown(_node("us", _NOW), session=_NOW, worker_id="us", acquiring_session=acquired) is verdict


_SESSIONS = st.sampled_from([0, _OLD, _NOW, _FOREIGN])
_NODES = st.none() | st.builds(_node, st.sampled_from(["us", "them", "others"]), _SESSIONS)
_HELD = st.none() | _SESSIONS


@given(_NODES, _HELD, _HELD)
def test_reown_no_bundle_is_kept_by_two(node: BundleOwnerNode | None, ours: int | None, theirs: int | None) -> None:
    """A worker that comes back to a bundle of another's unloads it, whatever both remember (apache/pulsar#23011)."""
    us = decide_reown(node, session=_NOW, worker_id="us", acquiring_session=ours)
    them = decide_reown(node, session=_FOREIGN, worker_id="them", acquiring_session=theirs)
    assert [us, them].count(ReownDecision.KEEP) <= 1
    if them is ReownDecision.KEEP:
        assert us in (ReownDecision.UNLOAD, ReownDecision.WAIT)


@given(st.lists(_NODES, min_size=20, max_size=20), st.integers(0, 4), st.integers(0, 4))
def test_reown_ends_whatever_zookeeper_shows(seen: list[BundleOwnerNode | None], creates: int, waits: int) -> None:
    """Created, lost, created, lost: attempts are bounded in each session (apache/pulsar#14736, #17759)."""
    attempts = ReownAttempts(session=_NOW, creates=creates, waits=waits)
    spent = []
    for node in seen:
        verdict = decide_reown(node, session=_NOW, worker_id="us", acquiring_session=None)
        spent.append(attempts.spend_attempt(BundleId(0), verdict))
        assert spent[-1] in (verdict, ReownDecision.UNLOAD)
    assert spent.count(ReownDecision.CREATE) <= creates
    assert spent.count(ReownDecision.WAIT) <= waits
    assert ReownDecision.KEEP not in spent


def test_reown_attempts_are_each_bundles_own_and_all_of_them_can_be_spent() -> None:
    """One bundle that fails takes nothing from its neighbour, and waiting takes nothing from creating."""
    attempts = ReownAttempts(session=_NOW, creates=2, waits=1)
    asked = [ReownDecision.CREATE, ReownDecision.WAIT, ReownDecision.CREATE, ReownDecision.WAIT, ReownDecision.CREATE]
    told = [ReownDecision.CREATE, ReownDecision.WAIT, ReownDecision.CREATE, ReownDecision.UNLOAD, ReownDecision.UNLOAD]
    for bundle in (BundleId(0), BundleId(1)):
        assert [attempts.spend_attempt(bundle, verdict) for verdict in asked] == told


def test_reown_keeping_and_unloading_cost_nothing() -> None:
    """A connection that flaps within its session never wears a acquired out."""
    attempts = ReownAttempts(session=_NOW, creates=1, waits=1)
    for verdict in [ReownDecision.KEEP, ReownDecision.UNLOAD] * 100:
        assert attempts.spend_attempt(BundleId(0), verdict) is verdict
    assert attempts.spend_attempt(BundleId(0), ReownDecision.CREATE) is ReownDecision.CREATE


def test_reown_new_session_begins_with_new_attempts() -> None:
    """The bound is of a session: objects share nothing."""
    spent = ReownAttempts(session=_OLD, creates=1, waits=1)
    assert spent.spend_attempt(BundleId(0), ReownDecision.CREATE) is ReownDecision.CREATE
    assert spent.spend_attempt(BundleId(0), ReownDecision.CREATE) is ReownDecision.UNLOAD
    anew = ReownAttempts(session=_NOW, creates=1, waits=1)
    assert anew.spend_attempt(BundleId(0), ReownDecision.CREATE) is ReownDecision.CREATE
