"""What `make test` leaves out, `make faults` runs."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_MARKED: Final = re.compile(r"^(?!.*addinivalue)(?!.*get_closest_marker).*\ball_faults\b", re.MULTILINE)
_ASKING: Final = re.compile(r"getoption\(\s*.--all-faults")
_ITSELF: Final = {"tests/conftest.py", "tests/architecture/test_runs.py"}


def _sampled() -> list[str]:
    """Modules of tests that differ with `--all-faults`."""
    named = ((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py"))
    found = [name for name, text in named if _MARKED.search(text) or _ASKING.search(text)]
    return sorted(set(found) - _ITSELF)


@pytest.mark.parametrize("module", _sampled())
def test_module_that_is_a_sample_is_run_in_full_by_make_faults(module: str) -> None:
    """Else what it leaves out would never run."""
    recipe = re.search(r"^faults:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe
    assert "--all-faults" in recipe[1]
    folders = [word for word in recipe[1].split() if word.startswith("tests/")]
    assert any(module == folder or module.startswith(f"{folder}/") for folder in folders), f"expected one of {folders}"


def test_modules_that_are_samples_are_found() -> None:
    """One by its mark and one by what it asks."""
    assert {"tests/e2e/test_demo.py", "tests/faults/test_matrix.py"} <= set(_sampled())
