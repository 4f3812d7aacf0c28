"""Deletes confirmed per key: in bulk where the store can, one by one where it cannot."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from infra.objects.answers import ABSENT, SLOW_DOWN, TEMPORARY, code_of, is_throttle, status_of, translated
from infra.objects.keys import not_in_xml, refusals
from infra.objects.patience import Pace, Patience
from infra.objects.single_delete import SingleDelete, Tally
from logstore.errors import SextonError, StoreUnavailable
from logstore.ports.objects import DeleteReport

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = logging.getLogger(__name__)
_NO_BULK = frozenset({
    "MethodNotAllowed",
    "MissingContentMD5",
    "MissingRequiredHeader",
    "NotImplemented",
    "NotSupported",
    "UnsupportedOperation",
})  # fmt: skip
_PERHAPS_NO_BULK = frozenset({"InvalidArgument", "InvalidDigest", "InvalidRequest", "MalformedXML"})
_UNCONFIRMED = "NotConfirmed: the answer names the key under neither Deleted nor Errors"

_Errors = Mapping[str, tuple[str, str]]


class _BulkRefused(Exception):
    """The store does not take this bulk request; single deletes may work."""


class BulkDelete:
    """Deletes in one bucket; shared by threads, and so is what it learns of the store's speed and abilities.

    Source: aws-sdk-java-v2 #5805 and barman #1146: stores that want Content-MD5 refuse the bulk deletes of
    new SDKs. Such a store is met with single deletes, from the first refusal on.
    """

    def __init__(self, client: "S3Client", bucket: str, *, patience: Patience, pace: Pace) -> None:
        self._client, self._bucket = client, bucket
        self._patience, self._pace = patience, pace
        self._singly = SingleDelete(client, bucket, patience=patience, pace=pace)
        self._bulk_works: bool | None = None  # None until the store has shown it

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete `keys`; what each met is in the report.

        Raises:
            StoreUnavailable: The store answered for no key at all.
            PreconditionFailed: The store refuses every delete here, e.g. for lack of permission.
        """
        asked = list(dict.fromkeys(keys))
        tally = Tally(failed={key: f"InvalidKey: expected {why}" for key, why in refusals(asked).items()})
        todo = [key for key in asked if key not in tally.failed] if tally.failed else asked
        try:
            self._speakable(todo, tally)
        except SextonError as error:
            if not tally.deleted and not tally.failed:
                raise
            rest = (key for key in todo if key not in tally.deleted and key not in tally.failed)
            tally.failed.update(dict.fromkeys(rest, f"{type(error).__name__}: {error}"))
        return tally.report()

    def _speakable(self, todo: list[str], tally: Tally) -> None:
        """Keep keys that XML cannot spell out of the pages: one of them spoils the request of all."""
        unspeakable = dict.fromkeys(not_in_xml(todo))
        if unspeakable:
            todo = [key for key in todo if key not in unspeakable]
        self._in_rounds(todo, tally)
        if unspeakable:
            self._singly.delete(list(unspeakable), tally)

    def _in_rounds(self, todo: list[str], tally: Tally) -> None:
        """Pass over all keys, then again over those with a temporary error, while there is patience."""
        failures = 0
        while todo:
            again: dict[str, str] = {}
            self._round(todo, tally, again)
            failures += 1
            if again and failures == self._patience.attempts:
                tally.failed.update(again)
                return
            if again:
                self._patience.wait(failures)
            todo = list(again)

    def _round(self, todo: list[str], tally: Tally, again: dict[str, str]) -> None:
        """Ask once for each key, a page at a time; keys with a temporary error end up in `again`."""
        at = 0
        while at < len(todo):
            at += self._page(todo, at, tally, again)

    def _page(self, todo: list[str], at: int, tally: Tally, again: dict[str, str]) -> int:
        """Delete the page that begins at `at`, in whichever way the store takes; returns its length."""
        if self._bulk_works is not False:
            try:
                return self._patience.ask(lambda: self._bulk(todo, at, tally, again))
            except _BulkRefused:
                pass
        page = todo[at : at + self._pace.page]
        self._singly.delete(page, tally)
        return len(page)

    def _bulk(self, todo: list[str], at: int, tally: Tally, again: dict[str, str]) -> int:
        page = todo[at : at + self._pace.page]  # cut anew at each attempt: a throttle has made it shorter
        start = self._pace.admit(len(page))
        try:
            with translated(f"delete {len(page)} keys of {self._bucket}"):
                deleted, errors = self._request(page)
        except StoreUnavailable as error:
            if is_throttle(error):
                self._pace.throttled(start)
            raise
        self._bulk_works = True
        if any(code in SLOW_DOWN for code, _ in errors.values()):
            self._pace.throttled(start)
        else:
            self._pace.accepted(len(page))
        if not errors and len(deleted) == len(page) and deleted.issuperset(page):
            tally.deleted |= deleted
        else:
            again.update(_sort_out(page, deleted, errors, tally))
        return len(page)

    def _request(self, page: list[str]) -> tuple[set[str], _Errors]:
        """One DeleteObjects: the keys confirmed, and the errors as code and message by key."""
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in page], "Quiet": False}
            )
        except ClientError as error:
            if self._is_refusal(error):
                raise _BulkRefused from error
            raise
        errors = {e.get("Key", ""): (e.get("Code", ""), e.get("Message", "")) for e in answer.get("Errors", ())}
        return {each.get("Key", "") for each in answer.get("Deleted", ())}, errors

    def _is_refusal(self, error: ClientError) -> bool:
        """Whether single deletes should do instead; a store that never took a bulk delete is remembered."""
        code, status = code_of(error), status_of(error)
        surely = code in _NO_BULK or status in {405, 501}
        if surely or (code in _PERHAPS_NO_BULK and self._bulk_works is None):
            _log.warning("bucket %s refuses bulk deletes (%s %s): deleting one by one", self._bucket, status, code)
            self._bulk_works = False
        return surely or code in _PERHAPS_NO_BULK


def _sort_out(page: Iterable[str], deleted: set[str], errors: _Errors, tally: Tally) -> dict[str, str]:
    """Enter each key as deleted or failed, or return it to be asked for again; one left out has failed."""
    again = {}
    for key in page:
        code, message = errors.get(key, ("", ""))
        if code in ABSENT or (key in deleted and key not in errors):
            tally.deleted.add(key)
        elif code in TEMPORARY:
            again[key] = f"{code}: {message}"
        else:
            tally.failed[key] = f"{code}: {message}" if key in errors else _UNCONFIRMED
    return again
