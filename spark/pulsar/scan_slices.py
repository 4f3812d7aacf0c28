"""Slices of the topics and schemas of a cluster: files with paths, one file for each task of a scan.

A namespace may have 1,000,000 topics. It is spread over tasks. Neither the driver nor a task holds more than one slice
and the names in one parent.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from infra.pulsar.policy_directory import POLICIES, PolicyDirectory, find_managed_ledgers
from infra.pulsar.reference_scan import list_schema_tenants, list_schemas, list_topics
from infra.pulsar.scan_facts import ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.orphan_managed_ledgers import (
    NamePrefixes,
    judge_managed_ledger,
    list_possible_namespaces,
    list_possible_topics,
    list_topics_of_slashed_subscription,
)
from logstore.pulsar.znode_names import MANAGED_LEDGERS
from spark.pulsar.cluster_facts import FactFolder, ProblemRows
from spark.reconciliation.fact_files import read_ungrouped_facts_of_task

TOPICS: Final = "topics"
"""Stem of the files with managed ledgers."""

SCHEMAS: Final = "schemas"
"""Stem of the files with schemas."""

_NAMES_PER_SLICE: Final = 10_000
_TOPIC_ROWS: Final = pa.schema([("path", pa.string()), ("verdict", pa.string())])
_SCHEMA_ROWS: Final = pa.schema([("path", pa.string())])


@dataclass(frozen=True, slots=True)
class TopicSlice:
    paths: list[str]
    verdict_by_path: dict[str, str]  # of orphans only


def write_topic_slices(
    folder: FactFolder, reader: ZnodeReader, policies: PolicyDirectory, namespaces: list[str], problems: ProblemRows
) -> int:
    """Write the managed ledgers of namespaces, with verdicts on those that are orphans. Return the number of slices."""
    has_tenants = policies.has_tenants()
    if not has_tenants:  # every namespace would be without policies
        problems.add(ScanProblem(POLICIES, "expected the tenants of a Pulsar cluster, found none"))
    paths = _drop_problems(list_topics(reader, namespaces), problems)
    prefixes, slices = NamePrefixes(), 0
    while batch := list(islice(paths, _NAMES_PER_SLICE)):
        names = [path.removeprefix(f"{MANAGED_LEDGERS}/") for path in batch]
        parents = set(chain.from_iterable(map(list_possible_namespaces, names)))
        known_parents = policies.find_namespaces(parents) if has_tenants else parents
        topics_elsewhere = find_managed_ledgers(
            reader, chain.from_iterable(map(list_topics_of_slashed_subscription, names))
        )
        rows = folder.open_rows(TOPICS, slices, _TOPIC_ROWS)
        for path, name in zip(batch, names, strict=True):
            topics = {topic for topic in list_possible_topics(name) if topic in prefixes or topic in topics_elsewhere}
            verdict = judge_managed_ledger(name, existing_topics=topics, namespaces=known_parents)
            prefixes.add(name)
            rows.add({"path": path, "verdict": verdict.value if verdict else ""})
        rows.close()
        slices += 1
    return slices


def _drop_problems(items: Iterable[str | ScanProblem], problems: ProblemRows) -> Iterator[str]:
    for item in items:
        if isinstance(item, ScanProblem):
            problems.add(item)
        else:
            yield item


def read_topic_slice(folder: FactFolder, number: int) -> TopicSlice:
    table = read_ungrouped_facts_of_task(folder.path, TOPICS, number)
    orphans = table.filter(pc.not_equal(table["verdict"], ""))
    return TopicSlice(
        table["path"].to_pylist(),
        dict(zip(orphans["path"].to_pylist(), orphans["verdict"].to_pylist(), strict=True)),
    )


def write_schema_slices(folder: FactFolder, reader: ZnodeReader) -> int:
    """Write the paths of all schemas. Return the number of slices."""
    schemas, slices = list_schemas(reader, list_schema_tenants(reader)), 0
    while batch := list(islice(schemas, _NAMES_PER_SLICE)):
        rows = folder.open_rows(SCHEMAS, slices, _SCHEMA_ROWS)
        for path in batch:
            rows.add({"path": path})
        rows.close()
        slices += 1
    return slices


def read_schema_slice(folder: FactFolder, number: int) -> list[str]:
    paths: list[str] = read_ungrouped_facts_of_task(folder.path, SCHEMAS, number)["path"].to_pylist()
    return paths
