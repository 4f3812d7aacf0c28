from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPEN: _ClassVar[State]
    COMMITTING: _ClassVar[State]
    COMMITTED: _ClassVar[State]
    ABORTING: _ClassVar[State]
    ABORTED: _ClassVar[State]
OPEN: State
COMMITTING: State
COMMITTED: State
ABORTING: State
ABORTED: State

class Subscription(_message.Message):
    __slots__ = ("topic", "subscription")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("operation", "sequence", "coordinator", "expected_state", "new_state", "topics", "subscriptions", "timeout_ms", "opened_ms", "modified_ms", "newest_sequence", "owner")
    class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NEW: _ClassVar[LogEntry.Operation]
        ADD_TOPICS: _ClassVar[LogEntry.Operation]
        ADD_SUBSCRIPTIONS: _ClassVar[LogEntry.Operation]
        UPDATE: _ClassVar[LogEntry.Operation]
    NEW: LogEntry.Operation
    ADD_TOPICS: LogEntry.Operation
    ADD_SUBSCRIPTIONS: LogEntry.Operation
    UPDATE: LogEntry.Operation
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    operation: LogEntry.Operation
    sequence: int
    coordinator: int
    expected_state: State
    new_state: State
    topics: _containers.RepeatedScalarFieldContainer[str]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    timeout_ms: int
    opened_ms: int
    modified_ms: int
    newest_sequence: int
    owner: str
    def __init__(self, operation: _Optional[_Union[LogEntry.Operation, str]] = ..., sequence: _Optional[int] = ..., coordinator: _Optional[int] = ..., expected_state: _Optional[_Union[State, str]] = ..., new_state: _Optional[_Union[State, str]] = ..., topics: _Optional[_Iterable[str]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., opened_ms: _Optional[int] = ..., modified_ms: _Optional[int] = ..., newest_sequence: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class LogBatch(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[LogEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[LogEntry, _Mapping]]] = ...) -> None: ...
