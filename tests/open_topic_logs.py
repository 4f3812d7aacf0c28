"""The log of one process over a catalog and a bucket, where the rest of the house is not needed."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from logstore.log.services import TopicLogs
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.object_storage import ObjectStore


@contextmanager
def open_topic_logs(catalog: Any, objects: ObjectStore, **options: Any) -> Iterator[TopicLogs]:
    """Closed at the end; `options` is the policy, or the clock."""
    with closing(GroupCommitter(catalog.commits.commit_writes)) as committer:
        ports = {"ledgers": catalog.ledgers, "transactions": catalog.transactions, "objects": objects}
        with closing(TopicLogs(**ports, committer=committer, application="sexton", **options)) as topic_logs:
            yield topic_logs
