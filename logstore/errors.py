"""Errors that Sexton raises on purpose. The base class of an error says whether a retry can help."""


class SextonError(Exception):
    """Base of every error that Sexton raises on purpose."""


class RetryableError(SextonError):
    """Error after which the same request may succeed later."""


class StoreUnavailable(RetryableError):
    """A service did not answer, answered with an internal error, or asked to slow down."""


class CatalogBusy(RetryableError):
    """Contention lasted longer than the catalog's own retries."""


class IdsExhausted(RetryableError):
    """No id below the ceiling is left. A flush of the record log raises the ceiling."""


class SessionLost(RetryableError):
    """A session of ZooKeeper ended, and its ephemeral nodes are gone. Open a new session and read the nodes again."""


class DeletionIncomplete(RetryableError):
    """Storage still has keys of a ledger. `keys_left` is `None` if storage did not answer for all keys."""

    def __init__(self, message: str, *, keys_left: int | None = None) -> None:
        super().__init__(message)
        self.keys_left = keys_left


class UploadOpen(RetryableError):
    """An upload of the copy may still run, so deleted objects could return. Retry after `after_s`."""

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class UploadTimedOut(RetryableError):
    """An upload took too long and was ended. The next attempt starts from the beginning."""


class UploadUnproven(RetryableError):
    """The store confirmed an upload, but does not have the uploaded object."""


class OutcomeUnknown(SextonError):
    """The request may have taken effect. Read the state again before a retry."""


class TerminalError(SextonError):
    """Error after which a retry cannot help."""


def shorten_text(text: str) -> str:
    """Return at most 120 characters of the text, for a message."""
    return text if len(text) <= 120 else f"{text[:117]}..."


class InvalidInput(TerminalError):
    """Invalid input. Nothing changed. The message shows at most 120 characters of `found`."""

    def __init__(self, field: str, *, expected: str, found: object) -> None:
        shown = repr(str(found) if hasattr(found, "__fspath__") else found)
        super().__init__(f"{field}: expected {expected}, found {shorten_text(shown)}")
        self.field = field
        self.expected = expected
        self.found = found


class UnknownObject(InvalidInput):
    """The topic, ledger, subscription or batch does not exist."""


class PreconditionFailed(TerminalError):
    """A condition of the request does not hold. Nothing changed."""


class AlreadyExists(PreconditionFailed):
    """The name or the key is taken."""


class CatalogAdopting(PreconditionFailed):
    """The catalog refuses writes, because its rebuild is not complete or because it is a replica database."""


class CatalogOutdated(PreconditionFailed):
    """The database is older than its record log, for example after a restore from a backup. Rebuild the catalog."""


class CatalogMismatch(PreconditionFailed):
    """A bucket, a path in ZooKeeper or a namespace of Temporal belongs to another catalog. Nothing is changed there."""

    def __init__(self, subject: str, *, expected: str, found: str, advice: str) -> None:
        super().__init__(f"{subject}: expected {expected}, found {found}; {advice}")


class ClaimHeld(PreconditionFailed):
    """Another workflow has claimed the object."""


class LedgerFenced(PreconditionFailed):
    """The ledger takes no more segments: it is closed, detached or from another epoch."""


class LedgerStillNeeded(PreconditionFailed):
    """The ledger cannot be detached, because it is still needed."""


class NotOwner(PreconditionFailed):
    """The worker does not own the bundle now. Look the bundle owner up again, and send the request to that worker."""

    def __init__(self, bundle: int, *, expected: str, found: str) -> None:
        super().__init__(f"bundle {bundle}: expected {expected}, found {found}; look the owner up again")
        self.bundle = bundle


class WorkerIdTaken(PreconditionFailed):
    """Another process uses this worker id."""


class ProducerFenced(PreconditionFailed):
    """Another append of the same producer was registered first. Compare the sequence ids and retry."""


class SequenceHeld(PreconditionFailed):
    """Another open transaction has the producer's last entries. `txn` has the form `tc:sequence`."""

    def __init__(self, producer: str, *, txn: str) -> None:
        super().__init__(
            f"producer {producer!r}: expected its sequence ids in no other transaction,"
            f" found transaction {txn}, which is open"
        )


