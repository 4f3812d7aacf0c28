"""The functions that the setting `functions` names: imported by reference, known by name."""

import pytest

from logstore.errors import InvalidInput
from tests import ending_functions
from workers.assembly.log_store import ImportedRecordFunctions


def test_functions_are_known_by_their_names() -> None:
    """An unknown one is refused, naming those that there are."""
    functions = ImportedRecordFunctions(ending_functions.ENDING_FUNCTION_REFERENCES)
    functions.load()
    assert functions.find_function("even") is ending_functions.even
    known = "broken_at_three, changing, even, every, leaving, none"
    with pytest.raises(InvalidInput, match=f"function: expected one of {known}, found 'odd'"):
        functions.find_function("odd")


def test_setting_that_names_none_is_told() -> None:
    """A first user learns which setting it is."""
    with pytest.raises(InvalidInput, match="the workers' setting functions names; it names none"):
        ImportedRecordFunctions("").find_function("odd")


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("tests.no_such_module:f", "modules that can be imported.*No module named"),
        ("tests.workers.assembly.leaving:f", r"modules that can be imported.*SystemExit: planned"),
        ("tests.ending_functions:odd", "a function odd in the module tests.ending_functions"),
        ("tests.ending_functions:NOT_CALLABLE", "a function NOT_CALLABLE"),
    ],
)
def test_reference_that_leads_nowhere_is_refused_before_a_worker_serves(reference: str, told: str) -> None:
    """By name; nothing was imported when the process began."""
    functions = ImportedRecordFunctions(reference)
    with pytest.raises(InvalidInput, match=f"functions: expected {told}"):
        functions.load()
