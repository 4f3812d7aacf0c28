"""Every error Sexton raises on purpose, in one tree; the class decides whether a retry can help.

```
SextonError
├── RetryableError                 the world may change: ask again
│   ├── StoreUnavailable           a service did not answer, or asked to slow down
│   ├── CatalogBusy                contention outlasted the catalog's own retries
│   ├── IdsExhausted               no id below the ceiling is left: a flush of the record log raises it
│   ├── SessionLost                a session of coordination ended, and its nodes with it
│   ├── DeletionIncomplete         storage kept some keys of a ledger
│   ├── UploadOpen                 an upload of the copy may still be going
│   ├── UploadTimedOut             an upload took longer than it may: it sends nothing more
│   └── UploadUnproven             an upload was answered, and storage does not hold what was sent
├── OutcomeUnknown                 may have landed: re-read first, then retry
├── TerminalError                  asking again cannot help
│   ├── InvalidInput               a field, what was expected, what was found
│   │   └── UnknownObject          a topic, ledger, subscription or batch that does not exist
│   ├── PreconditionFailed         a guard refused; nothing changed
│   │   ├── AlreadyExists          the name or key is taken
│   │   ├── CatalogAdopting        the catalog was rebuilt and is not complete, or is a replica: writes are refused
│   │   ├── CatalogMismatch        a bucket, a path or a namespace of another catalog, or of none
│   │   ├── CatalogOutdated        the database is older than its record log: restored from a backup
│   │   ├── ClaimHeld              another workflow is at work on it
│   │   ├── LedgerFenced           the ledger takes no more segments: roll and append again
│   │   ├── LedgerStillNeeded      a ledger that something refers to
│   │   ├── NotOwner               not the bundle's owner any more: look the owner up again
│   │   ├── ProducerFenced         another append of this producer came first
│   │   ├── SequenceHeld           entries of this producer are in another transaction that is open
│   │   ├── WorkerIdTaken          another process lives under this worker id
│   │   ├── SnapshotNeeded         the cursor's state is in a ledger that the caller has not loaded
│   │   ├── StaleCatalog           the request speaks of another catalog epoch
│   │   ├── TransactionNotOpen     a write or an acknowledgement in a transaction that is decided
│   │   ├── TransactionEnded       the transaction was decided otherwise, or timed out
│   │   ├── TransactionNotDecided  the transaction is open: nothing is to be told yet
│   │   ├── AcknowledgementHeld    another transaction holds an acknowledgement of the entry, or it is acknowledged
│   │   ├── AcknowledgementStale   messages were given back since the entry of a cumulative acknowledgement was read
│   │   ├── CatalogVersionMismatch the catalog's schema is not the one this build knows
│   │   └── Unsupported            this back end or this build lacks the capability
│   ├── LookupRefused              ZooKeeper refuses to name the owner of a topic: a person must mend rights or path
│   ├── MissingData                the catalog lists an object that no copy holds
│   ├── CorruptData                an object that cannot be what the catalog says
│   ├── FunctionFailed             a function of an operator's own raised, or answered what it may not
│   └── NoProgress                 the same count, late attempt: a person must look
└── ServiceFailed                  a service could not be started or reached
    ├── ProgramMissing             a program that we run is not installed here, or is too old
    └── ServiceRefused             a service answers, and refuses us: our identity, our address or our clock
```
"""


class SextonError(Exception):
    """Base of every error that Sexton raises on purpose."""


class RetryableError(SextonError):
    """The world may change: the same request may succeed later."""


class StoreUnavailable(RetryableError):
    """A service did not answer, answered with a fault of its own, or asked to slow down."""


class CatalogBusy(RetryableError):
    """Contention outlasted the catalog's own retries."""


class IdsExhausted(RetryableError):
    """No id below the ceiling is left; a flush of the record log raises the ceiling."""


class SessionLost(RetryableError):
    """A session of coordination ended, and its ephemeral nodes with it: open another, and look at each bundle again."""


class DeletionIncomplete(RetryableError):
    """Storage kept some keys of a ledger. `keys_left` is `None` if storage did not answer for all of them."""

    def __init__(self, message: str, *, keys_left: int | None = None) -> None:
        super().__init__(message)
        self.keys_left = keys_left


class UploadOpen(RetryableError):
    """An upload of the copy may still run, so deleted objects could return. Ask again after `after_s`."""

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class UploadTimedOut(RetryableError):
    """An upload took longer than it may: it sends nothing more, and the next attempt begins anew."""


class UploadUnproven(RetryableError):
    """An upload was answered, and storage does not hold what was sent."""


class OutcomeUnknown(SextonError):
    """The effect may have landed: re-read before asking again."""


class TerminalError(SextonError):
    """Asking again cannot help."""


class InvalidInput(TerminalError):
    """Bad input, refused before anything changed. `found` is cut at 120 characters in the message."""

    def __init__(self, field: str, *, expected: str, found: object) -> None:
        shown = repr(str(found) if hasattr(found, "__fspath__") else found)
        shown = shown if len(shown) <= 120 else f"{shown[:117]}..."
        super().__init__(f"{field}: expected {expected}, found {shown}")
        self.field = field
        self.expected = expected
        self.found = found


class UnknownObject(InvalidInput):
    """A topic, ledger, subscription or batch that does not exist."""


class PreconditionFailed(TerminalError):
    """A guard refused; nothing changed."""


class AlreadyExists(PreconditionFailed):
    """The name or the key is taken."""


class CatalogAdopting(PreconditionFailed):
    """The catalog was rebuilt and does not know all of its ledgers yet, or it is a replica: writes are refused."""


