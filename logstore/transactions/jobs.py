"""The bulk job of transactions, as the port `BulkJobs` runs it, and the files that it publishes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logstore.errors import CorruptData
from logstore.positions import TopicId
from logstore.transactions.buffer import Buffer
from logstore.transactions.snapshots import pack, unpack
from logstore.whole_files import replacing

MOST_PARTS: Final = 256
"""Files of one job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildBuffers:
    """Rebuild the buffers of topics from their whole logs.

    Its summary counts `topics`, `buffers`, `empty`, `gone`, `unreadable` and `parts`; its folder holds the buffers.
    """

    run_id: str
    topics: tuple[int, ...] = ()  # their ids; none: every topic

    name = "build-transaction-snapshots"


class BufferFiles:
    """The files of a job: buffers of topics in parts, of which each was written by one task."""

    def __init__(self, folder: Path) -> None:
        """Write into, or read from, this folder."""
        self._folder = folder

    def write(self, part: int, buffers: Iterator[tuple[TopicId, Buffer]]) -> int:
        """Write one part, as a whole, a buffer at a time; how many."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        schema, written = pa.schema([("topic_id", pa.int64()), ("buffer", pa.large_binary())]), 0
        with replacing(self._path(part)) as new, pa.ipc.new_file(str(new), schema) as file:
            for topic_id, buffer in buffers:
                columns = [pa.array([int(topic_id)], pa.int64()), pa.array([pack(topic_id, buffer)], pa.large_binary())]
                file.write_batch(pa.record_batch(columns, schema=schema))
                written += 1
        return written

    def read(self, part: int) -> Iterator[tuple[TopicId, Buffer]]:
        """The buffers of one part, one at a time.

        Raises:
            CorruptData: The part is damaged, or there is none.
        """
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        path = self._path(part)
        try:
            with pa.memory_map(str(path)) as source:
                file = pa.ipc.open_file(source)
                for number in range(file.num_record_batches):
                    (row,) = file.get_batch(number).to_pylist()
                    yield TopicId(row["topic_id"]), unpack(row["buffer"], TopicId(row["topic_id"]))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptData(f"{path}: expected buffers of topics ({error})") from error

    def _path(self, part: int) -> Path:
        return self._folder / f"buffers-{part:05d}.arrow"
