"""Task queues of jobs beside the setting `task_queue`, and the fields of inputs that name them."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from logstore.field_bounds import Bound, FromOutside, bound_where


def uploads_queue(task_queue: str) -> str:
    """Return the queue for uploads that belongs to `task_queue`. The workers of `task_queue` also serve this queue."""
    return f"{task_queue}-uploads"


def transactions_queue(task_queue: str) -> str:
    """Return the queue for coordinators and broadcasts. A coordinator occupies a thread while it waits for work."""
    return f"{task_queue}-transactions"


def records_queue(task_queue: str) -> str:
    """Return the queue for record log jobs. A repeated flush occupies a thread while it waits for changes."""
    return f"{task_queue}-records"


def bulk_queue(task_queue: str) -> str:
    """Return the queue for bulk jobs. Each worker runs one bulk job at a time."""
    return f"{task_queue}-bulk"


def _served_queue_bound(derive_queue: Callable[[str], str], task_queue: str) -> Bound:
    queue = derive_queue(task_queue)
    expected = f"{queue}, or nothing: workers serve no other for these"
    return bound_where(expected, lambda value: value in {"", queue})


UploadsQueue = Annotated[str, FromOutside(partial(_served_queue_bound, uploads_queue))]
TransactionsQueue = Annotated[str, FromOutside(partial(_served_queue_bound, transactions_queue))]
RecordsQueue = Annotated[str, FromOutside(partial(_served_queue_bound, records_queue))]
BulkQueue = Annotated[str, FromOutside(partial(_served_queue_bound, bulk_queue))]
