"""Deletes confirmed per key: in bulk where the store can, one by one where it cannot."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from infra.objects.answers import ABSENT, SLOW_DOWN, TEMPORARY, code_of, is_throttle, status_of, translated
from infra.objects.keys import not_in_xml, refusals
from infra.objects.retries import DeleteRate, Retries
from infra.objects.single_delete import DeleteCounts, SingleDelete
from logstore.errors import SextonError, StoreUnavailable
from logstore.ports.objects import DeleteReport
from logstore.units import between_units

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
_SINGLY_FIRST_S, _SINGLY_MOST_S = 10.0, 600.0
"""Seconds of single deletes after a refusal of bulk ones; doubled by each that follows, until bulk works again."""
_UNCONFIRMED = "NotConfirmed: the answer names the key under neither Deleted nor Errors"

_Errors = Mapping[str, tuple[str, str]]


class _BulkRefused(Exception):
    """The store does not take this bulk request; single deletes may work."""

    def __init__(self, said: str, *, of_the_store: bool) -> None:
        super().__init__(said)
        self.of_the_store = of_the_store  # and not of this one page


class _Ability:
    """Whether the store takes bulk deletes, as far as its answers have told."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._singly_s = 0.0
        self._again_at = -math.inf
        self.shown = False  # it took one

    @property
    def worth_asking(self) -> bool:
        """Whether bulk deletes are not known to be refused, or were last refused some time ago."""
        return self._clock() >= self._again_at

    def took(self) -> None:
        """A bulk delete was answered."""
        self.shown, self._singly_s = True, 0.0

    def refused(self) -> float:
        """A bulk delete was refused where single ones work: for how many seconds those are to be sent."""
        self._singly_s = min(_SINGLY_MOST_S, self._singly_s * 2 or _SINGLY_FIRST_S)
        self._again_at = self._clock() + self._singly_s
        return self._singly_s


class BulkDelete:
    """Deletes in one bucket; shared by threads, and so is what it learns of the store's speed and abilities.

    Source: aws-sdk-java-v2 #5805 and barman #1146: stores that want Content-MD5 refuse the bulk deletes of
    new SDKs. Such a store is met with single deletes, and asked again for bulk ones after a while: a gateway that was
    being exchanged may have refused, and single deletes are several times slower.
    """

    def __init__(self, client: "S3Client", bucket: str, *, retries: Retries, rate: DeleteRate) -> None:
        self._client, self._bucket = client, bucket
        self._retries, self._rate = retries, rate
        self._singly = SingleDelete(client, bucket, retries=retries, rate=rate)
        self._ability = _Ability(retries.clock.monotonic_s)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete `keys`; what each met is in the report.

        Raises:
            StoreUnavailable: The store answered for no key at all.
            ServiceRefused: The store refuses every delete here, e.g. for lack of permission.
        """
        asked = list(dict.fromkeys(keys))
        counts = DeleteCounts(failed={key: f"InvalidKey: expected {why}" for key, why in refusals(asked).items()})
        todo = [key for key in asked if key not in counts.failed] if counts.failed else asked
        alone = dict.fromkeys(not_in_xml(todo))  # one key that XML cannot spell spoils the request of a whole page
        try:
            self._in_rounds([key for key in todo if key not in alone] if alone else todo, counts)
            if alone:
                self._singly.delete(list(alone), counts)
        except SextonError as error:
            if not counts.deleted and not counts.failed:
                raise
            rest = [key for key in todo if key not in counts.deleted and key not in counts.failed]
            counts.failed.update(dict.fromkeys(rest, f"{type(error).__name__}: {error}"))
            counts.unanswered.update(rest)
        return counts.report()

    def _in_rounds(self, todo: list[str], counts: DeleteCounts) -> None:
        """Ask for all keys page by page, then again for those with a temporary error, while attempts are left."""
        failures = 0
        while todo:
            again: dict[str, str] = {}
            at = 0
            while at < len(todo):
                at += self._page(todo, at, counts, again)
            failures += 1
            if again and failures == self._retries.backoff.attempts:
                counts.failed.update(again)
                return
            if again:
                self._retries.wait(failures)
            todo = list(again)

    def _page(self, todo: list[str], at: int, counts: DeleteCounts, again: dict[str, str]) -> int:
        """Delete the page that begins at `at`, in whichever way the store takes; returns its length."""
        between_units()
        refused: _BulkRefused | None = None
        if self._ability.worth_asking:
            try:
                return self._retries.ask(lambda: self._bulk(todo, at, counts, again))
            except _BulkRefused as error:
                refused = error
        page, before = todo[at : at + self._rate.page], len(counts.deleted)
        self._singly.delete(page, counts)
        if refused and refused.of_the_store and len(counts.deleted) > before:
            pause_s = self._ability.refused()
            _log.warning(
                "bucket %s refuses bulk deletes (%s): deleting one by one for %.0f s", self._bucket, refused, pause_s
            )
        return len(page)

    def _bulk(self, todo: list[str], at: int, counts: DeleteCounts, again: dict[str, str]) -> int:
        page = todo[at : at + self._rate.page]  # cut anew at each attempt: a throttle has made it shorter
        start = self._rate.wait_for_turn(len(page))
        try:
            with translated(f"delete {len(page)} keys of {self._bucket}"):
                deleted, errors = self._request(page)
        except StoreUnavailable as error:
            if is_throttle(error):
                self._rate.throttled(start)
            raise
        self._ability.took()
        if any(code in SLOW_DOWN for code, _ in errors.values()):
            self._rate.throttled(start)
        else:
            self._rate.accepted(len(page))
        if not errors and len(deleted) == len(page) and deleted.issuperset(page):
            counts.deleted |= deleted
        else:
            again.update(_sort_out(page, deleted, errors, counts))
        return len(page)

    def _request(self, page: list[str]) -> tuple[set[str], _Errors]:
        """One DeleteObjects: the keys confirmed, and the errors as code and message by key."""
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in page], "Quiet": False}
            )
        except ClientError as error:
            refusal = self._refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        errors = {e.get("Key", ""): (e.get("Code", ""), e.get("Message", "")) for e in answer.get("Errors", ())}
        return {each.get("Key", "") for each in answer.get("Deleted", ())}, errors

    def _refusal(self, error: ClientError) -> _BulkRefused | None:
        """Whether single deletes should do instead; an odd page says nothing of a store that has taken others."""
        code, status = code_of(error), status_of(error)
        surely = code in _NO_BULK or status in {405, 501}
        if not surely and code not in _PERHAPS_NO_BULK:
            return None
        return _BulkRefused(f"{status} {code}", of_the_store=surely or not self._ability.shown)


def _sort_out(page: Iterable[str], deleted: set[str], errors: _Errors, counts: DeleteCounts) -> dict[str, str]:
    """Enter each key as deleted or failed, or return it to be asked for again; one left out has failed."""
    again = {}
    for key in page:
        code, message = errors.get(key, ("", ""))
        if code in ABSENT or (key in deleted and key not in errors):
            counts.deleted.add(key)
        elif code in TEMPORARY:
            again[key] = f"{code}: {message}"
        else:
            counts.failed[key] = f"{code}: {message}" if key in errors else _UNCONFIRMED
    return again
