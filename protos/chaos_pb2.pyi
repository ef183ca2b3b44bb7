from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DisturbRequest(_message.Message):
    __slots__ = ("fault", "group_id", "rank", "seconds")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    fault: str
    group_id: str
    rank: int
    seconds: float
    def __init__(self, fault: _Optional[str] = ..., group_id: _Optional[str] = ..., rank: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class DisturbResponse(_message.Message):
    __slots__ = ("done", "group_id")
    DONE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    done: str
    group_id: str
    def __init__(self, done: _Optional[str] = ..., group_id: _Optional[str] = ...) -> None: ...