class SnapshotNeeded(PreconditionFailed):
    """The request came without the cursor's newest snapshot. Load it from the ledger `needed`, and retry."""

    def __init__(self, subscription: str, *, needed: int, found: int | None) -> None:
        super().__init__(f"subscription {subscription}: expected the snapshot in ledger {needed}, found {found}")
        self.needed = needed


class StaleCatalog(PreconditionFailed):
    """The request names another epoch of the catalog."""


class TransactionNotOpen(PreconditionFailed):
    """The transaction of a write or an acknowledgement is not open any more. `txn` has the form `tc:sequence`."""

    def __init__(self, txn: str, *, doing: str, state: str) -> None:
        super().__init__(f"txn {txn}: {doing}: expected state OPEN, found {state}")
        self.txn = txn
        self._doing, self._state = doing, state

    def again(self) -> "TransactionNotOpen":
        """Return a new instance of the error. Threads that raise one instance would overwrite its traceback."""
        return TransactionNotOpen(self.txn, doing=self._doing, state=self._state)


class TransactionEnded(PreconditionFailed):
    """The transaction has the opposite decision, or has timed out. Nothing changed."""

    def __init__(self, txn: str, *, verb: str, state: str) -> None:
        super().__init__(f"txn {txn}: {verb}: expected a transaction that can {verb}, found {state}")


class TransactionNotDecided(PreconditionFailed):
    """The transaction is open, so its participants cannot be settled yet."""

    def __init__(self, txn: str) -> None:
        super().__init__(f"txn {txn}: expected one that is decided, found state OPEN; commit or abort it")


class AcknowledgementHeld(PreconditionFailed):
    """The entry is acknowledged in another open transaction, or is already acknowledged."""

    def __init__(self, subscription: str, *, position: str, found: str) -> None:
        super().__init__(f"subscription {subscription}: expected entry {position} to be free, found {found}")


class AcknowledgementStale(PreconditionFailed):
    """An acknowledgement up to a position could include messages that were given back or are not due."""

    def __init__(self, subscription: str, *, up_to: str, expected: str, found: str, advice: str) -> None:
        about = f"subscription {subscription}: acknowledging everything up to {up_to}"
        super().__init__(f"{about}: expected {expected}, found {found}. {advice}")


class UnexpectedClusterState(PreconditionFailed):
    """A Pulsar cluster is not as a plan saw it. Nothing more may be deleted by this plan."""


class UnreadableClusterState(UnexpectedClusterState):
    """Something in a Pulsar cluster cannot be read. The plan may go on when it can."""


class CatalogVersionMismatch(PreconditionFailed):
    """This build does not know the schema of the catalog."""


class Unsupported(PreconditionFailed):
    """This back end or this build does not support the request."""


class LookupRefused(TerminalError):
    """ZooKeeper refuses to name the bundle owner of a topic, because access rights or the path are wrong."""


class MissingData(TerminalError):
    """The catalog lists an object that no copy holds. Data is lost."""


class CorruptData(TerminalError):
    """An object differs from what the catalog says."""


class FunctionFailed(TerminalError):
    """An operator's record function raised an error or returned an invalid result."""


class NoProgress(TerminalError):
    """Several attempts to delete a copy left the same number of keys. An operator must find the cause."""


class ServiceFailed(SextonError):
    """A service could not be started, stopped or reached, or refuses requests of this process."""

    def __init__(self, service: str, problem: str, *, advice: str) -> None:
        super().__init__(f"{service}: {problem}; {advice}")
        self.service = service
        self.problem = problem


class ProgramMissing(ServiceFailed):
    """A required program is not installed on this machine, or is too old. Only an installation helps."""


class ServiceRefused(ServiceFailed):
    """A service refuses every request because of credentials, permissions, bucket, region or clock.

    After an operator has fixed the cause, the same request succeeds. `advice` is a phrase for the operator. `code` is
    the service's error code. `may_pass` says whether the next attempt may succeed, for example with a new token.
    """

    def __init__(self, service: str, problem: str, *, advice: str, code: str = "", may_pass: bool = False) -> None:
        super().__init__(service, problem, advice=advice)
        self.code = code
        self.may_pass = may_pass
