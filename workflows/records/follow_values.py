"""What travels to and from `follow-records`, and by which name and id programs know it."""

from dataclasses import dataclass, field

from logstore.deletion.intents import Refusal
from logstore.records.jobs import FollowedRecords
from workflows.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsInput:
    """Steps of one replica's database."""

    replica: str  # the bucket that it follows, a slash, and a word of its own
    seed: bool = False  # empty the database first, and apply all
    watch_s: float = 0.0  # for how long changes are looked for; 0: what there is now

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            "Applies the record log to the database of a replica. The command `sexton records follow` hosts its worker:"
            " run it again where it ended, and the job goes on. `sexton records replicas` shows how far it is."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsResult:
    """What was applied, or why a guard refused it."""

    done: FollowedRecords = field(default_factory=lambda: FollowedRecords(replica=""))
    refused: Refusal | None = None


FOLLOW_RECORDS = Job(
    "follow-records",
    FollowRecordsInput,
    FollowRecordsResult,
    keys=("{replica}", "{replica}/seed", "{replica}/watch"),
)
