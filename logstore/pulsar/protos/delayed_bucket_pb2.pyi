from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BucketSegmentMetadata(_message.Message):
    __slots__ = ("bitmap_by_ledger", "last_ms", "first_ms")
    class BitmapByLedgerEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    BITMAP_BY_LEDGER_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    bitmap_by_ledger: _containers.ScalarMap[int, bytes]
    last_ms: int
    first_ms: int
    def __init__(self, bitmap_by_ledger: _Optional[_Mapping[int, bytes]] = ..., last_ms: _Optional[int] = ..., first_ms: _Optional[int] = ...) -> None: ...

class BucketMetadata(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[BucketSegmentMetadata]
    def __init__(self, segments: _Optional[_Iterable[_Union[BucketSegmentMetadata, _Mapping]]] = ...) -> None: ...

class DelayedMessage(_message.Message):
    __slots__ = ("deliver_at_ms", "ledger_id", "entry_id")
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    deliver_at_ms: int
    ledger_id: int
    entry_id: int
    def __init__(self, deliver_at_ms: _Optional[int] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class BucketSegment(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[DelayedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[DelayedMessage, _Mapping]]] = ...) -> None: ...
