"""The native back end of a reconciliation: which database, which buckets, and the mains of its four jobs."""

from collections.abc import Mapping
from functools import partial

from spark.reconciliation.candidates import compare_sides
from spark.reconciliation.listing import list_storage
from spark.reconciliation.references import read_references
from spark.reconciliation.verify import verify_findings
from spark.runner import Main
from spark.sources.objects import NativeAddresses


def native_mains(addresses: NativeAddresses) -> Mapping[str, Main]:
    """The jobs of a reconciliation by name, over the catalog in SQL and buckets of S3."""
    return {
        "list-storage": partial(list_storage, addresses),
        "read-references": partial(read_references, addresses),
        "compare-sides": partial(compare_sides, addresses),
        "verify-findings": partial(verify_findings, addresses),
    }
