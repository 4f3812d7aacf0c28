"""Objects of offloads in S3, and verdicts on those that no managed ledger names.

An object without a reference is an orphan only if its own metadata name this cluster and a managed ledger. All other
objects are foreign and never touched.

Source: Pulsar's offloader for blob stores, `DataBlockUtils` and `BlobStoreManagedLedgerOffloader`. A broker writes the
uuid of an offload into the managed ledger before the upload, and uses a new one if it tries again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.pulsar.cluster_findings import RemovalPart
from logstore.pulsar.ledger_references import ManagedLedgerReferences
from logstore.pulsar.znode_names import is_managed_ledger_name

MIN_OFFLOAD_AGE_S: Final = 86_400.0
"""Age of an object or an upload without a reference. An offload takes hours at most."""

OFFLOAD_KEY: Final = (
    r"^(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"-ledger-(?P<ledger>0|[1-9][0-9]{0,17})(?P<index>-index)?$"
)
"""Pattern of the keys that an offload of one ledger writes.

A streaming offload writes `<uuid>` and `<uuid>-index`, which name no ledger, and have no managed ledger in their
metadata. These keys are foreign.
"""

CLUSTER_FIELD: Final = "pulsarclustername"
MANAGED_LEDGER_FIELD: Final = "managedledgername"
ROLE_FIELD: Final = "role"

_KEY: Final = re.compile(OFFLOAD_KEY)


class OffloadRole(StrEnum):
    """Role of an object of an offload. The values are those of the object's metadata."""

    DATA = "data"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class OffloadKey:
    """Key of an object, which names one attempt to offload a ledger."""

    uuid: str
    ledger_id: int
    role: OffloadRole = OffloadRole.DATA

    def __str__(self) -> str:
        return f"{self.uuid}-ledger-{self.ledger_id}{'-index' if self.role is OffloadRole.INDEX else ''}"


