"""Defragmentation of the record log: blocks that are mostly superseded are rewritten, and small ones are joined.

Kind after kind, in two passes over ranges of ids: the first counts what is needed of each block, the second writes anew
what stays of the chosen ones. A manifest that names the new blocks in their place is published as a flush publishes, so
both may run at once: whichever comes second takes over what the first one did. Dying anywhere leaves blocks that
no manifest names, or all of it done; repeating it finds less to do.

Source: Aerospike's defragmentation; ADR 15.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.ports.catalog import Records
from logstore.records.defragmentation import Survey, Usage, worth_rewriting
from logstore.records.kinds import RecordKind
from logstore.records.manifest import Block
from logstore.records.services.publishing import TRIES, BlockWriter, Standing, publish, require_adopted, standing
from logstore.records.services.record_log import RecordLog
from logstore.records.winners import KEYS, RANGE_VERSIONS, overlapping, ranges, winners
from logstore.units import raise_if_stopped

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]

_FRESH_US: Final = 3_600 * 1_000_000
"""The newest manifest may be so much younger than blocks that are to be named: a sweep takes what is a day older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defragmented:
    """What a defragmentation came to."""

    manifest: int = 0  # number of the newest one when it ended; 0: there is none
    rewritten: int = 0  # blocks that are named no longer
    written: int = 0  # blocks in their place
    dropped: int = 0  # versions that were in the former, and are not in the latter
    bytes_before: int = 0  # of blocks that were rewritten
    bytes_after: int = 0  # of those in their place


class Defragmenter:
    """Defragments the record log of one catalog."""

    def __init__(self, records: Records, log: RecordLog, *, range_versions: int = RANGE_VERSIONS) -> None:
        """Work on a catalog and its record log; about `range_versions` versions are in memory, with only their keys."""
        self._records, self._log, self._range_versions = records, log, range_versions

    def defragment(self, *, progress: Callable[[Defragmented], None] = lambda _: None) -> Defragmented:
        """Go through all kinds once.

        Args:
            progress: Told the totals so far, after each range of ids and each kind.

        Raises:
            CatalogAdopting: The catalog was rebuilt and is not complete.
            MissingData, CorruptData, Unsupported: A block cannot be read; nothing of its kind was changed.
            CatalogOutdated, CatalogMismatch: As `standing`.
            StoreUnavailable, OutcomeUnknown, CatalogBusy: Repeating is fine.
        """
        done = Defragmented()
        for kind in RecordKind:
            raise_if_stopped()
            found = standing(self._records, self._log)
            require_adopted(found.state)
            one_pass = _Pass(
                self._records,
                self._log,
                found,
                kind,
                range_versions=self._range_versions,
                progress=partial(progress, done),
            )
            chosen = one_pass.chosen()
            if chosen:
                done = self._swap(found, chosen, one_pass.rewritten(chosen), done)
            done = replace(done, manifest=max(done.manifest, found.number))
            progress(done)
        return done

    def _swap(self, found: Standing, old: Sequence[Block], new: Sequence[Block], done: Defragmented) -> Defragmented:
        """Publish the new blocks in the place of the old ones; given up where others did so, or it took too long."""
        for _ in range(TRIES):
            manifest = found.manifest
            if manifest is None or not set(old) <= set(manifest.blocks) or not self._fresh(found, new):
                return done
            blocks = [*(one for one in manifest.blocks if one not in set(old)), *new]
            put = publish(
                self._records,
                self._log,
                found,
                blocks=blocks,
                ceilings=manifest.ceilings,
                flushed_us=manifest.flushed_us,
                next_ids=manifest.next_ids,
            )
            if put:
                return replace(
                    done,
                    manifest=put.number,
                    rewritten=done.rewritten + len(old),
                    written=done.written + len(new),
                    dropped=done.dropped + sum(one.records for one in old) - sum(one.records for one in new),
                    bytes_before=done.bytes_before + sum(one.size_bytes for one in old),
                    bytes_after=done.bytes_after + sum(one.size_bytes for one in new),
                )
            raise_if_stopped()
            found = standing(self._records, self._log)
        return done

    def _fresh(self, found: Standing, new: Sequence[Block]) -> bool:
        """Whether the newest manifest is not much younger than the blocks, by the store's own clock."""
        if not new or found.manifest is None:
            return True
        put_us, newest_us = self._log.put_us(new[0].key), self._log.put_us(found.manifest.key)
        return put_us is not None and newest_us is not None and newest_us - put_us < _FRESH_US


