"""Two topics for transactions, in a house."""

import pytest

from tests.workflows.house import House
from tests.workflows.transactions.parties import Parties


@pytest.fixture
def parties(house: House, monkeypatch: pytest.MonkeyPatch) -> Parties:
    """Two topics."""
    return Parties(house, monkeypatch)
