"""Names that are read without a listing: entered once, ended for good, and found again whoever died midway."""

import pytest

from logstore.errors import CorruptData, UploadUnproven
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.records.services.record_log import NameRegister
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation

_FOLDER = "records/registers/names/"


def _reopened(objects: FakeObjectStore) -> NameRegister:
    return NameRegister(objects, _FOLDER)


@pytest.fixture
def objects() -> FakeObjectStore:
    """An empty bucket, whose listings show nothing at all."""
    made = FakeObjectStore()
    made.unlisted = {"": 1_000}
    return made


def test_names_stand_until_they_are_ended_and_may_come_again(objects: FakeObjectStore) -> None:
    """No listing is asked for."""
    names = _reopened(objects)
    for name in ("a", "b/ü", "a"):
        names.enter_name(name)
    assert names.active_names() == _reopened(objects).active_names() == {"a", "b/ü"}
    names.end_names("a".__eq__)
    names.end_names("a".__eq__)
    names.end_names("nobody".__eq__)
    assert names.active_names() == _reopened(objects).active_names() == {"b/ü"}
    names.end_names("b/ü".__eq__)
    _reopened(objects).enter_name("a")
    assert names.active_names() == {"a"}
    assert not [one for one, _ in objects.calls if one is StoreOperation.LIST]


def test_what_has_ended_is_not_asked_for_again(objects: FakeObjectStore) -> None:
    """Entries are never removed."""
    names = _reopened(objects)
    for number in range(5):
        names.enter_name(f"{number}")
        names.end_names(f"{number}".__eq__)
    assert names.active_names() == frozenset()
    asked = len(objects.calls)
    assert names.active_names() == frozenset()
    assert len(objects.calls) - asked == 1


@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.ABSENT])
def test_one_answer_that_lies_about_an_entry_lets_no_name_stand_for_ever(
    objects: FakeObjectStore, kind: FaultKind
) -> None:
    """Whoever ends a name forgets what it was for, and does not come back to it."""
    _reopened(objects).enter_name("a")
    objects.plan(Fault(operation=StoreOperation.GET, kind=kind, matches=f"{_FOLDER}000000".__eq__))
    _reopened(objects).end_names("a".__eq__)
    assert _reopened(objects).active_names() == frozenset()


def test_answer_that_was_cut_off_hides_no_name(objects: FakeObjectStore) -> None:
    """The digest tells."""
    _reopened(objects).enter_name("b")
    _reopened(objects).enter_name("a")
    objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CUT, matches=f"{_FOLDER}000001".__eq__))
    assert _reopened(objects).active_names() == {"b", "a"}
    objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CUT, times=2, matches=f"{_FOLDER}000001".__eq__))
    with pytest.raises(CorruptData, match="000001: expected a name with the digest"):
        _reopened(objects).active_names()


def test_two_that_enter_at_once_both_stand(objects: FakeObjectStore) -> None:
    """The one that loses the number takes the next."""
    objects.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: _reopened(objects).enter_name("first")),
    )
    _reopened(objects).enter_name("second")
    assert _reopened(objects).active_names() == {"first", "second"}


@pytest.mark.parametrize("point", ["records.enter.before", "records.enter.after"])
def test_entry_that_dies_midway_is_made_once(objects: FakeObjectStore, point: str) -> None:
    """The next attempt finds it, or makes it."""
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        _reopened(objects).enter_name("a")
    disarm_all_and_take_hits()
    _reopened(objects).enter_name("a")
    assert [key for key in objects.keys if key.startswith(_FOLDER)] == [f"{_FOLDER}000000"]


@pytest.mark.parametrize("point", ["records.end_entry.before", "records.end_entry.after"])
def test_end_that_dies_midway_is_made_by_the_next_attempt(objects: FakeObjectStore, point: str) -> None:
    """Until then the name may stand, which keeps what it is for."""
    _reopened(objects).enter_name("a")
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        _reopened(objects).end_names("a".__eq__)
    disarm_all_and_take_hits()
    _reopened(objects).end_names("a".__eq__)
    assert _reopened(objects).active_names() == frozenset()


def test_entry_that_the_store_does_not_show_is_not_taken_for_stored(objects: FakeObjectStore) -> None:
    """Others rely on it."""
    objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST))
    with pytest.raises(UploadUnproven):
        _reopened(objects).enter_name("a")
