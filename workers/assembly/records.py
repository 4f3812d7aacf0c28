"""The services of the record log, over the catalog and the bucket of its records; functions of an operator's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module

from logstore.clock import Clock
from logstore.errors import InvalidInput
from logstore.ports.catalog import Catalog
from logstore.ports.objects import OwnedStore
from logstore.records.functions import RecordFunction, RecordFunctions
from logstore.records.services.defragmenting import Defragmenter
from logstore.records.services.flushing import Flusher
from logstore.records.services.raiding import Raider
from logstore.records.services.record_log import RecordLog
from logstore.records.services.replicating import Replication
from logstore.records.services.sweeping import Sweeper


class NamedFunctions:
    """The `RecordFunctions` of a process: each as `module:function`, known by the name of the function."""

    def __init__(self, references: str) -> None:
        """Take them, separated by commas, as the settings have checked them."""
        self._references = references

    @cached_property
    def _functions(self) -> Mapping[str, RecordFunction]:
        return dict(_loaded(one) for one in filter(None, self._references.split(",")))

    def load(self) -> None:
        """Import them all, as a worker does before it serves.

        Raises:
            InvalidInput: A module cannot be imported, or has no such function.
        """
        _ = self._functions

    def named(self, name: str) -> RecordFunction:
        """See `RecordFunctions.named`; raises as `load`, too."""
        if name not in self._functions:
            known = ", ".join(sorted(self._functions))
            expected = f"one of {known}" if known else "one that the workers' setting functions names; it names none"
            raise InvalidInput("function", expected=expected, found=name)
        return self._functions[name]


def _loaded(reference: str) -> tuple[str, RecordFunction]:
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name, None)
    except (Exception, SystemExit) as error:  # a script that calls `sys.exit` would otherwise end the worker
        what = f"{reference} ({type(error).__name__}: {error})"
        raise InvalidInput("functions", expected="modules that can be imported", found=what) from error
    if not callable(found):
        raise InvalidInput("functions", expected=f"a function {name} in the module {module}", found=reference)
    return name, found


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPolicies:
    """An operator's choices for the record log. The defaults are those of the settings."""

    interval_s: float = 5.0  # between two looks for changes
    cursor_interval_s: float = 60.0  # changes of cursors wait so long
    clock_bound_s: float = 60.0  # a catalog whose clock is further from the store's is not flushed
    eligible_age_s: float = 86_400.0  # a tombstone younger than that stays; a replica silent for longer is STALE
    raider_sleep_s: float = 0.001  # between two blocks that a raid reads
    functions: RecordFunctions = field(default_factory=lambda: NamedFunctions(""))  # of an operator's own


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordServices:
    """Services that write, rewrite and copy the record log."""

    log: RecordLog
    flusher: Flusher
    defragmenter: Defragmenter
    sweeper: Sweeper
    raider: Callable[[float | None], Raider]  # that leaves tombstones of an age in seconds; None: of the policies'
    replication: Replication


def records_over(
    catalog: Catalog,
    objects: OwnedStore,
    policies: RecordPolicies,
    *,
    primary: OwnedStore,
    replicas: Mapping[str, OwnedStore],
    clock: Clock,
    store_now_us: Callable[[], int],
) -> RecordServices:
    """Join them.

    Args:
        catalog: Whose records these are.
        objects: The bucket of its record log.
        policies: An operator's choices.
        primary: The bucket of the log itself.
        replicas: Buckets of replicas of the record log, by name.
        clock: For pauses.
        store_now_us: The store's own clock, in microseconds since 1970.
    """
    log = RecordLog(objects)

    def raider(eligible_age_s: float | None) -> Raider:
        return Raider(
            catalog.records,
            catalog.tombstones,
            log,
            primary,
            eligible_age_s=policies.eligible_age_s if eligible_age_s is None else eligible_age_s,
            replica_age_s=policies.eligible_age_s,  # a raid for younger tombstones waits for replicas all the same
            sleep_s=policies.raider_sleep_s,
            clock=clock,
        )

    return RecordServices(
        log=log,
        flusher=Flusher(
            catalog.records,
            log,
            clock_bound_s=policies.clock_bound_s,
            cursor_interval_s=policies.cursor_interval_s,
        ),
        defragmenter=Defragmenter(catalog.records, log),
        sweeper=Sweeper(objects, log),
        raider=raider,
        replication=Replication(objects, replicas, store_now_us=store_now_us, eligible_age_s=policies.eligible_age_s),
    )