def parse_offload_key(key: str) -> OffloadKey | None:
    """Return the attempt that a key names, or `None` for a foreign key."""
    match = _KEY.fullmatch(key)
    if not match:
        return None
    return OffloadKey(match["uuid"], int(match["ledger"]), OffloadRole.INDEX if match["index"] else OffloadRole.DATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadObject:
    """Object of an offload, with its user metadata. Times are by the clock of the object store."""

    key: OffloadKey
    size_bytes: int
    modified_us: int | None
    metadata: Mapping[str, str]
    etag: str | None = None
    version_id: str | None = None  # None: the bucket has never kept versions

    def to_part(self) -> RemovalPart:
        return {
            "key": str(self.key),
            "version_id": self.version_id,
            "etag": self.etag,
            "size_bytes": self.size_bytes,
            "modified_us": self.modified_us,
        }

    def get_stated(self, field: str) -> str:
        """Return a field of the metadata, or an empty text. Some stores return names of fields in capitals."""
        return next((value for name, value in self.metadata.items() if name.lower() == field), "")


class OffloadVerdict(StrEnum):
    """Verdict on an attempt to offload a ledger."""

    OBJECTS_ABSENT = "objects_absent"
    CHANGED = "changed"  # since the listing or the scans, or the time of the last change is not known
    FOREIGN = "foreign"  # not provably of this cluster
    REFERENCED = "referenced"
    OWNER_UNSTATED = "owner_unstated"  # of an upload: an unfinished upload has no metadata
    OWNER_UNREADABLE = "owner_unreadable"
    OWNER_ABSENT = "owner_absent"
    OWNER_NOT_LISTING = "owner_not_listing"
    OBJECTS_PRESENT = "objects_present"  # of an offload whose objects were not listed
    DATA_LOST = "data_lost"  # neither the store nor a bookie has the data
    DATA_ENDANGERED = "data_endangered"  # only bookies have the data, and Pulsar will delete them

    @property
    def is_finding(self) -> bool:
        return self in {
            OffloadVerdict.OWNER_UNSTATED,
            OffloadVerdict.OWNER_ABSENT,
            OffloadVerdict.OWNER_NOT_LISTING,
            OffloadVerdict.DATA_LOST,
            OffloadVerdict.DATA_ENDANGERED,
        }


@dataclass(frozen=True, slots=True)
class ManagedLedgerLookup:
    """State of a managed ledger's znode now."""

    exists: bool
    references: ManagedLedgerReferences | None  # `None`: the znode cannot be read

    def names_uuid(self, uuid: str) -> bool:
        return self.references is not None and any(str(each.uuid) == uuid for each in self.references.offloads)


@dataclass(frozen=True, slots=True)
class OffloadJudgement:
    verdict: OffloadVerdict
    reason: str  # a clause


_UNREADABLE: Final = OffloadJudgement(OffloadVerdict.OWNER_UNREADABLE, "its managed ledger cannot be read")


def find_stated_managed_ledger(objects: Sequence[OffloadObject], cluster: str) -> str | OffloadJudgement:
    """Return the managed ledger that every object of the attempt states, or why there is none.

    The role, the managed ledger and the cluster must be in the metadata of each object.
    """
    if not objects:
        return OffloadJudgement(OffloadVerdict.OBJECTS_ABSENT, "its objects do not exist any more")
    names: set[str] = set()
    for each in objects:
        for field, expected in ((ROLE_FIELD, each.key.role.value), (CLUSTER_FIELD, cluster)):
            stated = each.get_stated(field)
            if not expected or stated != expected:
                reason = f'{each.key}: metadata {field}: expected "{expected}", found "{stated}"'
                return OffloadJudgement(OffloadVerdict.FOREIGN, reason)
        names.add(each.get_stated(MANAGED_LEDGER_FIELD))
    name = min(names, default="")
    if len(names) != 1 or not is_managed_ledger_name(name):
        reason = f"expected one managed ledger in the metadata of the objects, found {sorted(names)}"
        return OffloadJudgement(OffloadVerdict.FOREIGN, reason)
    return name


def judge_unreferenced_offload(
    objects: Sequence[OffloadObject], managed_ledger: ManagedLedgerLookup, *, listed_bytes: int, listed_us: int
) -> OffloadJudgement:
    """Judge the objects of one attempt that neither scan refers to, and whose metadata name this cluster.

    `listed_bytes` and `listed_us` are the size of the objects and the time of the newest one in the listing before the
    first scan.
    """
    change = _find_change(objects, listed_bytes, listed_us)
    if change:
        return change
    return judge_managed_ledger_lookup(objects[0].key.uuid, managed_ledger)


def judge_unreferenced_upload(
    uuid: str, changed_us: Sequence[int | None], managed_ledger: ManagedLedgerLookup | None, *, before_us: int
) -> OffloadJudgement:
    """Judge the unfinished uploads of one attempt that neither scan refers to.

    `changed_us` has the time of the last change of each upload. `managed_ledger` is one that has offloaded the same
    ledger, if any. An upload with a part that is not older than `before_us` may go on.
    """
    if not changed_us:
        return OffloadJudgement(OffloadVerdict.OBJECTS_ABSENT, "the upload has ended")
    if any(time_us is None or time_us >= before_us for time_us in changed_us):
        return OffloadJudgement(OffloadVerdict.CHANGED, "the upload has a young part, or a part without a time")
    if managed_ledger is None:
        reason = "nothing refers to it. An upload has no metadata: it may belong to another cluster"
        return OffloadJudgement(OffloadVerdict.OWNER_UNSTATED, reason)
    return judge_managed_ledger_lookup(uuid, managed_ledger)


def judge_missing_objects(
    key: OffloadKey, stored: Sequence[OffloadObject], managed_ledger: ManagedLedgerLookup
) -> OffloadJudgement:
    """Judge a complete offload some of whose objects were not listed. `stored` has those that the store has now.

    A reader needs both objects. A shadow topic only repeats the offloads of its source.
    """
    missing = sorted(role.value for role in set(OffloadRole) - {each.key.role for each in stored})
    if not missing:
        return OffloadJudgement(OffloadVerdict.OBJECTS_PRESENT, "the store has both objects")
    references = managed_ledger.references
    if references is None:
        return _UNREADABLE
    attempts = [each for each in references.offloads if (each.ledger_id, str(each.uuid)) == (key.ledger_id, key.uuid)]
    if references.shadow_source or not attempts or not attempts[0].complete:
        return OffloadJudgement(OffloadVerdict.CHANGED, "its managed ledger has no such offload any more")
    absence = f"the offload is complete, and the store has no {' and no '.join(missing)} object"
    if attempts[0].bookkeeper_deleted:
        return OffloadJudgement(OffloadVerdict.DATA_LOST, f"{absence}. The bookies have no copy: the data are lost")
    reason = f"{absence}. Pulsar still has the ledger on bookies, and will delete it: copy its data first"
    return OffloadJudgement(OffloadVerdict.DATA_ENDANGERED, reason)


def judge_managed_ledger_lookup(uuid: str, managed_ledger: ManagedLedgerLookup) -> OffloadJudgement:
    """Judge an attempt by the managed ledger that should name it."""
    if managed_ledger.references is None:
        return _UNREADABLE
    if managed_ledger.names_uuid(uuid):
        return OffloadJudgement(OffloadVerdict.REFERENCED, "its managed ledger refers to it now")
    if managed_ledger.exists:
        reason = "nothing refers to it, and its managed ledger exists and has another offload or none"
        return OffloadJudgement(OffloadVerdict.OWNER_NOT_LISTING, reason)
    return OffloadJudgement(OffloadVerdict.OWNER_ABSENT, "nothing refers to it, and its managed ledger does not exist")


def _find_change(objects: Sequence[OffloadObject], listed_bytes: int, listed_us: int) -> OffloadJudgement | None:
    if any(each.modified_us is None or each.modified_us > listed_us for each in objects):
        return OffloadJudgement(OffloadVerdict.CHANGED, "an object was written after the listing, or has no time")
    if sum(each.size_bytes for each in objects) != listed_bytes:
        return OffloadJudgement(OffloadVerdict.CHANGED, "its objects have another size than in the listing")
    return None
