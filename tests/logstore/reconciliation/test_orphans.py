"""A finding looked at again: storage must still say exactly what the plan found, or the objects are kept."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from logstore.errors import CatalogMismatch, StoreUnavailable
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerStatement
from logstore.offload.tiered_copy import CopyLocation, data_key, index_key
from logstore.ports.catalog.reconciliation import OrphanCopy
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.findings import Finding, FindingKind
from logstore.reconciliation.services import orphan_inspection
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation

SEVEN = LedgerId(7)
OWNER = LedgerOwner(
    application="sexton",
    component=Component.MANAGED_LEDGER,
    topic_id=TopicId(1),
    topic="persistent://shop/main/orders",
    keys={},
)
STATEMENT = LedgerStatement(owner=OWNER, ledger_id=SEVEN, created_us=5, epoch=1)
UUID = "0a1b"
METADATA = {"driver": "aws-s3", "bucket": "cold", "region": "here"}


class Stored:
    """Two buckets, in which everything is put at the same moment."""

    def __init__(self) -> None:
        self.warm, self.cold = FakeObjectStore(), FakeObjectStore()
        self.before_us = self.warm.now_us + 1
        self.asked: list[CopyLocation] = []
        self.orphans = OrphanInspector(
            objects=self.warm, buckets=self._bucket, application="sexton", driver_metadata=METADATA
        )

    def _bucket(self, location: CopyLocation) -> FakeObjectStore:
        self.asked.append(location)
        return self.cold

    def put(self, *keys: str, cold: bool = False, **changes: Any) -> None:
        """Put objects that state whose they are."""
        stated = replace(STATEMENT, **changes)
        for key in keys:
            store = self.cold if cold else self.warm
            store.put_if_absent(key, b"x" * 10, metadata=stated.to_metadata())

    def copy(self, finding: Finding) -> OrphanCopy | str:
        """Look at a copy."""
        return self.orphans.inspect_copy(3, finding, before_us=self.before_us)

    def segment(self, finding: Finding) -> tuple[LedgerId, int] | str:
        """Look at a segment."""
        return self.orphans.inspect_segment(finding, before_us=self.before_us)


@pytest.fixture
def stored() -> Stored:
    return Stored()


LEDGER = Finding(
    kind=FindingKind.ORPHAN_LEDGER,
    ledger_id=SEVEN,
    copy=CopyKind.LEDGER,
    bucket="warm",
    key=ledger_prefix(SEVEN),
    objects=2,
)
TIERED = Finding(
    kind=FindingKind.ORPHAN_OFFLOAD,
    ledger_id=SEVEN,
    copy=CopyKind.OFFLOADED_LEDGER,
    bucket="cold",
    key=data_key(UUID, SEVEN),
    uuid=UUID,
    objects=2,
)
SEGMENT = Finding(
    kind=FindingKind.ORPHAN_SEGMENT,
    ledger_id=SEVEN,
    copy=CopyKind.LEDGER,
    bucket="warm",
    key=segment_key(SEVEN, 4),
    objects=1,
)
UPLOAD = replace(TIERED, objects=0)


def test_ledger_is_named_with_the_statement_of_its_meta_json(stored: Stored) -> None:
    """Whose it is says storage, not the plan."""
    stored.put(meta_key(SEVEN, OWNER), segment_key(SEVEN, 0))
    expected = OrphanCopy(number=3, copy=CopyKind.LEDGER, statement=STATEMENT, size_bytes=20)
    assert stored.copy(LEDGER) == expected


def test_ledger_without_meta_json_is_named_with_the_statement_of_a_segment(stored: Stored) -> None:
    """What is left of a half-deleted ledger still says whose it is (apache/pulsar#1302)."""
    stored.put(segment_key(SEVEN, 0), segment_key(SEVEN, 1))
    found = stored.copy(LEDGER)
    assert isinstance(found, OrphanCopy)
    assert found.statement == STATEMENT


@pytest.mark.parametrize(
    ("keys", "changes", "reason"),
    [
        ((), {}, orphan_inspection.NOT_SHOWN),
        ((segment_key(SEVEN, 0), f"{ledger_prefix(SEVEN)}notes.txt"), {}, orphan_inspection.UNKNOWN_FILE),
        ((segment_key(SEVEN, 0), f"{ledger_prefix(SEVEN)}more/00000001.parquet"), {}, orphan_inspection.UNKNOWN_FILE),
        ((f"{ledger_prefix(SEVEN)}{'0' * 16}.meta.json",), {}, orphan_inspection.OTHER_OWNER),
        ((meta_key(SEVEN, OWNER), f"{ledger_prefix(SEVEN)}{'0' * 16}.meta.json"), {}, orphan_inspection.OTHER_OWNER),
        (
            (segment_key(SEVEN, 0),),
            {"owner": replace(OWNER, application="another")},
            orphan_inspection.OTHER_APPLICATION,
        ),
        ((segment_key(SEVEN, 0),), {"ledger_id": LedgerId(8)}, orphan_inspection.OTHER_OWNER),
    ],
    ids=["gone", "unknown-file", "unknown-folder", "wrong-digest", "two-owners", "application", "ledger"],
)
def test_ledger_of_which_storage_says_something_else_is_kept(
    keys: tuple[str, ...], changes: Mapping[str, Any], reason: str, stored: Stored
) -> None:
    """An unknown file, and what is somebody else's, keep all of it (amoro#1959, lakeFS#8518)."""
    stored.put(*keys, **changes)
    assert stored.copy(LEDGER) == reason


def test_ledger_with_one_young_object_is_kept(stored: Stored) -> None:
    """A writer may be at work on it: the cut-off is exclusive (iceberg#4195)."""
    stored.put(meta_key(SEVEN, OWNER))
    stored.warm.advance(seconds=1)
    stored.before_us = stored.warm.now_us
    stored.put(segment_key(SEVEN, 0))
    assert stored.copy(LEDGER) == orphan_inspection.YOUNG


def test_ledger_of_unknown_age_is_kept(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that tells no time says nothing of age (amoro#2925)."""
    stored.put(segment_key(SEVEN, 0))
    told = [replace(one, modified_us=None) for one in stored.warm.list("")]
    monkeypatch.setattr(stored.warm, "list", lambda prefix: iter(told))
    assert stored.copy(LEDGER) == orphan_inspection.YOUNG


def test_ledger_whose_objects_state_no_owner_is_kept(stored: Stored) -> None:
    """Such an object may be anybody's."""
    stored.warm.put_if_absent(segment_key(SEVEN, 0), b"x", metadata={})
    assert stored.copy(LEDGER) == orphan_inspection.UNSTATED


def test_silent_storage_is_no_answer(stored: Stored) -> None:
    """What cannot be asked is asked again, and never judged."""
    stored.put(segment_key(SEVEN, 0))
    stored.warm.plan(Fault(operation=StoreOperation.HEAD, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        stored.copy(LEDGER)


def test_tiered_pair_is_named_with_its_location(stored: Stored) -> None:
    """Phase two asks where the context says that it stands (apache/pulsar#16687)."""
    stored.put(data_key(UUID, SEVEN), index_key(UUID, SEVEN), cold=True)
    found = stored.copy(TIERED)
    assert found == OrphanCopy(
        number=3,
        copy=CopyKind.OFFLOADED_LEDGER,
        statement=STATEMENT,
        context={**METADATA, "uuid": UUID},
        size_bytes=20,
    )
    assert stored.asked == [CopyLocation("cold", region="here")]


def test_tiered_pair_of_two_owners_is_kept(stored: Stored) -> None:
    """Both objects must say the same."""
    stored.put(data_key(UUID, SEVEN), cold=True)
    stored.put(index_key(UUID, SEVEN), cold=True, created_us=6)
    assert stored.copy(TIERED) == orphan_inspection.OTHER_OWNER


def test_tiered_pair_with_a_third_object_is_kept(stored: Stored) -> None:
    """No offload writes one."""
    stored.put(data_key(UUID, SEVEN), f"{data_key(UUID, SEVEN)}-more", cold=True)
    assert stored.copy(TIERED) == orphan_inspection.UNKNOWN_FILE


@pytest.mark.parametrize("finding", [replace(TIERED, bucket="colder"), replace(UPLOAD, bucket="colder")])
def test_tiered_objects_of_another_bucket_are_kept(finding: Finding, stored: Stored) -> None:
    """Of which store that bucket is, nobody knows."""
    stored.put(data_key(UUID, SEVEN), cold=True)
    found = (
        stored.copy(finding) if finding.objects else stored.orphans.inspect_upload(finding, before_us=stored.before_us)
    )
    assert found == orphan_inspection.OTHER_BUCKET


def test_segment_is_named_by_ledger_and_number(stored: Stored) -> None:
    """Its ledger's own statement names the same owner."""
    stored.put(meta_key(SEVEN, OWNER), SEGMENT.key)
    assert stored.segment(SEGMENT) == (SEVEN, 4)


def test_segment_of_another_owner_than_its_ledger_is_kept(stored: Stored) -> None:
    """Nothing of another topic is touched."""
    stored.put(meta_key(SEVEN, OWNER))
    stored.put(SEGMENT.key, owner=replace(OWNER, topic="persistent://shop/main/returns"))
    assert stored.segment(SEGMENT) == orphan_inspection.OTHER_OWNER


@pytest.mark.parametrize(
    ("stated", "told"), [(STATEMENT, (SEVEN, 4)), (replace(STATEMENT, epoch=2), orphan_inspection.CHANGED)]
)
def test_segment_that_states_another_owner_than_to_the_plan_is_kept(
    stated: LedgerStatement, told: object, stored: Stored
) -> None:
    """The plan compared that one with the ledger's row; this one nobody has."""
    stored.put(meta_key(SEVEN, OWNER), SEGMENT.key)
    assert stored.segment(replace(SEGMENT, statement=stated.to_metadata())) == told


@pytest.mark.parametrize(
    "key", ["ledgers/07/0000000000000007/notes", segment_key(LedgerId(8), 4), "x/00000004.parquet"]
)
def test_segment_whose_key_is_not_its_ledger_s_is_kept(key: str, stored: Stored) -> None:
    """A path that matches but for its prefix is no orphan (iceberg#4346)."""
    stored.put(key)
    assert stored.segment(replace(SEGMENT, key=key)) == orphan_inspection.UNKNOWN_FILE


def test_segment_that_is_young_or_gone_is_kept(stored: Stored) -> None:
    """Both say why."""
    assert stored.segment(SEGMENT) == orphan_inspection.NOT_SHOWN
    stored.before_us = stored.warm.now_us
    stored.put(meta_key(SEVEN, OWNER), SEGMENT.key)
    assert stored.segment(SEGMENT) == orphan_inspection.YOUNG


def test_upload_is_abandoned_while_its_parts_are_there_and_old(stored: Stored) -> None:
    """Parts take room, and no listing shows them; unknown age keeps them."""
    assert stored.orphans.inspect_upload(UPLOAD, before_us=5) == orphan_inspection.ENDED_UPLOAD
    stored.cold.unfinished.add(f"{UPLOAD.key}-index")
    assert stored.orphans.inspect_upload(UPLOAD, before_us=5) == orphan_inspection.ENDED_UPLOAD
    stored.cold.unfinished.add(UPLOAD.key)
    assert stored.orphans.inspect_upload(UPLOAD, before_us=5) == orphan_inspection.YOUNG
    stored.cold.begun_us[UPLOAD.key] = 4
    assert stored.orphans.inspect_upload(UPLOAD, before_us=5) is stored.cold
    stored.cold.begun_us[UPLOAD.key] = 5
    assert stored.orphans.inspect_upload(UPLOAD, before_us=5) == orphan_inspection.YOUNG


@pytest.mark.parametrize("which", ["warm", "cold"])
def test_bucket_that_is_not_the_catalog_s_is_refused(which: str, stored: Stored) -> None:
    """Absence and presence are judged in the catalog's own buckets alone."""
    refusal = CatalogMismatch("bucket", expected="ours", found="theirs", advice="look")
    getattr(stored, which).refusal = refusal
    with pytest.raises(CatalogMismatch):
        stored.orphans.require_own_buckets()


# -- answers that contradict each other


def _silence(monkeypatch: pytest.MonkeyPatch, store: FakeObjectStore, method: str, *, calls: int) -> None:
    """Let the first calls of a method find nothing, as a gateway that answers 404 does."""
    real, left = getattr(store, method), [calls]

    def silent(key: str, *args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            return None if method == "head" else []
        return real(key, *args, **more)

    monkeypatch.setattr(store, method, silent)


@pytest.mark.parametrize("method", ["head", "list"])
@pytest.mark.parametrize("kind", list(FindingKind)[:3])
def test_orphan_that_some_answers_hide_is_not_said_to_be_gone(
    kind: FindingKind, method: str, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers contradict each other: apply must ask again later, and not keep what stands for good."""
    found = {FindingKind.ORPHAN_LEDGER: LEDGER, FindingKind.ORPHAN_SEGMENT: SEGMENT, FindingKind.ORPHAN_OFFLOAD: TIERED}
    finding = replace(found[kind], statement=STATEMENT.to_metadata())
    is_pair, is_segment = kind is FindingKind.ORPHAN_OFFLOAD, kind is FindingKind.ORPHAN_SEGMENT
    stored.put(meta_key(SEVEN, OWNER), segment_key(SEVEN, 0), SEGMENT.key)
    stored.put(data_key(UUID, SEVEN), index_key(UUID, SEVEN), cold=True)
    store = stored.cold if is_pair else stored.warm
    _silence(monkeypatch, store, method, calls=99)
    if is_segment and method == "list":  # the object itself was asked for, and no listing
        assert stored.segment(finding) == (SEVEN, 4)
        return
    with pytest.raises(StoreUnavailable, match="try again"):
        stored.segment(finding) if is_segment else stored.copy(finding)


@pytest.mark.parametrize("kind", list(FindingKind)[:3])
def test_orphan_that_listings_and_heads_hide_is_found_by_a_get(
    kind: FindingKind, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phase two proves absence in the same way (apache/bookkeeper#870)."""
    found = {FindingKind.ORPHAN_LEDGER: LEDGER, FindingKind.ORPHAN_SEGMENT: SEGMENT, FindingKind.ORPHAN_OFFLOAD: TIERED}
    stored.put(segment_key(SEVEN, 0), SEGMENT.key)
    stored.put(data_key(UUID, SEVEN), cold=True)
    store = stored.cold if kind is FindingKind.ORPHAN_OFFLOAD else stored.warm
    for method in ("head", "list"):
        _silence(monkeypatch, store, method, calls=99)
    with pytest.raises(StoreUnavailable, match="it can be read"):
        stored.segment(found[kind]) if kind is FindingKind.ORPHAN_SEGMENT else stored.copy(found[kind])


def test_orphan_that_one_answer_hid_is_found_by_the_second_look(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.put(meta_key(SEVEN, OWNER), segment_key(SEVEN, 0))
    _silence(monkeypatch, stored.warm, "head", calls=1)
    assert isinstance(stored.copy(LEDGER), OrphanCopy)


def test_upload_that_one_listing_hid_has_not_ended(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = UPLOAD
    stored.cold.unfinished.add(upload.key)
    stored.cold.begun_us[upload.key] = 1
    _silence(monkeypatch, stored.cold, "list_open_uploads", calls=1)
    assert not isinstance(stored.orphans.inspect_upload(upload, before_us=stored.before_us), str)
