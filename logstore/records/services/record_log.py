"""The record log in its bucket: manifests and blocks, who holds an older manifest, and what replicas acknowledged.

Nothing is ever overwritten. A manifest is put under its number only if that is free; a pin that is renewed and an
acknowledgement that follows another are new objects, and those before are deleted after: a process that dies between
the two leaves both, and the longer pin and the lower acknowledgement count.

A raid that does not wait for a replica revokes it first, by an object that no acknowledgement removes. So a replica
that lacks a tombstone which is gone finds that out by itself, whatever clocks say, and whenever it comes back.

Pins and acknowledgements are listed, and a listing may hide them. So the keys of rebuilds' pins and the names of
replicas stand in registers as well, which are read without one: each is entered behind the object that it tells of, and
ended before that is deleted. A pin that is registered counts whether or not it is listed. A replica that is registered
and not listed counts as having applied nothing.

Manifests have numbers, so what a listing hides of them is asked for by name. A mark tells a log whose manifests are
all hidden from one that has not begun: sweeps remove the first manifest, and no number bounds where the others stand.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote
from uuid import uuid4

from logstore.errors import AlreadyExists, InvalidInput, MissingData, StoreUnavailable
from logstore.failpoints import effect
from logstore.log.services.read_back import read_twice
from logstore.ports.objects import OwnedStore
from logstore.records.blocks import decode, describe, encoded
from logstore.records.kinds import RecordKind
from logstore.records.manifest import BEGUN_KEY, PREFIX, Block, Manifest, manifest_key, number_of
from logstore.records.services.registry import NO_CONTENT, Registry, put_record_object
from logstore.records.tombstones import Acknowledgement
from logstore.units import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

PINS: Final = "records/pins/"
REPLICAS: Final = "records/replicas/"
REGISTERS: Final = "records/registers/"
_PIN_NAMES: Final = f"{REGISTERS}pins/"
_REPLICA_NAMES: Final = f"{REGISTERS}replicas/"
_REGISTERED: Final = frozenset({"rebuild"})
"""Pins without which data is lost. A raid, a shipment or a seed whose blocks are removed fails, and begins anew."""
_PIN: Final = re.compile(rf"{PINS}([^/]+)/([^/]+)/(\d{{12}})-(\d{{17,}})")
_REPLICA: Final = re.compile(rf"{REPLICAS}([^/]+)/(\d{{12}})-(\d{{12}})-(\d{{17,}})")
_REVOKED: Final = "revoked"

NEVER_STALE_US: Final = 2**62
"""When a replica was heard of that is registered and not listed: no time is known."""

KEPT: Final = 100
"""So many of the newest manifests are never removed by a sweep."""

_NEAR: Final = KEPT // 2
"""A manifest is pinned only while fewer are newer, so that the pin came in time."""

_PROBED: Final = 10_000
"""Numbers behind a manifest at which a hidden newer one is looked for: half a day of flushes every 5 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A manifest, and with it all its blocks, that a job reads."""

    pin_id: str  # of the workflow that reads it
    what: str  # a word, as `raid` or `rebuild`
    manifest: int
    until_us: int  # by the catalog's clock, within the bound of clocks


class RecordLog:
    """The bucket of one catalog's records. Threads share one."""

    def __init__(self, objects: OwnedStore) -> None:
        """Work on the records bucket."""
        self._objects = objects
        self._pin_names, self._replica_names = Registry(objects, _PIN_NAMES), Registry(objects, _REPLICA_NAMES)
        self._is_marked = False  # whether this process knows the mark of a log that has begun to stand
        self._entered = set[str]()  # replicas whose names this process has seen to stand
        self._last: Manifest | None = None  # manifests never change: the one that was read last is kept

    def require(self) -> None:
        """See that the bucket is the catalog's; raises `CatalogMismatch` if not."""
        self._objects.require()

    def confirm(self) -> None:
        """See that the bucket is the catalog's now, whatever was seen before; raises `CatalogMismatch` if not."""
        self._objects.confirm()

    def numbers(self, *, after: int = 0) -> list[int]:
        """Numbers above that one of the manifests that are there, ascending; what is no manifest is passed over."""
        start = manifest_key(after) if after else ""
        found = (number_of(one.key) for one in self._objects.list(PREFIX, start_after=start))
        return [number for number in found if number is not None]

    def newest(self, after: int = 0) -> Manifest | None:
        """The newest manifest; None where there is none.

        Args:
            after: A number that is known: manifests below it are not listed. It counts itself.

        Raises:
            CorruptData, Unsupported: It cannot be read, or a newer build wrote it.
            StoreUnavailable: The store did not answer, the newest one went while it was read, or HEAD finds a manifest
                that the listing lacks: the known one or, where nothing is listed, one behind it. Or no manifest is
                known or listed, and the log has begun.
        """
        number = self.newest_number(after)
        if number is None:
            return None
        newest = self.manifest(number)
        if newest is None:
            raise StoreUnavailable(f"{manifest_key(number)}: it was listed, and is not there")
        return newest

    def newest_number(self, after: int = 0) -> int | None:
        """Number of the newest manifest; None where there is none. Raises as `newest`."""
        numbers: list[int] = self.numbers(after=max(after - 1, 0))
        if after and after not in numbers:
            hidden = after if self._stands(after) else None if numbers else self._find_later(after)
            if hidden is not None:
                raise _hidden(hidden)
        if not numbers and not after and self._objects.head(BEGUN_KEY) is not None:
            raise StoreUnavailable(
                f"{PREFIX}: expected a manifest, because HEAD finds {BEGUN_KEY}, found none by LIST;"
                " nothing is decided by such a listing"
            )
        return numbers[-1] if numbers else None

    def certain_newest(self, after: int = 0) -> Manifest | None:
        """The newest manifest, behind which HEAD finds none; None where there is none.

        It costs about a hundred requests, or one where the listing ends with the known manifest: a sweep that had
        removed the next one would have removed that before. A manifest that is put meanwhile is in a second listing.

        Raises:
            StoreUnavailable: Two listings lack a newer manifest. Otherwise as `newest`.
        """
        newest, hidden = self._newest_and_later(after)
        if hidden is not None:
            newest, hidden = self._newest_and_later(after)
        if hidden is not None:
            raise _hidden(hidden)
        return newest

    def _newest_and_later(self, after: int) -> tuple[Manifest | None, int | None]:
        newest = self.newest(after)
        number = newest.number if newest else after
        return newest, self._find_later(number, probed=1 if newest and number == after else _PROBED)

    def _find_later(self, number: int, *, probed: int = _PROBED) -> int | None:
        """Ask by HEAD for manifests that follow a number. Return the number of one, or None.

        A sweep never removes the newest `KEPT` manifests. So a series that the listing lacks stands at its first number
        or, if sweeps have removed its beginning, at some number of every `KEPT`.
        """
        steps: list[int] = [1, *range(KEPT, probed + 1, KEPT)]
        for following in steps:
            raise_if_stopped()
            if self._stands(number + following):
                return number + following
        return None

    def _stands(self, number: int) -> bool:
        return self._objects.head(manifest_key(number)) is not None

    def newest_moment(self, after: int = 0) -> Manifest | None:
        """The newest manifest that shows a moment of its own; None where there is none. Raises as `newest`."""
        newest = self.newest(after)
        if newest is None or newest.shows is None:
            return newest
        return self.manifest(newest.shows) if newest.shows else None

    def manifest(self, number: int) -> Manifest | None:
        """The manifest of a number; None where there is none (any more). Raises as `newest`."""
        last = self._last
        if last is not None and last.number == number:
            return last

        def read() -> Manifest | None:
            found = self._objects.get(manifest_key(number))
            return None if found is None else Manifest.of(found.body, found.key)

        manifest = read_twice(read)
        self._last = manifest or self._last
        return manifest

    def put_manifest(self, manifest: Manifest) -> None:
        """Publish it, unless its number is taken.

        Raises:
            AlreadyExists: Another one has its number, or this very one from an earlier attempt whose fields differ:
                whose it is, its stamp says.
        """
        with effect("records.put_manifest"):
            put_record_object(self._objects, manifest.key, manifest.to_json())
        self._mark_begun()

    def _mark_begun(self) -> None:
        """Mark the log behind every manifest, because the process that put the first one may have died, or be older."""
        if self._is_marked:
            return
        if self._objects.head(BEGUN_KEY) is None:
            with effect("records.mark_begun"), suppress(AlreadyExists):
                put_record_object(self._objects, BEGUN_KEY, NO_CONTENT)
        self._is_marked = True

    def put_blocks(self, kind: RecordKind, versions: "pa.Table") -> Iterator[Block]:
        """Store versions, ascending by id and sub, as blocks that no manifest names yet.

        Blocks of a process that dies are swept when they are old. Each has a name of its own: repeating it harms
        nothing.
        """
        for part, file in encoded(kind, versions):
            raise_if_stopped()
            block = describe(f"{kind}-{uuid4().hex}", kind, part, file)
            with effect("records.put_block"):
                put_record_object(self._objects, block.key, file)
            yield block

    def read_block(
        self, block: Block, columns: Sequence[str] | None = None, ids: tuple[int, int] | None = None
    ) -> "pa.Table":
        """Its versions, as `logstore.records.blocks.decode` says.

        Raises:
            MissingData: A manifest names it, and it is not there.
            CorruptData, Unsupported: It is not what the manifest says, or a newer build wrote it.
        """

        def read() -> "pa.Table":
            found = self._objects.get(block.key)
            if found is None:
                raise MissingData(f"{block.key}: a manifest names it, and the bucket has no such object")
            return decode(block, found.body, columns=columns, ids=ids)

        return read_twice(read)

    def put_us(self, key: str) -> int | None:
        """When the object was put, by the store's clock; None where there is none, or the store tells no time."""
        found = self._objects.head(key)
        return found[0].modified_us if found else None

    def pin(self, pin_id: str, manifest: int, until_us: int, what: str) -> str:
        """Keep a manifest and its blocks until a time; again with a later time, for longer. Return the key of the pin.

        Raises:
            InvalidInput: `what` is not one word.
        """
        if not what.isalpha():
            raise InvalidInput("pin", expected="one word", found=what)
        folder = f"{PINS}{what}/{_quoted(pin_id)}/"
        key = f"{folder}{manifest:012d}-{until_us:017d}"
        with effect("records.pin"):
            put_record_object(self._objects, key, NO_CONTENT)
        if what in _REGISTERED:
            self._pin_names.enter(key)
            self._pin_names.end(lambda name: name.startswith(folder) and name != key)
        self._only(folder, key)
        return key

    def pin_newest(self, pin_id: str, until_us: int, what: str, *, after: int = 0) -> Manifest | None:
        """Pin the newest manifest that shows a moment of its own and give it; None where there is none.

        `after` is a number that is known to stand, as in `newest`.

        A sweep that lists pins just before would miss one for a manifest that it is about to remove. So the pin
        counts only if the manifest is still among the newest ones once it stands, or the newest one still shows it:
        sweeps spare both.
        """
        while (found := self.newest_moment(after)) is not None:
            raise_if_stopped()
            self.pin(pin_id, found.number, until_us, what)
            newer = self.numbers(after=found.number)
            if len(newer) < _NEAR or self._shows(newer[-1], found.number):
                return found
        return None

    def _shows(self, number: int, moment: int) -> bool:
        manifest = self.manifest(number)
        return manifest is not None and manifest.moment == moment

    def unpin(self, pin_id: str) -> None:
        """Let go of what it pinned; a pin that is not there is no error."""
        self._end_pins(lambda pin: pin.pin_id == pin_id)

    def end_pin(self, pin: Pin) -> None:
        """Let go of one pin. A pin that was renewed meanwhile is another one, and stays."""
        self._end_pins(pin.__eq__)

    def _end_pins(self, should_end: Callable[[Pin], bool]) -> None:
        keys = [key for key, pin in self._pins().items() if should_end(pin)]
        self._pin_names.end(lambda name: name in keys)
        with effect("records.unpin"):
            self._deleted(keys)

    def pins(self, *, now_us: int = 0) -> list[Pin]:
        """Pins that have not run out at that time, one for each id and manifest that it holds."""
        return [pin for pin in self._pins().values() if pin.until_us > now_us]

    def _pins(self) -> dict[str, Pin]:
        """Pins by key: those that are listed, and those that are registered."""
        listed = [item.key for item in self._objects.list(PINS)]
        matches = (_PIN.fullmatch(key) for key in sorted({*listed, *self._pin_names.standing()}))
        return {
            match[0]: Pin(pin_id=unquote(match[2]), what=match[1], manifest=int(match[3]), until_us=int(match[4]))
            for match in matches
            if match
        }

    def acknowledge(self, replica_id: str, manifest: int, epoch: int, at_us: int) -> None:
        """Say in the name of a replica that it has applied this manifest and all before.

        Tombstones wait for it from then on, until it has been silent for the eligible age. What is revoked stays so.
        Nothing is said if the replica is forgotten meanwhile.

        Args:
            replica_id: Its catalog's id, or another name that stays.
            manifest: A number.
            epoch: Of that manifest.
            at_us: Now, by any clock: it tells one word from the next.
        """
        folder = f"{REPLICAS}{_quoted(replica_id)}/"
        key = f"{folder}{manifest:012d}-{epoch:012d}-{at_us:017d}"
        with effect("records.acknowledge"):
            put_record_object(self._objects, key, NO_CONTENT)
        if replica_id not in self._entered:
            self._replica_names.enter(replica_id)
            if self._is_forgotten(folder, key):
                self._replica_names.end(lambda name: name == replica_id)
                return
            self._entered.add(replica_id)
        self._only(folder, key)

    def _is_forgotten(self, folder: str, key: str) -> bool:
        """Whether an acknowledgement that was put is gone, and no newer one has taken its place."""
        if any(self._objects.head(key) is not None for _ in range(2)):
            return False
        return not any(_REPLICA.fullmatch(item.key) for item in self._objects.list(folder))

    def register(self, replica_id: str, at_us: int) -> None:
        """Let tombstones wait for a replica that is about to be seeded: it has applied nothing, and is not revoked.

        What is read of the record log afterwards tells all that it must know: of a tombstone that is gone then, there
        is nothing left that it covers. Repeating it is harmless.
        """
        self._entered.discard(replica_id)  # another process may have forgotten it since
        self.acknowledge(replica_id, 0, 0, at_us)
        with effect("records.register"):
            self._deleted([self._revocation(replica_id)])

    def revoke(self, replica_id: str) -> None:
        """Let nothing wait for a replica any more, and itself know it: it must be seeded again.

        It is to be listed again afterwards: one that was registered meanwhile may not be revoked by this.
        """
        with effect("records.revoke"), suppress(AlreadyExists):
            put_record_object(self._objects, self._revocation(replica_id), NO_CONTENT)

    def _revocation(self, replica_id: str) -> str:
        return f"{REPLICAS}{_quoted(replica_id)}/{_REVOKED}"

    def forget_replica(self, replica_id: str) -> None:
        """Take back what it acknowledged: it is a replica no longer. What revokes it goes last: no word outlives it."""
        revocation = self._revocation(replica_id)
        self._replica_names.end(lambda name: name == replica_id)
        self._entered.discard(replica_id)
        with effect("records.forget"):
            self._only(f"{REPLICAS}{_quoted(replica_id)}/", revocation)
            self._deleted([revocation])

    def replicas(self) -> list[Acknowledgement]:
        """What each replica acknowledged, ascending by id: of several words the lowest manifest, and the last time."""
        told: dict[str, Acknowledgement] = {}
        revoked = set[str]()
        for one in self._objects.list(REPLICAS):
            found = _REPLICA.fullmatch(one.key)
            if not found:
                folder, _, last = one.key.removeprefix(REPLICAS).partition("/")
                revoked |= {unquote(folder)} if last == _REVOKED else set()
                continue
            name, manifest, epoch = unquote(found[1]), int(found[2]), int(found[3])
            at_us = int(found[4]) if one.modified_us is None else one.modified_us
            before = told.get(name)
            if before is not None:
                manifest, epoch = min((manifest, epoch), (before.manifest, before.epoch))
                at_us = max(at_us, before.at_us)
            told[name] = Acknowledgement(replica_id=name, manifest=manifest, epoch=epoch, at_us=at_us)
        return [replace(told[name], revoked=name in revoked) for name in sorted(told)]

    def certain_replicas(self) -> list[Acknowledgement]:
        """As `replicas`, before anything goes that a replica may not have applied.

        One that is registered and not listed counts as having applied nothing, and as heard of at the end of time: no
        raid may revoke it on the word of that listing. If it was revoked before, a HEAD tells that.
        """
        names = self._replica_names.standing()
        listed = self.replicas()
        unlisted = names.difference(one.replica_id for one in listed)
        if unlisted:
            unlisted &= self._replica_names.standing()  # some may have been forgotten meanwhile
        return listed + [
            Acknowledgement(replica_id=one, manifest=0, epoch=0, at_us=NEVER_STALE_US)
            for one in sorted(unlisted)
            if not self.is_revoked(one)
        ]

    def is_registered(self, replica_id: str) -> bool:
        """Whether a replica was registered and is not forgotten, whatever listings show of it."""
        return replica_id in self._replica_names.standing()

    def is_revoked(self, replica_id: str) -> bool:
        """Whether a raid went on without a replica, whatever listings show."""
        return self._objects.head(self._revocation(replica_id)) is not None

    def _only(self, folder: str, key: str) -> None:
        """Delete what else stands in the folder, and is no revocation."""
        left = (one.key for one in self._objects.list(folder) if one.key not in {key, f"{folder}{_REVOKED}"})
        self._deleted(list(left))

    def _deleted(self, keys: Sequence[str]) -> None:
        report = self._objects.delete(keys) if keys else None
        if report is not None and report.failed:
            key, why = next(iter(report.failed.items()))
            raise StoreUnavailable(f"{key}: it could not be deleted: {why}")


def _hidden(number: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{manifest_key(number)}: HEAD finds it, LIST does not; nothing is decided by such a listing"
    )


def _quoted(name: str) -> str:
    """A name as one part of a key that every store keeps as it is."""
    if not name:
        raise InvalidInput("name", expected="1 character or more", found=name)
    return quote(name, safe="").replace(".", "%2E")
