"""One store for each test."""

from pathlib import Path

import pytest

from tests.activities.reconciliation.plans import Plans


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    """A store without anything to find."""
    return Plans(tmp_path)
