"""Two topics for transactions, in a house."""

import pytest

from tests.workflows.transactions.parties import Parties
from tests.workflows.workflow_harness import WorkflowHarness


@pytest.fixture
def parties(house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> Parties:
    """Two topics."""
    return Parties(house, monkeypatch)