class _Keys(NamedTuple):
    """The keys of all versions with ids in one range, block after block."""

    table: "pa.Table"
    blocks: list[Block]
    numbers: list[int]  # of these blocks among all of the kind
    edges: list[int]  # where the rows of each begin, and where those of the last end

    def survey(self) -> Survey:
        """They, ranked."""
        import numpy as np  # noqa: PLC0415 - start-up time

        return Survey(self.table, np.repeat(self.numbers, np.diff(self.edges)))


class _Pass:
    """One kind of one manifest."""

    def __init__(
        self,
        records: Records,
        log: RecordLog,
        found: Standing,
        kind: RecordKind,
        *,
        range_versions: int,
        progress: Callable[[], None],
    ) -> None:
        self._records, self._log, self._kind, self._progress = records, log, kind, progress
        self._blocks = [one for one in found.blocks if one.kind is kind]
        self._numbers = {one: number for number, one in enumerate(self._blocks)}
        self._ranges = ranges(self._blocks, versions=range_versions)

    def chosen(self) -> list[Block]:
        """The blocks that are worth rewriting."""
        import numpy as np  # noqa: PLC0415 - start-up time

        used = np.zeros(len(self._blocks), dtype=np.intp)
        for ids in self._ranges:
            keys = self._keys(ids)
            survey = keys.survey()
            used += survey.used(self._stands(keys, survey), len(self._blocks))
        return worth_rewriting([Usage(*one) for one in zip(self._blocks, used.tolist(), strict=True)])

    def rewritten(self, chosen: Sequence[Block]) -> list[Block]:
        """New blocks with what stays of the chosen ones."""
        import numpy as np  # noqa: PLC0415 - start-up time

        rewritten = np.zeros(len(self._blocks), dtype=bool)
        rewritten[[self._numbers[one] for one in chosen]] = True
        writer = BlockWriter(self._log, self._kind)
        for ids in self._ranges:
            if not overlapping(chosen, ids):
                continue
            keys = self._keys(ids)
            survey = keys.survey()
            kept = list(self._filtered(ids, keys, survey.kept(self._stands(keys, survey), rewritten)))
            if kept:
                writer.add(winners(kept))
        return writer.close()

    def _keys(self, ids: tuple[int, int]) -> _Keys:
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        self._progress()
        here = overlapping(self._blocks, ids)
        tables = []
        for block in here:
            raise_if_stopped()
            tables.append(self._log.read_block(block, KEYS, ids))
        edges = [0, *accumulate(one.num_rows for one in tables)]
        return _Keys(pa.concat_tables(tables), here, [self._numbers[one] for one in here], edges)

    def _stands(self, keys: _Keys, survey: Survey) -> "Mask":
        """Of the newest versions, whether their records stand in the catalog."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        asked = keys.table.select(["id", "sub"]).take(pa.array(survey.newest))
        stands: Mask = self._records.standing(self._kind, asked).to_numpy(zero_copy_only=False)
        return stands

    def _filtered(self, ids: tuple[int, int], keys: _Keys, keep: "Mask") -> "Iterator[pa.Table]":
        """What stays of each block in the range, with all its columns."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        for block, (start, end) in zip(keys.blocks, pairwise(keys.edges), strict=True):
            if keep[start:end].any():
                raise_if_stopped()
                yield self._log.read_block(block, ids=ids).filter(pa.array(keep[start:end]))
