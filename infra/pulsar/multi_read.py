"""Reads of many znodes in one request, which costs the server and the client a fraction of as many requests.

ZooKeeper has the request since version 3.6. Kazoo does not have it.

Source: ZooKeeper's `MultiOperationRecord`, `MultiResponse` and `ZooDefs.OpCode`.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, MarshallingError
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

_ERROR: Final = -1  # type of an answer that is an error, and of the end
_END: Final = bytes(MultiHeader(type=_ERROR, done=True, err=_ERROR).serialize())

Operation = type[GetData] | type[GetChildren]


def send_multi_read(client: KazooClient, operation: Operation, paths: Sequence[str]) -> Any:  # noqa: ANN401
    """Return kazoo's asynchronous result: a list with the answer for each path, as of kazoo's reads, or its error.

    Paths begin with a slash, and are below the chroot. A server that does not know the request answers
    `UnimplementedError`, and closes the connection.
    """
    result = client.handler.async_result()
    client._call(_MultiRead(operation, [f"{client.chroot}{path}" for path in paths]), result)  # noqa: SLF001 - the only way to send another request
    return result


class _MultiRead:
    """Request in the form that kazoo's connection sends."""

    type = 22

    def __init__(self, operation: Operation, paths: Sequence[str]) -> None:
        self._operation, self._paths = operation, paths

    def serialize(self) -> bytes:
        header = MultiHeader(type=self._operation.type, done=False, err=_ERROR).serialize()
        parts = [bytes(header + self._operation(path, None).serialize()) for path in self._paths]
        return b"".join([*parts, _END])

    def deserialize(self, answer: bytes, offset: int) -> list[Any]:
        """Return the answers. A damaged answer raises kazoo's own error, after which the request is sent again."""
        try:
            answers = self._read_answers(answer, offset)
        except (struct.error, RuntimeError, ValueError) as error:
            raise MarshallingError(f"an answer cannot be parsed: {error}") from error
        if len(answers) != len(self._paths):
            raise MarshallingError(f"expected {len(self._paths)} answers, found {len(answers)}")
        return answers

    def _read_answers(self, answer: bytes, offset: int) -> list[Any]:
        read_answer = _READER_BY_OPERATION[self._operation]
        answers: list[Any] = []
        while True:
            header, offset = MultiHeader.deserialize(answer, offset)
            if header.done:
                return answers
            if header.type == _ERROR:
                answers.append(EXCEPTIONS[int_struct.unpack_from(answer, offset)[0]]())
                offset += int_struct.size
            else:
                value, offset = read_answer(answer, offset)
                answers.append(value)


def _read_data_and_stat(answer: bytes, offset: int) -> tuple[tuple[bytes | None, ZnodeStat], int]:
    data, offset = read_buffer(answer, offset)
    return (data, ZnodeStat._make(stat_struct.unpack_from(answer, offset))), offset + stat_struct.size


def _read_names(answer: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = int_struct.unpack_from(answer, offset)
    if count < 0:
        raise ValueError(f"a list of {count} names")
    offset += int_struct.size
    names = []
    for _ in range(count):
        name, offset = read_string(answer, offset)
        names.append(name)
    return names, offset


_READER_BY_OPERATION: Final[dict[Operation, Callable[[bytes, int], tuple[Any, int]]]] = {
    GetData: _read_data_and_stat,
    GetChildren: _read_names,
}
