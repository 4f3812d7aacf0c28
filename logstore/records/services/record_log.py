"""Objects of the record log: manifests, blocks, pins, and acknowledgements of replicas.

Objects are never overwritten. A renewed pin or a newer acknowledgement is a new object, and the old object is deleted
afterwards. After a crash between the two requests, both objects exist. In this case, the pin ends at the later time,
and the acknowledgement of the lower manifest counts.

A raid revokes a replica before the raid stops waiting for the replica. No acknowledgement removes the revocation. So a
replica that lacks a removed tombstone always notices this, even if the replica returns late or clocks are wrong.

A listing may hide objects. So the keys of rebuilds' pins and the names of replicas are also in registers, which are
read without a listing. A register entry is added after its object is stored, and ends before the object is deleted. A
registered pin protects its manifest even if no listing shows the pin. A registered replica that no listing shows counts
as a replica that has applied nothing.

HEAD requests look for hidden manifests by number. If a listing hides all manifests, no number is known, because
`RecordsBucketSweeper` removes the first manifests. Then the object `BEGUN_KEY` shows that manifests exist.

A register has numbered entries without a gap. The content of the object `{folder}{n:06d}` is the name of entry n. The
object `{folder}{n:06d}-ended` says that the entry has ended. A reader requests entries in order until none is found.
Entries are never overwritten or removed, so names should be entered rarely. If two writers enter a name at once, the
name has two entries, which end together. Each entry has the digest of its name, which a truncated response does not
match.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote
from uuid import uuid4

from logstore.errors import AlreadyExists, CorruptData, InvalidInput, MissingData, StoreUnavailable
from logstore.failpoints import effect
from logstore.log.segment_format import DIGEST_FIELD, sha256_hex
from logstore.log.services.upload_read_back import put_and_read_back, reread_if_corrupt
from logstore.ports.object_storage import ObjectStore, OwnedStore
from logstore.records.block_files import decode_block, describe_block, encode_blocks
from logstore.records.manifest import BEGUN_KEY, MANIFEST_PREFIX, Block, Manifest, manifest_key, parse_manifest_number
from logstore.records.record_kinds import RecordKind
from logstore.records.tombstone_rules import ReplicaAcknowledgement
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa


PIN_PREFIX: Final = "records/pins/"
REPLICA_PREFIX: Final = "records/replicas/"
REGISTER_PREFIX: Final = "records/registers/"
_PIN_NAMES: Final = f"{REGISTER_PREFIX}pins/"
_REPLICA_NAMES: Final = f"{REGISTER_PREFIX}replicas/"
_REGISTERED_PURPOSES: Final = frozenset({"rebuild"})
"""Purposes whose pins are registered. A job with another purpose can start again if a listing hides its pin."""
_PIN: Final = re.compile(rf"{PIN_PREFIX}([^/]+)/([^/]+)/(\d{{12}})-(\d{{17,}})")
_REPLICA: Final = re.compile(rf"{REPLICA_PREFIX}([^/]+)/(\d{{12}})-(\d{{12}})-(\d{{17,}})")
_REVOKED: Final = "revoked"

NEVER_STALE_US: Final = 2**62
"""Acknowledgement time of a registered replica that no listing shows. The real time is unknown."""

MIN_KEPT_MANIFESTS: Final = 100
"""Number of newest manifests that `RecordsBucketSweeper` never removes."""

_MAX_NEWER_MANIFESTS: Final = MIN_KEPT_MANIFESTS // 2
"""A new pin is safe only if fewer manifests than this are newer than the pinned manifest."""

_PROBED_NUMBERS: Final = 10_000
"""Distance from a known manifest number up to which HEAD looks for hidden manifests: half a day of flushes every 5 s.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Protection of a manifest and its blocks from removal while a job reads the blocks."""

    pin_id: str  # id of the workflow that reads the manifest
    purpose: str  # one word, such as `raid` or `rebuild`
    manifest: int
    until_us: int  # end of the pin, by the catalog's clock


class RecordLog:
    """Record log of one catalog in its bucket. Thread-safe."""

    def __init__(self, objects: OwnedStore) -> None:
        self._objects = objects
        self._pin_names, self._replica_names = NameRegister(objects, _PIN_NAMES), NameRegister(objects, _REPLICA_NAMES)
        self._is_marked = False  # whether this process knows that the object `BEGUN_KEY` exists
        self._entered = set[str]()  # replicas that this process knows to be registered
        self._last: Manifest | None = None  # cache of the last manifest read; manifests never change

    def require_ownership_once(self) -> None:
        self._objects.require_ownership_once()

    def require_ownership_now(self) -> None:
        self._objects.require_ownership_now()

    def list_manifest_numbers(self, *, after: int = 0) -> list[int]:
        start = manifest_key(after) if after else ""
        numbers = (parse_manifest_number(item.key) for item in self._objects.list(MANIFEST_PREFIX, start_after=start))
        return [number for number in numbers if number is not None]

    def read_newest_manifest(self, from_number: int = 0) -> Manifest | None:
        """Return the newest manifest, or `None`.

        `from_number` is the number of an existing manifest, or 0. Lower numbers are not listed.

        Raises:
            CorruptData: The manifest is unreadable.
            Unsupported: A newer build wrote the manifest.
            StoreUnavailable: The store did not answer, the manifest was just removed, or a listing hides manifests.
        """
        number = self.find_newest_manifest_number(from_number)
        if number is None:
            return None
        newest = self.read_manifest(number)
        if newest is None:
            raise StoreUnavailable(f"{manifest_key(number)}: it was listed, and is not there")
        return newest

    def find_newest_manifest_number(self, from_number: int = 0) -> int | None:
        """Return the number of the newest manifest, or `None`. Raise the errors of `read_newest_manifest`."""
        numbers: list[int] = self.list_manifest_numbers(after=max(from_number - 1, 0))
        if from_number and from_number not in numbers:
            hidden = (
                from_number
                if self._exists(from_number)
                else None
                if numbers
                else self._probe_later_manifest_number(from_number)
            )
            if hidden is not None:
                raise _hidden_manifest_error(hidden)
        if not numbers and not from_number and self._objects.head(BEGUN_KEY) is not None:
            raise StoreUnavailable(
                f"{MANIFEST_PREFIX}: expected a manifest, because HEAD finds {BEGUN_KEY}, found none by LIST;"
                " nothing is decided by such a listing"
            )
        return numbers[-1] if numbers else None

    def read_certain_newest_manifest(self, from_number: int = 0) -> Manifest | None:
        """Return the newest manifest, or `None`. HEAD requests make sure that no newer manifest is hidden.

        This costs about 100 requests, or one request if the listing shows manifest `from_number` as the newest.

        Raises:
            StoreUnavailable: Two listings lack a manifest that HEAD finds.
            SextonError: Errors of `read_newest_manifest`.
        """
        newest, hidden = self._newest_and_later(from_number)
        if hidden is not None:
            newest, hidden = self._newest_and_later(from_number)
        if hidden is not None:
            raise _hidden_manifest_error(hidden)
        return newest

    def _newest_and_later(self, from_number: int) -> tuple[Manifest | None, int | None]:
        newest = self.read_newest_manifest(from_number)
        number = newest.number if newest else from_number
        return newest, self._probe_later_manifest_number(
            number, probed=1 if newest and number == from_number else _PROBED_NUMBERS
        )

    def _probe_later_manifest_number(self, number: int, *, probed: int = _PROBED_NUMBERS) -> int | None:
        """Return the number of a later manifest that HEAD finds, or `None`.

        The newest `MIN_KEPT_MANIFESTS` manifests are never removed. So it is enough to check the next number, and then
        one number in every `MIN_KEPT_MANIFESTS`.
        """
        distances: list[int] = [1, *range(MIN_KEPT_MANIFESTS, probed + 1, MIN_KEPT_MANIFESTS)]
        for distance in distances:
            raise_if_stopped()
            if self._exists(number + distance):
                return number + distance
        return None

    def _exists(self, number: int) -> bool:
        return self._objects.head(manifest_key(number)) is not None

    def read_newest_complete_manifest(self, from_number: int = 0) -> Manifest | None:
        """Return the newest manifest with its own moment, or `None`. Raise the errors of `read_newest_manifest`."""
        newest = self.read_newest_manifest(from_number)
        if newest is None or newest.shows is None:
            return newest
        return self.read_manifest(newest.shows) if newest.shows else None

    def read_manifest(self, number: int) -> Manifest | None:
        """Return the manifest with this number, or `None`. Raise the errors of `read_newest_manifest`."""
        last = self._last
        if last is not None and last.number == number:
            return last

        def read() -> Manifest | None:
            stored = self._objects.get(manifest_key(number))
            return None if stored is None else Manifest.parse(stored.body, stored.key)

        manifest = reread_if_corrupt(read)
        self._last = manifest or self._last
        return manifest

    def put_manifest(self, manifest: Manifest) -> None:
        """Store a manifest if its number is free.

        Raise `AlreadyExists` if the number is taken. The stamp in the stored manifest identifies its writer.
        """
        with effect("records.put_manifest"):
            put_record_object(self._objects, manifest.key, manifest.to_json())
        self._mark_begun()

    def _mark_begun(self) -> None:
        """Store `BEGUN_KEY` if it is absent. Earlier builds, and writers that died, did not store it."""
        if self._is_marked:
            return
        if self._objects.head(BEGUN_KEY) is None:
            with effect("records.mark_begun"), suppress(AlreadyExists):
                put_record_object(self._objects, BEGUN_KEY, NO_CONTENT)
        self._is_marked = True

    def put_blocks(self, kind: RecordKind, versions: "pa.Table") -> Iterator[Block]:
        """Store record versions in blocks with random names. Yield each block.

        `versions` must ascend by `id` and `sub`. No manifest names the blocks yet. If the process dies,
        `RecordsBucketSweeper` removes the blocks.
        """
        for block_versions, file in encode_blocks(kind, versions):
            raise_if_stopped()
            block = describe_block(f"{kind}-{uuid4().hex}", kind, block_versions, file)
            with effect("records.put_block"):
                put_record_object(self._objects, block.key, file)
            yield block

    def read_block(
        self, block: Block, columns: Sequence[str] | None = None, ids: tuple[int, int] | None = None
    ) -> "pa.Table":
        """Read a block, and return the result of `logstore.records.block_files.decode_block`.

        Raises:
            MissingData: The bucket does not have the block.
            CorruptData: The object differs from the description `block`.
            Unsupported: A newer build wrote the block.
        """

        def read() -> "pa.Table":
            stored = self._objects.get(block.key)
            if stored is None:
                raise MissingData(f"{block.key}: a manifest names it, and the bucket has no such object")
            return decode_block(block, stored.body, columns=columns, ids=ids)

        return reread_if_corrupt(read)

    def stored_at_us(self, key: str) -> int | None:
        """Return when an object was stored, by the store's clock. Return `None` if this time is unknown."""
        head = self._objects.head(key)
        return head[0].modified_us if head else None

    def pin_manifest(self, pin_id: str, manifest: int, until_us: int, purpose: str) -> str:
        """Pin a manifest until `until_us`, or renew the pin. `purpose` is one word. Return the key of the pin."""
        if not purpose.isalpha():
            raise InvalidInput("pin", expected="one word", found=purpose)
        folder = f"{PIN_PREFIX}{purpose}/{_quote_name(pin_id)}/"
        key = f"{folder}{manifest:012d}-{until_us:017d}"
        with effect("records.pin"):
            put_record_object(self._objects, key, NO_CONTENT)
        if purpose in _REGISTERED_PURPOSES:
            self._pin_names.enter_name(key)
            self._pin_names.end_names(lambda name: name.startswith(folder) and name != key)
        self._delete_others(folder, key)
        return key

    def pin_newest_complete_manifest(
        self, pin_id: str, until_us: int, purpose: str, *, from_number: int = 0
    ) -> Manifest | None:
        """Pin and return the newest manifest that shows a moment of its own, or `None`.

        Numbers below `from_number` are not listed. A `RecordsBucketSweeper` that listed the pins before this pin was
        stored keeps the newest manifests, and the manifest of the newest moment. So the pin is safe only if its
        manifest is one of these manifests. Otherwise a newer manifest is pinned.
        """
        while (newest := self.read_newest_complete_manifest(from_number)) is not None:
            raise_if_stopped()
            self.pin_manifest(pin_id, newest.number, until_us, purpose)
            newer = self.list_manifest_numbers(after=newest.number)
            if len(newer) < _MAX_NEWER_MANIFESTS or self._shows(newer[-1], newest.number):
                return newest
        return None

    def _shows(self, number: int, moment: int) -> bool:
        manifest = self.read_manifest(number)
        return manifest is not None and manifest.moment_number == moment

    def unpin(self, pin_id: str) -> None:
        self._end_pins(lambda pin: pin.pin_id == pin_id)

    def end_pin(self, pin: Pin) -> None:
        """Remove one pin. A renewed pin is a different pin and stays."""
        self._end_pins(pin.__eq__)

    def _end_pins(self, should_end: Callable[[Pin], bool]) -> None:
        keys = [key for key, pin in self._pins().items() if should_end(pin)]
        self._pin_names.end_names(lambda name: name in keys)
        with effect("records.unpin"):
            self._delete(keys)

    def list_pins(self, *, now_us: int = 0) -> list[Pin]:
        """Return the pins that end after `now_us`."""
        return [pin for pin in self._pins().values() if pin.until_us > now_us]

    def _pins(self) -> dict[str, Pin]:
        listed = [item.key for item in self._objects.list(PIN_PREFIX)]
        matches = (_PIN.fullmatch(key) for key in sorted({*listed, *self._pin_names.active_names()}))
        return {
            match[0]: Pin(pin_id=unquote(match[2]), purpose=match[1], manifest=int(match[3]), until_us=int(match[4]))
            for match in matches
            if match
        }

    def acknowledge_manifest(self, replica_id: str, manifest: int, epoch: int, at_us: int) -> None:
        """Store that a replica has applied this manifest and all earlier manifests.

        From now on, raids wait for the replica while its newest acknowledgement is younger than the eligible age. A
        revocation stays. If the replica is forgotten during this call, it stays forgotten. `at_us` is the current time
        by any clock, and makes the acknowledgement unique.
        """
        folder = f"{REPLICA_PREFIX}{_quote_name(replica_id)}/"
        key = f"{folder}{manifest:012d}-{epoch:012d}-{at_us:017d}"
        with effect("records.acknowledge"):
            put_record_object(self._objects, key, NO_CONTENT)
        if replica_id not in self._entered:
            self._replica_names.enter_name(replica_id)
            if self._is_forgotten(folder, key):
                self._replica_names.end_names(lambda name: name == replica_id)
                return
            self._entered.add(replica_id)
        self._delete_others(folder, key)

    def _is_forgotten(self, folder: str, key: str) -> bool:
        if any(self._objects.head(key) is not None for _ in range(2)):
            return False
        return not any(_REPLICA.fullmatch(item.key) for item in self._objects.list(folder))

    def register_replica(self, replica_id: str, at_us: int) -> None:
        """Register a replica before its seed, as a replica that has applied nothing and is not revoked. Idempotent.

        The seed must read the record log only after this call, because raids do not wait for an unregistered replica.
        """
        self._entered.discard(replica_id)  # another process may have forgotten the replica
        self.acknowledge_manifest(replica_id, 0, 0, at_us)
        with effect("records.register"):
            self._delete([self._revocation(replica_id)])

    def revoke_replica(self, replica_id: str) -> None:
        """Revoke a replica, so that raids do not wait for it and it must be seeded again.

        The caller must then list the replicas again, because the replica may have been registered meanwhile.
        """
        with effect("records.revoke"), suppress(AlreadyExists):
            put_record_object(self._objects, self._revocation(replica_id), NO_CONTENT)

    def _revocation(self, replica_id: str) -> str:
        return f"{REPLICA_PREFIX}{_quote_name(replica_id)}/{_REVOKED}"

    def forget_replica(self, replica_id: str) -> None:
        """Remove a replica. The revocation is deleted last, after all acknowledgements."""
        revocation = self._revocation(replica_id)
        self._replica_names.end_names(lambda name: name == replica_id)
        self._entered.discard(replica_id)
        with effect("records.forget"):
            self._delete_others(f"{REPLICA_PREFIX}{_quote_name(replica_id)}/", revocation)
            self._delete([revocation])

    def list_lowest_acknowledgements(self) -> list[ReplicaAcknowledgement]:
        """Return the acknowledgement of each replica, ascending by id.

        If a replica has several acknowledgements, the result has their lowest manifest and their latest time.
        """
        acknowledgements: dict[str, ReplicaAcknowledgement] = {}
        revoked = set[str]()
        for item in self._objects.list(REPLICA_PREFIX):
            match = _REPLICA.fullmatch(item.key)
            if not match:
                folder, _, last = item.key.removeprefix(REPLICA_PREFIX).partition("/")
                revoked |= {unquote(folder)} if last == _REVOKED else set()
                continue
            name, manifest, epoch = unquote(match[1]), int(match[2]), int(match[3])
            at_us = int(match[4]) if item.modified_us is None else item.modified_us
            previous = acknowledgements.get(name)
            if previous is not None:
                manifest, epoch = min((manifest, epoch), (previous.manifest, previous.epoch))
                at_us = max(at_us, previous.at_us)
            acknowledgements[name] = ReplicaAcknowledgement(
                replica_id=name, manifest=manifest, epoch=epoch, at_us=at_us
            )
        return [replace(acknowledgements[name], is_revoked=name in revoked) for name in sorted(acknowledgements)]

    def list_certain_acknowledgements(self) -> list[ReplicaAcknowledgement]:
        """Return the listed acknowledgements. Add one for each unlisted, registered replica that is not revoked.

        The added acknowledgements name no manifest and are never stale, so that no raid revokes their replicas.
        """
        registered = self._replica_names.active_names()
        listed = self.list_lowest_acknowledgements()
        unlisted = registered.difference(replica.replica_id for replica in listed)
        if unlisted:
            unlisted &= self._replica_names.active_names()  # some may have been forgotten meanwhile
        return listed + [
            ReplicaAcknowledgement(replica_id=name, manifest=0, epoch=0, at_us=NEVER_STALE_US)
            for name in sorted(unlisted)
            if not self.is_revoked(name)
        ]

    def is_registered(self, replica_id: str) -> bool:
        """Return whether a replica is registered, without a listing."""
        return replica_id in self._replica_names.active_names()

    def is_revoked(self, replica_id: str) -> bool:
        """Return whether a replica is revoked, without a listing."""
        return self._objects.head(self._revocation(replica_id)) is not None

    def _delete_others(self, folder: str, key: str) -> None:
        keys = [item.key for item in self._objects.list(folder) if item.key not in {key, f"{folder}{_REVOKED}"}]
        self._delete(keys)

    def _delete(self, keys: Sequence[str]) -> None:
        if keys:
            delete_record_objects(self._objects, keys)


