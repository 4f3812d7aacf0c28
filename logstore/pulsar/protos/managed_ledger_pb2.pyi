from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class LongProperty(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class StringProperty(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class NestedPosition(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class MessageRange(_message.Message):
    __slots__ = ("lower_exclusive", "upper_inclusive")
    LOWER_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    UPPER_INCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    lower_exclusive: NestedPosition
    upper_inclusive: NestedPosition
    def __init__(self, lower_exclusive: _Optional[_Union[NestedPosition, _Mapping]] = ..., upper_inclusive: _Optional[_Union[NestedPosition, _Mapping]] = ...) -> None: ...

class BatchedEntryDeletion(_message.Message):
    __slots__ = ("position", "delete_set")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DELETE_SET_FIELD_NUMBER: _ClassVar[int]
    position: NestedPosition
    delete_set: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, position: _Optional[_Union[NestedPosition, _Mapping]] = ..., delete_set: _Optional[_Iterable[int]] = ...) -> None: ...

class LongListMap(_message.Message):
    __slots__ = ("key", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: int
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, key: _Optional[int] = ..., values: _Optional[_Iterable[int]] = ...) -> None: ...

class OffloadDriver(_message.Message):
    __slots__ = ("name", "properties")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    properties: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, name: _Optional[str] = ..., properties: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class OffloadSegment(_message.Message):
    __slots__ = ("uid_msb", "uid_lsb", "complete", "assigned_timestamp", "offloaded_timestamp", "end_entry_id", "driver")
    UID_MSB_FIELD_NUMBER: _ClassVar[int]
    UID_LSB_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    OFFLOADED_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    END_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    uid_msb: int
    uid_lsb: int
    complete: bool
    assigned_timestamp: int
    offloaded_timestamp: int
    end_entry_id: int
    driver: OffloadDriver
    def __init__(self, uid_msb: _Optional[int] = ..., uid_lsb: _Optional[int] = ..., complete: _Optional[bool] = ..., assigned_timestamp: _Optional[int] = ..., offloaded_timestamp: _Optional[int] = ..., end_entry_id: _Optional[int] = ..., driver: _Optional[_Union[OffloadDriver, _Mapping]] = ...) -> None: ...

class OffloadContext(_message.Message):
    __slots__ = ("uid_msb", "uid_lsb", "complete", "bookkeeper_deleted", "timestamp", "driver", "segments")
    UID_MSB_FIELD_NUMBER: _ClassVar[int]
    UID_LSB_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    BOOKKEEPER_DELETED_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    uid_msb: int
    uid_lsb: int
    complete: bool
    bookkeeper_deleted: bool
    timestamp: int
    driver: OffloadDriver
    segments: _containers.RepeatedCompositeFieldContainer[OffloadSegment]
    def __init__(self, uid_msb: _Optional[int] = ..., uid_lsb: _Optional[int] = ..., complete: _Optional[bool] = ..., bookkeeper_deleted: _Optional[bool] = ..., timestamp: _Optional[int] = ..., driver: _Optional[_Union[OffloadDriver, _Mapping]] = ..., segments: _Optional[_Iterable[_Union[OffloadSegment, _Mapping]]] = ...) -> None: ...

class ManagedLedgerInfo(_message.Message):
    __slots__ = ("ledgers", "terminated_position", "properties")
    class LedgerInfo(_message.Message):
        __slots__ = ("ledger_id", "entries", "size", "timestamp", "offload_context", "properties")
        LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
        ENTRIES_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        OFFLOAD_CONTEXT_FIELD_NUMBER: _ClassVar[int]
        PROPERTIES_FIELD_NUMBER: _ClassVar[int]
        ledger_id: int
        entries: int
        size: int
        timestamp: int
        offload_context: OffloadContext
        properties: _containers.RepeatedCompositeFieldContainer[KeyValue]
        def __init__(self, ledger_id: _Optional[int] = ..., entries: _Optional[int] = ..., size: _Optional[int] = ..., timestamp: _Optional[int] = ..., offload_context: _Optional[_Union[OffloadContext, _Mapping]] = ..., properties: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_POSITION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[ManagedLedgerInfo.LedgerInfo]
    terminated_position: NestedPosition
    properties: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, ledgers: _Optional[_Iterable[_Union[ManagedLedgerInfo.LedgerInfo, _Mapping]]] = ..., terminated_position: _Optional[_Union[NestedPosition, _Mapping]] = ..., properties: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class ManagedCursorInfo(_message.Message):
    __slots__ = ("cursor_ledger_id", "mark_delete_ledger_id", "mark_delete_entry_id", "deleted_messages", "properties", "last_active", "batched_deletions", "cursor_properties")
    CURSOR_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    DELETED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    LAST_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    BATCHED_DELETIONS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    cursor_ledger_id: int
    mark_delete_ledger_id: int
    mark_delete_entry_id: int
    deleted_messages: _containers.RepeatedCompositeFieldContainer[MessageRange]
    properties: _containers.RepeatedCompositeFieldContainer[LongProperty]
    last_active: int
    batched_deletions: _containers.RepeatedCompositeFieldContainer[BatchedEntryDeletion]
    cursor_properties: _containers.RepeatedCompositeFieldContainer[StringProperty]
    def __init__(self, cursor_ledger_id: _Optional[int] = ..., mark_delete_ledger_id: _Optional[int] = ..., mark_delete_entry_id: _Optional[int] = ..., deleted_messages: _Optional[_Iterable[_Union[MessageRange, _Mapping]]] = ..., properties: _Optional[_Iterable[_Union[LongProperty, _Mapping]]] = ..., last_active: _Optional[int] = ..., batched_deletions: _Optional[_Iterable[_Union[BatchedEntryDeletion, _Mapping]]] = ..., cursor_properties: _Optional[_Iterable[_Union[StringProperty, _Mapping]]] = ...) -> None: ...

class CursorPosition(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "deleted_messages", "properties", "batched_deletions", "deleted_message_ranges")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    DELETED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BATCHED_DELETIONS_FIELD_NUMBER: _ClassVar[int]
    DELETED_MESSAGE_RANGES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    deleted_messages: _containers.RepeatedCompositeFieldContainer[MessageRange]
    properties: _containers.RepeatedCompositeFieldContainer[LongProperty]
    batched_deletions: _containers.RepeatedCompositeFieldContainer[BatchedEntryDeletion]
    deleted_message_ranges: _containers.RepeatedCompositeFieldContainer[LongListMap]
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., deleted_messages: _Optional[_Iterable[_Union[MessageRange, _Mapping]]] = ..., properties: _Optional[_Iterable[_Union[LongProperty, _Mapping]]] = ..., batched_deletions: _Optional[_Iterable[_Union[BatchedEntryDeletion, _Mapping]]] = ..., deleted_message_ranges: _Optional[_Iterable[_Union[LongListMap, _Mapping]]] = ...) -> None: ...

class CompressionHeader(_message.Message):
    __slots__ = ("compression_type", "uncompressed_size")
    class CompressionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[CompressionHeader.CompressionType]
        LZ4: _ClassVar[CompressionHeader.CompressionType]
        ZLIB: _ClassVar[CompressionHeader.CompressionType]
        ZSTD: _ClassVar[CompressionHeader.CompressionType]
        SNAPPY: _ClassVar[CompressionHeader.CompressionType]
    NONE: CompressionHeader.CompressionType
    LZ4: CompressionHeader.CompressionType
    ZLIB: CompressionHeader.CompressionType
    ZSTD: CompressionHeader.CompressionType
    SNAPPY: CompressionHeader.CompressionType
    COMPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSED_SIZE_FIELD_NUMBER: _ClassVar[int]
    compression_type: CompressionHeader.CompressionType
    uncompressed_size: int
    def __init__(self, compression_type: _Optional[_Union[CompressionHeader.CompressionType, str]] = ..., uncompressed_size: _Optional[int] = ...) -> None: ...
