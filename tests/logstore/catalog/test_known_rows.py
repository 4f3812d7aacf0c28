"""Tables that several layers name by hand say the same."""

from dataclasses import fields

import pytest

from logstore.catalog import tables as t
from logstore.catalog.log.component_ledgers import REFERRING_COLUMN_BY_COMPONENT
from logstore.catalog.reconciliation.rows_naming_ledgers import build_segment_sum_aggregates
from logstore.log.ledgers import Component
from logstore.reconciliation.orphan_doubts_from_rows import LedgerRows, SegmentSums, doubt_removal_of_unreferenced


@pytest.mark.parametrize("component", Component)
def test_doubt_names_the_table_that_names_ledgers_of_the_component(component: Component) -> None:
    """Those of data are named by their place in the list."""
    table = (
        t.ledger_list if component is Component.MANAGED_LEDGER else REFERRING_COLUMN_BY_COMPONENT[component.value].table
    )
    doubt = doubt_removal_of_unreferenced(
        LedgerRows(has_row=True, component=component.value, counted=SegmentSums(segments=1))
    )
    assert doubt is not None
    assert f"the row of {table.name} that named the ledger is lost" in doubt.reason


def test_totals_of_segments_are_what_rows_of_ledgers_count() -> None:
    """A total that one of them lacks would be compared by nobody."""
    assert list(build_segment_sum_aggregates()) == [field.name for field in fields(SegmentSums)]
    assert set(build_segment_sum_aggregates()) <= set(t.ledger.c.keys())
