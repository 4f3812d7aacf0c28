from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Connect(_message.Message):
    __slots__ = ("client_version", "auth_data", "protocol_version", "auth_method")
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTH_DATA_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTH_METHOD_FIELD_NUMBER: _ClassVar[int]
    client_version: str
    auth_data: bytes
    protocol_version: int
    auth_method: str
    def __init__(self, client_version: _Optional[str] = ..., auth_data: _Optional[bytes] = ..., protocol_version: _Optional[int] = ..., auth_method: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("request_id", "error", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    error: int
    message: str
    def __init__(self, request_id: _Optional[int] = ..., error: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class LoadCoordinator(_message.Message):
    __slots__ = ("request_id", "coordinator")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    coordinator: int
    def __init__(self, request_id: _Optional[int] = ..., coordinator: _Optional[int] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Command(_message.Message):
    __slots__ = ("type", "connect", "error", "pong", "load_coordinator", "coordinator_loaded")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CONNECT: _ClassVar[Command.Type]
        CONNECTED: _ClassVar[Command.Type]
        ERROR: _ClassVar[Command.Type]
        PING: _ClassVar[Command.Type]
        PONG: _ClassVar[Command.Type]
        LOAD_COORDINATOR: _ClassVar[Command.Type]
        COORDINATOR_LOADED: _ClassVar[Command.Type]
    CONNECT: Command.Type
    CONNECTED: Command.Type
    ERROR: Command.Type
    PING: Command.Type
    PONG: Command.Type
    LOAD_COORDINATOR: Command.Type
    COORDINATOR_LOADED: Command.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    LOAD_COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_LOADED_FIELD_NUMBER: _ClassVar[int]
    type: Command.Type
    connect: Connect
    error: Failure
    pong: Empty
    load_coordinator: LoadCoordinator
    coordinator_loaded: Failure
    def __init__(self, type: _Optional[_Union[Command.Type, str]] = ..., connect: _Optional[_Union[Connect, _Mapping]] = ..., error: _Optional[_Union[Failure, _Mapping]] = ..., pong: _Optional[_Union[Empty, _Mapping]] = ..., load_coordinator: _Optional[_Union[LoadCoordinator, _Mapping]] = ..., coordinator_loaded: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...
