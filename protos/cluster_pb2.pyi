from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetLedgerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LedgerResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupLedger]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupLedger, _Mapping]]] = ...) -> None: ...

class GroupLedger(_message.Message):
    __slots__ = ("blocks", "slots", "requests", "block_size", "step", "preemptions", "stalled_steps", "group_id", "model", "device", "dtype")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    STALLED_STEPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockCounts
    slots: SlotCounts
    requests: RequestCounts
    block_size: int
    step: int
    preemptions: int
    stalled_steps: int
    group_id: str
    model: str
    device: str
    dtype: str
    def __init__(self, blocks: _Optional[_Union[BlockCounts, _Mapping]] = ..., slots: _Optional[_Union[SlotCounts, _Mapping]] = ..., requests: _Optional[_Union[RequestCounts, _Mapping]] = ..., block_size: _Optional[int] = ..., step: _Optional[int] = ..., preemptions: _Optional[int] = ..., stalled_steps: _Optional[int] = ..., group_id: _Optional[str] = ..., model: _Optional[str] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ...) -> None: ...

class BlockCounts(_message.Message):
    __slots__ = ("total", "free", "cached", "active", "fenced")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    total: int
    free: int
    cached: int
    active: int
    fenced: int
    def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ..., cached: _Optional[int] = ..., active: _Optional[int] = ..., fenced: _Optional[int] = ...) -> None: ...

class SlotCounts(_message.Message):
    __slots__ = ("filled", "promised", "empty_tail")
    FILLED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    EMPTY_TAIL_FIELD_NUMBER: _ClassVar[int]
    filled: int
    promised: int
    empty_tail: int
    def __init__(self, filled: _Optional[int] = ..., promised: _Optional[int] = ..., empty_tail: _Optional[int] = ...) -> None: ...

class RequestCounts(_message.Message):
    __slots__ = ("running", "waiting", "parked")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    parked: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., parked: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ModelResponse(_message.Message):
    __slots__ = ("name", "architecture", "context_tokens", "vocab_size", "eos_token_ids", "has_chat_template", "block_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    context_tokens: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    has_chat_template: bool
    block_size: int
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., has_chat_template: _Optional[bool] = ..., block_size: _Optional[int] = ...) -> None: ...
