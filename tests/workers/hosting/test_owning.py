"""What a worker's part in ownership is called."""

import pytest

from logstore.errors import InvalidInput
from logstore.ownership import check_worker_id


@pytest.mark.parametrize("worker_id", ["", "a/b", ".", "..", "a b", "x" * 129])
def test_checked_worker_id_refuses_what_can_name_nothing(worker_id: str) -> None:
    """Neither a queue of Temporal nor a node of ZooKeeper."""
    with pytest.raises(InvalidInput, match="worker id"):
        check_worker_id(worker_id)


@pytest.mark.parametrize("worker_id", ["w1", "...", "worker@.sexton-18a", "host.example-4711", "x" * 128])
def test_checked_worker_id_takes_what_hosts_are_called(worker_id: str) -> None:
    """Host names, process ids, and the names that `up` gives."""
    assert check_worker_id(worker_id) == worker_id
