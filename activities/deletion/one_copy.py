"""Phase two of one copy, alone: claimed, deleted, and kept with its error where that failed."""

from collections.abc import Sequence

from activities.deletion import metrics
from activities.deletion.claims import CLAIM_S, own_claim
from activities.deletion.phase_two import examine, later, remove, result_of, sentence, wait_s
from activities.deletion.rate import DeletionPace
from activities.deletion.values import DeadLetterInput, OneInput, OneResult
from activities.dispatch import Answer, Dispatch, is_topic_name
from activities.heartbeats import Heartbeats, beating, defined
from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import (
    DeletionIncomplete,
    InvalidInput,
    NoProgress,
    OutcomeUnknown,
    RetryableError,
    SextonError,
    StaleCatalog,
    UnknownObject,
)
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Claim, Deletions, Ended
from logstore.ports.owners import Owners
from logstore.ports.storage import Storages
from logstore.positions import LedgerId

_STUCK_AFTER = 5
"""Attempts in a row after which storage has kept as many keys as before: a person must look, and sooner than the end.

Five, 600 s apart, are forty minutes: longer than a store takes to restart or to fail over, so that no outage of one of
its volumes, which refuses keys one by one, fills the dead letters; and half of the ten attempts are spared. The third
would be within such an outage, the eighth, as in Temporal's own deletions, would spare but two attempts.
"""


class CopyDeletion:
    """The activities of a single intent; a part of `LedgerDeletion`."""

    def __init__(self, *, deletions: Deletions, storages: Storages, owners: Owners) -> None:
        """Take the ports; `storages` by `CopyKind` value."""
        self._deletions = deletions
        self._storages = storages
        self._dispatch = Dispatch(deletions, owners)

    @defined(name="deletion.delete_one")
    def delete_one(self, request: OneInput) -> Answer[OneResult]:
        """Phase two for one intent.

        Idempotency: keyed by (ledger, copy, generation); a finished row answers with its outcome.
        Heartbeat: per page; a hint only.
        Raises: InvalidInput, ClaimHeld, NotOwner, LookupRefused (terminal); NoProgress (terminal) when storage keeps
            the same number of keys again and again; anything else is retried after `retry_interval_s`, or once an
            upload of the copy is over, and kept on the row.
        """
        return self._dispatch.run(request, self._delete_one)

    def _delete_one(self, queue: Deletions, request: OneInput) -> OneResult:
        try:
            return self._take_and_delete(queue, request)
        except UnknownObject as error:
            return OneResult(outcome=Outcome.UNKNOWN, detail=str(error))
        except StaleCatalog as error:
            return OneResult(outcome=Outcome.STALE_CATALOG, detail=str(error))
        except (RetryableError, OutcomeUnknown) as error:  # the catalog did not answer
            raise later(error, request.retry_interval_s) from error

    def _take_and_delete(self, queue: Deletions, request: OneInput) -> OneResult:
        with beating():  # another writer may make this one wait longer than a heartbeat timeout
            intent = _take(queue, request)
        if intent.state is not DeletionState.PENDING:
            return result_of(intent)
        metrics.received([intent])
        with Heartbeats(lambda: queue.hold(intent.row_id, own_claim()), just_claimed=True) as heartbeats:
            ended, errors = self._act([intent], heartbeats, DeletionPace())
            changed = finish(queue, [intent], ended, holder=own_claim().workflow_id)
            if errors:
                raise _kept(queue, intent, errors[intent.row_id], request.retry_interval_s)
        if not changed:
            return self._take_and_delete(queue, request)  # taken from us: it ended, or another has it, or nobody
        one = ended[0]
        return OneResult(outcome=one.outcome, objects=one.objects, size_bytes=one.size_bytes, detail=one.error or "")

    def _act(
        self, intents: Sequence[DeletionIntent], heartbeats: Heartbeats, pace: DeletionPace
    ) -> tuple[list[Ended], dict[int, SextonError]]:
        found = examine(intents, self._storages, heartbeats)
        return remove(found, self._storages, heartbeats, pace)

    @defined(name="deletion.dead_letter")
    @beating()
    def dead_letter(self, request: DeadLetterInput) -> Answer[OneResult]:
        """Keep an exhausted intent as a dead letter with its error: listed, never dropped.

        Idempotency: a row that ended meanwhile keeps its outcome, which is returned.
        Raises: InvalidInput, ClaimHeld, NotOwner, LookupRefused, UnknownObject (terminal); StoreUnavailable (retry).
        """
        return self._dispatch.run(request, _dead_letter)


def _dead_letter(queue: Deletions, request: DeadLetterInput) -> OneResult:
    try:
        intent = _take(queue, request, attempt=False)
    except StaleCatalog as error:
        return OneResult(outcome=Outcome.STALE_CATALOG, detail=str(error))
    if intent.state is not DeletionState.PENDING:
        return result_of(intent)
    why = request.error or intent.last_error or "no attempt is left"
    letter = Ended(row_id=intent.row_id, outcome=Outcome.DEAD_LETTERED, error=why)
    finish(queue, [intent], [letter], holder=own_claim().workflow_id)
    return OneResult(outcome=Outcome.DEAD_LETTERED, detail=why)


def _take(queue: Deletions, request: OneInput | DeadLetterInput, *, attempt: bool = True) -> DeletionIntent:
    key = request.key
    if key.copy not in set(CopyKind):
        raise InvalidInput("copy", expected=f"one of {', '.join(CopyKind)}", found=key.copy)
    return queue.take(
        LedgerId(key.ledger_id),
        CopyKind(key.copy),
        key.generation,
        own_claim(),
        epoch=request.catalog_epoch,
        attempt=attempt,
        topic=request.topic if is_topic_name(request.topic) else None,
    )


def finish(queue: Deletions, intents: Sequence[DeletionIntent], ended: list[Ended], *, holder: str) -> frozenset[int]:
    """Record how rows ended, and count those that this call ended."""
    changed = queue.finish(ended, holder=holder)
    metrics.ended(intents, ended, changed)
    return changed


def _kept(queue: Deletions, intent: DeletionIntent, error: SextonError, retry_interval_s: int) -> Exception:
    """Hold the row until the next attempt and a minute more, with the error; what ends this attempt."""
    after_s = wait_s(error, retry_interval_s)
    wait = Claim(workflow_id=own_claim().workflow_id, run_id="", ttl_s=after_s + CLAIM_S)
    left = error.keys_left if isinstance(error, DeletionIncomplete) else None
    attempts = queue.hold(intent.row_id, wait, error=sentence(error), keys_left=left)
    metrics.failed([intent])
    if attempts < _STUCK_AFTER:
        return later(error, after_s)
    return NoProgress(f"ledger {intent.ledger_id}: {left} keys left after each of {attempts} attempts; {error}")
