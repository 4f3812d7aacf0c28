"""Failures of comparable systems are cited where a test, or a sentence of the docs, keeps them from happening here.

A citation cannot vanish with the test that bore it: each source below must stand in the docstring of some test, or in
the last table of docs/architecture.md.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.source import ROOT, Function, modules

_SOURCES = {
    "apache/pulsar#13526": "metadata drops a ledger, the broker dies, and nothing refers to its data any more",
    "apache/pulsar#16569": "the same, answered by two phases (PIP-129, PIP-186)",
    "PIP-186, first phase": "the intent is stored and the metadata update fails: the ledger is still in use",
    "PIP-186, idempotency": "a worker deletes and dies before it can say so",
    "PIP-186, back-off": "storage is down longer than there are attempts, and nobody reads the dead letters",
    "apache/pulsar#350": "a newborn ledger whose registration lost the race is referenced by nobody",
    "apache/pulsar#982": "a delete fails once and is never tried again",
    "apache/pulsar#1302": "orphans cannot be attributed without their owner's metadata",
    "apache/pulsar#20898": "a trim keeps an older ledger and drops a newer one: the log has a hole",
    "apache/pulsar#13219": "retention deletes a ledger while it is being offloaded",
    "apache/pulsar#9136": "an idle topic's consumed ledger never becomes deletable",
    "apache/pulsar#18620": "a lost ledger pins the mark-delete position for ever",
    "apache/pulsar#26431": "a best-effort step vetoes a delete, and callers retry in a tight loop",
    "apache/bookkeeper#4462": "a write to a ledger that was deleted is acknowledged, and cannot be read",
    "apache/bookkeeper#870": "an empty answer is taken for the death of everything",
    "apache/bookkeeper#876": "the same shortcut, without a double check",
    "YahooArchive/bookkeeper#17": "one bad range deletes its neighbours, or ends the whole sweep",
    "apache/bookkeeper#3316": "work for a ledger that no longer exists is tried for ever",
    "apache/pulsar#15992": "the same, seen from the operator",
    "apache/bookkeeper#4812": "an add succeeds on a ledger that was closed lower: the entry is silently gone",
    "apache/bookkeeper#950": "ledger id 0 is judged invalid, its log erased",
    "apache/pulsar#14693": "a bulk remove fails silently and is counted as done",
    "apache/pulsar#16687": "objects made on one path lack the context that their deletion needs",
    "apache/pulsar#22839": "an offload reports success though nothing was uploaded",
    "apache/pulsar#23011": "a session expires, another takes the bundle, the first comes back and never unloads it",
    "apache/pulsar#14736": "locks are revalidated and invalidated in turn, without an end",
    "apache/pulsar#17759": "the same, until memory is used up",
    "apache/pulsar#10351": "a lock seen after a reconnect is ours, foreign or about to vanish: not all were told apart",
    "apache/pulsar#17664": "one of these cases hung on a flag that was never set",
    "apache/pulsar#295": "an ownership node is deleted without a condition, and it was the new owner's",
    "apache/pulsar#19444": "a flapping session leaves two owners, and the old one's write spoils the ledger list",
    "apache/pulsar#7679": "a lookup names a broker that left days ago",
}
"""Source → what went wrong there."""

_ISSUES = re.compile(r"(?P<repository>[A-Za-z]+/[a-z]+)#(?P<first>\d+)(?P<more>(?:,? (?:and )?#\d+)*)")
_SECTION = re.compile(r"PIP-186, (?:first phase|idempotency|back-off)")
_DOCS = ROOT / "docs" / "architecture.md"
_TABLE = "## Cases from the field that cannot happen here"


def _cited(text: str) -> Iterator[str]:
    """What a text cites; `apache/bookkeeper#870, #876` are two of one repository."""
    for found in _ISSUES.finditer(text):
        numbers = [found["first"], *re.findall(r"#(\d+)", found["more"])]
        yield from (f"{found['repository']}#{number}" for number in numbers)
    yield from _SECTION.findall(text)


@cache
def _by_tests() -> frozenset[str]:
    functions = [node for module in modules("tests") for node in ast.walk(module.tree) if isinstance(node, Function)]
    texts = [ast.get_docstring(node) or "" for node in functions if node.name.startswith("test_")]
    return frozenset(source for text in texts for source in _cited(text))


@cache
def _by_docs() -> frozenset[str]:
    text = _DOCS.read_text(encoding="utf-8")
    assert text.count(_TABLE) == 1
    rows = [line for line in text.partition(_TABLE)[2].splitlines() if line.startswith("|")]
    return frozenset(source for row in rows for source in _cited(row))


@pytest.mark.parametrize("source", _SOURCES)
def test_failure_from_the_field_is_cited_by_a_test_or_ruled_out_in_the_docs(source: str) -> None:
    """Whoever removes the last citation must put another test, or a reason, in its place."""
    assert source in _by_tests() | _by_docs(), f"{source}: {_SOURCES[source]}"


def test_failures_ruled_out_in_the_docs_come_with_a_reason() -> None:
    """Two columns, both filled."""
    rows = _DOCS.read_text(encoding="utf-8").partition(_TABLE)[2].strip().splitlines()
    assert len(rows) > 3
    for row in rows[2:]:
        case, why = (cell.strip() for cell in row.strip("|").split("|"))
        assert case
        assert why


def test_docstrings_cite_nothing_by_a_number_of_a_list_beside_the_project() -> None:
    """A reader can look up an issue or a section, and not `n 5`."""
    nodes = [(module, node) for module in modules("tests") for node in ast.walk(module.tree)]
    told = [(module.where, ast.get_docstring(node) or "") for module, node in nodes if isinstance(node, Function)]
    assert not [f"{where}: {text}" for where, text in told if re.search(r"[(,;] ?n \d+[,;)]", text)]


def test_citations_name_their_repository() -> None:
    """A bare number is nobody's."""
    assert list(_cited("(apache/bookkeeper#870, #876; PIP-186, back-off)")) == [
        "apache/bookkeeper#870",
        "apache/bookkeeper#876",
        "PIP-186, back-off",
    ]
