"""Services of the record log, and record functions of an operator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module

from logstore.catalog.sql_catalog import Catalog
from logstore.errors import InvalidInput
from logstore.ports.object_storage import OwnedStore
from logstore.records.functions import RecordFunction, RecordFunctionRegistry
from logstore.records.services.defragmenter import Defragmenter
from logstore.records.services.flusher import Flusher
from logstore.records.services.record_log import RecordLog
from logstore.records.services.records_bucket_sweeper import RecordsBucketSweeper
from logstore.records.services.replica_shipments import ReplicaShipments
from logstore.records.services.tombstone_raids import Raider
from logstore.retrying_clock import Clock


class ImportedRecordFunctions:
    """Record functions from comma-separated references `module:function`. The settings have checked the form."""

    def __init__(self, references: str) -> None:
        self._references = references

    @cached_property
    def _functions(self) -> Mapping[str, RecordFunction]:
        return dict(_import_record_function(reference) for reference in filter(None, self._references.split(",")))

    def load(self) -> None:
        _ = self._functions

    def find_function(self, name: str) -> RecordFunction:
        if name not in self._functions:
            names = ", ".join(sorted(self._functions))
            expected = f"one of {names}" if names else "one that the workers' setting functions names; it names none"
            raise InvalidInput("function", expected=expected, found=name)
        return self._functions[name]


def _import_record_function(reference: str) -> tuple[str, RecordFunction]:
    module, _, name = reference.partition(":")
    try:
        function = getattr(import_module(module), name, None)
    except (Exception, SystemExit) as error:  # a script that calls `sys.exit` would otherwise end the worker
        found = f"{reference} ({type(error).__name__}: {error})"
        raise InvalidInput("functions", expected="modules that can be imported", found=found) from error
    if not callable(function):
        raise InvalidInput("functions", expected=f"a function {name} in the module {module}", found=reference)
    return name, function


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLogPolicies:
    interval_s: float = 5.0  # pause between two searches for changes
    cursor_interval_s: float = 60.0  # time between two flushes of cursors
    clock_bound_s: float = 60.0  # maximum difference between the clocks of catalog and object store
    eligible_age_s: float = 86_400.0  # younger tombstones stay; a replica that is silent for longer is STALE
    raider_sleep_s: float = 0.001  # pause between two blocks that a raid reads
    functions: RecordFunctionRegistry = field(default_factory=lambda: ImportedRecordFunctions(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLogServices:
    log: RecordLog
    flusher: Flusher
    defragmenter: Defragmenter
    sweeper: RecordsBucketSweeper
    raider: Callable[[float | None], Raider]  # argument: minimum age of tombstones in seconds; `None`: `eligible_age_s`
    replication: ReplicaShipments


def create_record_log_services(
    catalog: Catalog,
    records_bucket: OwnedStore,
    policies: RecordLogPolicies,
    *,
    primary: OwnedStore,
    replicas: Mapping[str, OwnedStore],
    clock: Clock,
    store_now_us: Callable[[], int],
) -> RecordLogServices:
    log = RecordLog(records_bucket)

    def create_raider(eligible_age_s: float | None) -> Raider:
        return Raider(
            catalog.records,
            catalog.tombstones,
            log,
            primary,
            eligible_age_s=policies.eligible_age_s if eligible_age_s is None else eligible_age_s,
            replica_age_s=policies.eligible_age_s,  # the policy's age, even if the raid has another age
            sleep_s=policies.raider_sleep_s,
            clock=clock,
        )

    return RecordLogServices(
        log=log,
        flusher=Flusher(
            catalog.records,
            log,
            clock_bound_s=policies.clock_bound_s,
            cursor_interval_s=policies.cursor_interval_s,
        ),
        defragmenter=Defragmenter(catalog.records, log),
        sweeper=RecordsBucketSweeper(records_bucket, log),
        raider=create_raider,
        replication=ReplicaShipments(
            records_bucket, replicas, store_now_us=store_now_us, eligible_age_s=policies.eligible_age_s
        ),
    )