def _hidden_manifest_error(number: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{manifest_key(number)}: HEAD finds it, LIST does not; nothing is decided by such a listing"
    )


def _quote_name(name: str) -> str:
    """Return a name as one part of a key. Characters that some stores change are escaped."""
    if not name:
        raise InvalidInput("name", expected="1 character or more", found=name)
    return quote(name, safe="").replace(".", "%2E")


NO_CONTENT: Final = b"{}"
"""Content of an object whose key has all information, such as a pin."""


def delete_record_objects(objects: ObjectStore, keys: Sequence[str]) -> None:
    report = objects.delete(keys)
    if report.failed:
        key, reason = next(iter(report.failed.items()))
        raise StoreUnavailable(f"{key}: it could not be deleted: {reason}")


def put_record_object(objects: ObjectStore, key: str, body: bytes) -> None:
    """Store an object with its digest if the key is free, and read the object back.

    Raises:
        AlreadyExists: Another object has the key.
        UploadUnproven: The store accepted the PUT but does not show the object.
    """
    put_and_read_back(objects, key, body, metadata={} if body == NO_CONTENT else {DIGEST_FIELD: sha256_hex(body)})


class NameRegister:
    """Register of the names in one folder. `folder` ends with a slash. Thread-safe."""

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects, self._folder = objects, folder
        self._first_active = 0  # all entries with lower numbers have ended

    def enter_name(self, name: str) -> None:
        """Add an entry with this name, unless the name has an entry that has not ended.

        Raise `CorruptData` if an entry is damaged.
        """
        number = self._first_active
        for number, entered_name in self._active_entries():  # noqa: B007 - the search continues at the last number
            if entered_name == name:
                return
        while True:
            raise_if_stopped()
            key = self._key(number)
            if self._objects.get(key) is None:
                try:
                    with effect("records.enter"):
                        put_record_object(self._objects, key, name.encode())
                except AlreadyExists:
                    pass  # another writer took the number
                else:
                    return
            number += 1

    def end_names(self, should_end: Callable[[str], bool]) -> None:
        """End the active entries for whose name `should_end` returns true. Raise the errors of `enter_name`.

        If no entry is found, the register is read a second time, because one response may lack an entry.
        """
        for _ in range(2):
            numbers = [number for number, name in self._active_entries() if should_end(name)]
            for number in numbers:
                with effect("records.end_entry"):
                    put_record_object(self._objects, f"{self._key(number)}-ended", NO_CONTENT)
            if numbers:
                return

    def active_names(self) -> frozenset[str]:
        """Return the names of the entries that have not ended. Raise the errors of `enter_name`."""
        return frozenset(name for _, name in self._active_entries())

    def _active_entries(self) -> Iterator[tuple[int, str]]:
        number, has_only_ended = self._first_active, True
        while (name := self._read_entered_name(number)) is not None:
            raise_if_stopped()
            if self._objects.get(f"{self._key(number)}-ended") is None:
                has_only_ended = False
                yield number, name
            number += 1
            if has_only_ended:
                self._first_active = max(self._first_active, number)

    def _read_entered_name(self, number: int) -> str | None:
        key = self._key(number)

        def read() -> str | None:
            entry = self._objects.get(key)
            if entry is None:
                return None
            expected, found = entry.metadata.get(DIGEST_FIELD), sha256_hex(entry.body)
            if expected != found:
                raise CorruptData(f"{key}: expected a name with the digest {expected}, found {found}")
            return entry.body.decode()

        return reread_if_corrupt(read)

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:06d}"
