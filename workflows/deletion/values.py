"""What travels to and from the deletion workflows, and by which names and ids programs know them."""

from dataclasses import dataclass, field

from logstore.deletion.intents import BatchCertificate, IntentKey, Outcome
from workflows.jobs import Job

MAX_OBJECTS_PER_S = 1_000_000
"""The highest rate of a batch, inclusive: far beyond any store, so that more is a slip of the finger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPolicy:
    """How phase two works; set from the settings of its starter."""

    parallelism: int = 4  # chunks at once
    chunk: int = 100  # rows in a chunk
    max_attempts: int = 10
    retry_interval_s: int = 600
    owner_patience_s: int = 10  # how long work waits for a topic's owner before another worker gets it
    alone: int = 500  # children of one run, then it continues as new: the server refuses 2,000 pending ones


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgerInput:
    """One intent, and how patiently to try."""

    key: IntentKey
    topic: str  # encoded; for filters, and to find its owner
    catalog_epoch: int
    max_attempts: int = 10  # the batch's own attempt counts as one
    retry_interval_s: int = 600
    owner_patience_s: int = 10  # how long it waits for the topic's owner before another worker gets it

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        key = self.key
        return (
            f"Deletes the `{key.copy}` copy of ledger {key.ledger_id} from storage, trying again where that fails, and "
            f"`sexton ledger explain {key.ledger_id}` shows all that is known of it."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgerProgress:
    """Where the deletion of one copy is."""

    step: str  # deleting, giving up, ended
    outcome: Outcome | None = None  # once it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitDetach:
    """Phase one for given ledgers."""

    ledger_ids: list[int]  # 1 to 10,000
    force: bool = False
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, otherwise durable
    remove: list[str] = field(default_factory=list)  # copies to take away of the one ledger; none: it ends as a whole
    pass_over: list[str] = field(default_factory=list)  # subscriptions that do not keep that ledger, if it ends
    generation: int | None = None  # that it must have; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgersProgress:
    """How far the batch is; counts are of rows and confirmed objects."""

    intents: int = 0
    after: int = 0  # every row up to this id was visited
    outcomes: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    size_bytes: int = 0
    detached: int = 0
    finished: dict[str, int] = field(default_factory=dict)  # asked for and ended before: outcome -> rows
    paused: bool = False  # no chunk is started; those in hand end
    rate: int = 0  # objects a second for the whole batch; 0: unlimited
    done: int = 0  # rows that ended, or have a workflow of their own
    left: int = 0  # rows not met yet


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRate:
    """How fast a batch may delete from now on."""

    objects_per_s: int  # 0 to `MAX_OBJECTS_PER_S`; 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgersInput:
    """One batch. Give `detach` to do phase one here."""

    batch_id: str
    topic_id: int
    topic: str  # encoded
    catalog_epoch: int
    actor: str
    reason: str
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    detach: ExplicitDetach | None = None
    carried: DeleteLedgersProgress = field(default_factory=DeleteLedgersProgress)
    owner: str = ""  # the worker that detached the topic's ledgers as its owner, if one did: it is not looked up

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        whose = f"`{self.topic}`" if self.topic else "several topics"
        return f"Deletes ledgers of {whose} from storage, and `sexton deletion list` shows each with its outcome."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDeletionsResult:
    """What the sweep found and did; all zero in a run that had nothing to do."""

    batches: int = 0
    intents: int = 0  # stalled ones taken up, and new ones of newborn ledgers
    newborn: int = 0  # ledgers that were never attached
    outcomes: dict[str, int] = field(default_factory=dict)  # copies, of the batches that ended meanwhile
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    uncertified: int = 0  # batches that take longer than the sweep waits, or ended early: they, or their rows, go on
    forgotten: int = 0  # finished rows
    forgotten_runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDeletionsInput:
    """The actor, the reason, and how phase two of what is found works."""

    actor: str = "schedule"
    reason: str = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    patience_s: float = 300.0  # for one batch: one that is paused must not keep what stalls after it
    carried: SweepDeletionsResult = field(default_factory=SweepDeletionsResult)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return "Takes up stalled deletions and forgets old ones; `sexton deletion inflight` shows how many are left."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicResult:
    """The certificate: what became of the topic's copies since its deletion began, counted from their rows."""

    step: str = "beginning"  # detaching, deleting, removing, ended
    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies; RETRYING: they go on alone
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInput:
    """Which topic, and why."""

    topic_id: int
    topic: str  # encoded; the topic of that id must bear it
    actor: str
    reason: str
    catalog_epoch: int | None = None  # required to be the catalog's, where the request names one
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, otherwise durable
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: DeleteTopicResult = field(default_factory=DeleteTopicResult)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return f"Deletes `{self.topic}` with every ledger of every component, and `sexton deletion list` shows them."


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicResult:
    """What the passes did together."""

    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicInput:
    """Which topic, and why."""

    topic_id: int
    topic: str  # encoded; for filters and people
    actor: str
    reason: str
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: TrimTopicResult = field(default_factory=TrimTopicResult)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            f"Deletes the ledgers that retention lets go of `{self.topic}`, and `sexton topic show {self.topic}` "
            "shows those that are left."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicsResult:
    """What became of all topics together."""

    topics: int = 0  # looked at
    failed: int = 0  # of them, skipped; the next trim meets them again
    troubles: list[str] = field(default_factory=list)  # a sample of why
    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    uncertified: bool = False  # phase two takes longer than the trim waits, or ended early: it, or its rows, go on


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicsInput:
    """The actor, the reason, and how phase two works."""

    actor: str = "schedule"
    reason: str = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    patience_s: int = 300  # for phase two: a batch that is paused must not keep all topics from being trimmed
    page: int = 50  # topics: were each of them contended for a minute, a page would still end within its hour
    batch_id: str = ""  # of this trim, once it has one
    after: int = 0  # every topic up to this id was visited
    carried: TrimTopicsResult = field(default_factory=TrimTopicsResult)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return "Deletes what retention lets go, of all topics; `sexton deletion inflight` shows how much is left."


TRIM_TOPIC = Job("trim-topic", TrimTopicInput, TrimTopicResult, keys=("{topic_id}",))
TRIM_TOPICS = Job("trim-topics", TrimTopicsInput, TrimTopicsResult)
DELETE_TOPIC = Job("delete-topic", DeleteTopicInput, DeleteTopicResult, keys=("{topic_id}",))
DELETE_LEDGERS = Job("delete-ledgers", DeleteLedgersInput, BatchCertificate, keys=("{batch_id}",))
SWEEP_DELETIONS = Job("sweep-deletions", SweepDeletionsInput, SweepDeletionsResult)