class CatalogOutdated(PreconditionFailed):
    """The database is older than its own record log, as one restored from a backup is: it must be rebuilt."""


class CatalogMismatch(PreconditionFailed):
    """A bucket, a path of ZooKeeper or a namespace of Temporal belongs to another catalog. Nothing is changed there."""

    def __init__(self, subject: str, *, expected: str, found: str, advice: str) -> None:
        super().__init__(f"{subject}: expected {expected}, found {found}; {advice}")


class ClaimHeld(PreconditionFailed):
    """Another workflow is at work on it."""


class LedgerFenced(PreconditionFailed):
    """The ledger takes no more segments: it is closed, detached or of another epoch."""


class LedgerStillNeeded(PreconditionFailed):
    """Something still refers to the ledger."""


class NotOwner(PreconditionFailed):
    """The worker does not own the bundle, or not any more; look the owner up again, and ask there."""

    def __init__(self, bundle: int, *, expected: str, found: str) -> None:
        super().__init__(f"bundle {bundle}: expected {expected}, found {found}; look the owner up again")
        self.bundle = bundle


class WorkerIdTaken(PreconditionFailed):
    """Another process lives under this worker id."""


class ProducerFenced(PreconditionFailed):
    """Another append of the same producer registered first; compare sequence ids and try again."""


class SequenceHeld(PreconditionFailed):
    """Numbered entries of the producer are in another open transaction, `txn`, written `tc:sequence`."""

    def __init__(self, producer: str, *, txn: str) -> None:
        super().__init__(
            f"producer {producer!r}: expected its sequence ids in no other transaction,"
            f" found transaction {txn}, which is open"
        )


class SnapshotNeeded(PreconditionFailed):
    """Part of the cursor's state is in a ledger that the request does not carry; load it and ask again."""

    def __init__(self, subscription: str, *, needed: int, found: int | None) -> None:
        super().__init__(f"subscription {subscription}: expected the snapshot in ledger {needed}, found {found}")
        self.needed = needed


class StaleCatalog(PreconditionFailed):
    """The request speaks of another catalog epoch."""


class TransactionNotOpen(PreconditionFailed):
    """A write or an acknowledgement in a transaction that is decided. `txn` is written `tc:sequence`."""

    def __init__(self, txn: str, *, doing: str, state: str) -> None:
        super().__init__(f"txn {txn}: {doing}: expected state OPEN, found {state}")
        self.txn = txn
        self._doing, self._state = doing, state

    def again(self) -> "TransactionNotOpen":
        """Return a new instance. Threads that raise the same instance would overwrite each other's traceback."""
        return TransactionNotOpen(self.txn, doing=self._doing, state=self._state)


class TransactionEnded(PreconditionFailed):
    """The transaction was decided otherwise, or its timeout came first. Nothing changed."""

    def __init__(self, txn: str, *, verb: str, state: str) -> None:
        super().__init__(f"txn {txn}: {verb}: expected a transaction that can {verb}, found {state}")


class TransactionNotDecided(PreconditionFailed):
    """The transaction is open, so there is nothing to tell its participants yet."""

    def __init__(self, txn: str) -> None:
        super().__init__(f"txn {txn}: expected one that is decided, found state OPEN; commit or abort it")


class AcknowledgementHeld(PreconditionFailed):
    """Another transaction holds an acknowledgement of the entry, or the entry is acknowledged already."""

    def __init__(self, subscription: str, *, position: str, found: str) -> None:
        super().__init__(f"subscription {subscription}: expected entry {position} to be free, found {found}")


class AcknowledgementStale(PreconditionFailed):
    """Messages were given back after the entry of a cumulative acknowledgement was read. It would skip them."""

    def __init__(self, subscription: str, *, up_to: str, expected: str, found: str, advice: str) -> None:
        about = f"subscription {subscription}: acknowledging everything up to {up_to}"
        super().__init__(f"{about}: expected {expected}, found {found}. {advice}")


class CatalogVersionMismatch(PreconditionFailed):
    """The catalog's schema is not the one this build knows."""


class Unsupported(PreconditionFailed):
    """This back end or this build lacks the capability."""


class LookupRefused(TerminalError):
    """ZooKeeper answers and refuses to name the owner of a topic: its rights, or the path, are not ours."""


class MissingData(TerminalError):
    """The catalog lists an object that no copy holds: data loss."""


class CorruptData(TerminalError):
    """An object that cannot be what the catalog says it is."""


class FunctionFailed(TerminalError):
    """A function of an operator's own raised, or answered what it may not."""


class NoProgress(TerminalError):
    """The same amount is left at a late attempt: a person must look."""


class ServiceFailed(SextonError):
    """A service could not be started, stopped or reached, or refuses us."""

    def __init__(self, service: str, problem: str, *, advice: str) -> None:
        super().__init__(f"{service}: {problem}; {advice}")
        self.service = service
        self.problem = problem


class ProgramMissing(ServiceFailed):
    """A program that we run is not installed on this machine, or is too old: nothing but an installation helps."""


class ServiceRefused(ServiceFailed):
    """A service answers and refuses every request: credentials, permissions, bucket, region or clock.

    An operator can mend it, and then the same request succeeds. It is neither a guard of Sexton nor a fault of the
    request.

    Args:
        service: Name of the service.
        problem: Request, and the service's own words.
        advice: What to try, as a phrase.
        code: The service's own code of the refusal.
        may_pass: Whether the next attempt may succeed, as after a token was renewed.
    """

    def __init__(self, service: str, problem: str, *, advice: str, code: str = "", may_pass: bool = False) -> None:
        super().__init__(service, problem, advice=advice)
        self.code = code
        self.may_pass = may_pass
