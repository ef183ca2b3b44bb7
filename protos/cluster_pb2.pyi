from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetLedgerRequest(_message.Message):
    __slots__ = ("audit",)
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    audit: bool
    def __init__(self, audit: _Optional[bool] = ...) -> None: ...

class WatchLedgerRequest(_message.Message):
    __slots__ = ("interval_seconds", "heartbeat_seconds")
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    heartbeat_seconds: float
    def __init__(self, interval_seconds: _Optional[float] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class GetArrivalsRequest(_message.Message):
    __slots__ = ("after", "salt")
    class AfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    after: _containers.ScalarMap[str, int]
    salt: bytes
    def __init__(self, after: _Optional[_Mapping[str, int]] = ..., salt: _Optional[bytes] = ...) -> None: ...

class ArrivalsResponse(_message.Message):
    __slots__ = ("arrivals", "next", "missed", "steps")
    class NextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    arrivals: _containers.RepeatedCompositeFieldContainer[Arrival]
    next: _containers.ScalarMap[str, int]
    missed: int
    steps: _containers.RepeatedCompositeFieldContainer[MeasuredStep]
    def __init__(self, arrivals: _Optional[_Iterable[_Union[Arrival, _Mapping]]] = ..., next: _Optional[_Mapping[str, int]] = ..., missed: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[MeasuredStep, _Mapping]]] = ...) -> None: ...

class MeasuredStep(_message.Message):
    __slots__ = ("rows", "tokens", "context_tokens", "attended_pairs", "seconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTENDED_PAIRS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tokens: int
    context_tokens: int
    attended_pairs: float
    seconds: float
    def __init__(self, rows: _Optional[int] = ..., tokens: _Optional[int] = ..., context_tokens: _Optional[int] = ..., attended_pairs: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class Arrival(_message.Message):
    __slots__ = ("arrived_at", "prompt_tokens", "output_tokens", "tenant_hash", "prefix_ids", "piece_tokens")
    ARRIVED_AT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANT_HASH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    PIECE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    arrived_at: float
    prompt_tokens: int
    output_tokens: int
    tenant_hash: str
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    piece_tokens: int
    def __init__(self, arrived_at: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., tenant_hash: _Optional[str] = ..., prefix_ids: _Optional[_Iterable[int]] = ..., piece_tokens: _Optional[int] = ...) -> None: ...

class LedgerResponse(_message.Message):
    __slots__ = ("groups", "central")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CENTRAL_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupLedger]
    central: CentralBooks
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupLedger, _Mapping]]] = ..., central: _Optional[_Union[CentralBooks, _Mapping]] = ...) -> None: ...

class CentralBooks(_message.Message):
    __slots__ = ("preempted", "decisions", "swapped", "recomputed", "moved", "relieved", "recent", "waiting", "moves")
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    RELIEVED_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    preempted: PreemptionCounts
    decisions: int
    swapped: int
    recomputed: int
    moved: int
    relieved: int
    recent: _containers.RepeatedCompositeFieldContainer[WayMade]
    waiting: WaitingCounts
    moves: MoveCounts
    def __init__(self, preempted: _Optional[_Union[PreemptionCounts, _Mapping]] = ..., decisions: _Optional[int] = ..., swapped: _Optional[int] = ..., recomputed: _Optional[int] = ..., moved: _Optional[int] = ..., relieved: _Optional[int] = ..., recent: _Optional[_Iterable[_Union[WayMade, _Mapping]]] = ..., waiting: _Optional[_Union[WaitingCounts, _Mapping]] = ..., moves: _Optional[_Union[MoveCounts, _Mapping]] = ...) -> None: ...

class WaitingCounts(_message.Message):
    __slots__ = ("queued", "queued_tokens", "oldest_seconds", "bound", "bound_late", "waited_seconds", "shed", "too_late")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    BOUND_LATE_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    TOO_LATE_FIELD_NUMBER: _ClassVar[int]
    queued: int
    queued_tokens: int
    oldest_seconds: float
    bound: int
    bound_late: int
    waited_seconds: float
    shed: int
    too_late: int
    def __init__(self, queued: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., oldest_seconds: _Optional[float] = ..., bound: _Optional[int] = ..., bound_late: _Optional[int] = ..., waited_seconds: _Optional[float] = ..., shed: _Optional[int] = ..., too_late: _Optional[int] = ...) -> None: ...

class WayMade(_message.Message):
    __slots__ = ("at", "group_id", "came_from", "for_priority", "priority", "swapped", "recomputed", "moved", "estimated_seconds")
    AT_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CAME_FROM_FIELD_NUMBER: _ClassVar[int]
    FOR_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    at: float
    group_id: str
    came_from: str
    for_priority: int
    priority: int
    swapped: int
    recomputed: int
    moved: int
    estimated_seconds: float
    def __init__(self, at: _Optional[float] = ..., group_id: _Optional[str] = ..., came_from: _Optional[str] = ..., for_priority: _Optional[int] = ..., priority: _Optional[int] = ..., swapped: _Optional[int] = ..., recomputed: _Optional[int] = ..., moved: _Optional[int] = ..., estimated_seconds: _Optional[float] = ...) -> None: ...

class GroupLedger(_message.Message):
    __slots__ = ("blocks", "slots", "requests", "block_size", "step", "preemptions", "stalled_steps", "group_id", "model", "device", "dtype", "tokens", "wastes", "host_blocks", "ranks", "sum", "contiguous", "summary", "audit", "preempted", "moves", "wire_bytes_per_second")
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
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WASTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    CONTIGUOUS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    WIRE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
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
    tokens: TokenCounts
    wastes: Wastes
    host_blocks: BlockCounts
    ranks: _containers.RepeatedCompositeFieldContainer[RankBytes]
    sum: RankBytes
    contiguous: _containers.RepeatedCompositeFieldContainer[ContiguousServer]
    summary: str
    audit: str
    preempted: PreemptionCounts
    moves: MoveCounts
    wire_bytes_per_second: float
    def __init__(self, blocks: _Optional[_Union[BlockCounts, _Mapping]] = ..., slots: _Optional[_Union[SlotCounts, _Mapping]] = ..., requests: _Optional[_Union[RequestCounts, _Mapping]] = ..., block_size: _Optional[int] = ..., step: _Optional[int] = ..., preemptions: _Optional[int] = ..., stalled_steps: _Optional[int] = ..., group_id: _Optional[str] = ..., model: _Optional[str] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., tokens: _Optional[_Union[TokenCounts, _Mapping]] = ..., wastes: _Optional[_Union[Wastes, _Mapping]] = ..., host_blocks: _Optional[_Union[BlockCounts, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[RankBytes, _Mapping]]] = ..., sum: _Optional[_Union[RankBytes, _Mapping]] = ..., contiguous: _Optional[_Iterable[_Union[ContiguousServer, _Mapping]]] = ..., summary: _Optional[str] = ..., audit: _Optional[str] = ..., preempted: _Optional[_Union[PreemptionCounts, _Mapping]] = ..., moves: _Optional[_Union[MoveCounts, _Mapping]] = ..., wire_bytes_per_second: _Optional[float] = ...) -> None: ...

class TokenCounts(_message.Message):
    __slots__ = ("logical", "physical", "sharing_ratio", "prompt", "prefix_hits", "recomputed", "merged_blocks")
    LOGICAL_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_FIELD_NUMBER: _ClassVar[int]
    SHARING_RATIO_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    MERGED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    logical: int
    physical: int
    sharing_ratio: float
    prompt: int
    prefix_hits: int
    recomputed: int
    merged_blocks: int
    def __init__(self, logical: _Optional[int] = ..., physical: _Optional[int] = ..., sharing_ratio: _Optional[float] = ..., prompt: _Optional[int] = ..., prefix_hits: _Optional[int] = ..., recomputed: _Optional[int] = ..., merged_blocks: _Optional[int] = ...) -> None: ...

class Wastes(_message.Message):
    __slots__ = ("filled_percent", "promised_percent", "empty_tail_percent", "external_fragmentation_percent", "pool_filled_percent")
    FILLED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PROMISED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    EMPTY_TAIL_PERCENT_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FRAGMENTATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    POOL_FILLED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    filled_percent: float
    promised_percent: float
    empty_tail_percent: float
    external_fragmentation_percent: float
    pool_filled_percent: float
    def __init__(self, filled_percent: _Optional[float] = ..., promised_percent: _Optional[float] = ..., empty_tail_percent: _Optional[float] = ..., external_fragmentation_percent: _Optional[float] = ..., pool_filled_percent: _Optional[float] = ...) -> None: ...

class RankBytes(_message.Message):
    __slots__ = ("rank", "device", "block_bytes", "blocks", "slots", "host_blocks", "weight_bytes", "activation_bytes", "graph_bytes", "allocator")
    RANK_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRAPH_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATOR_FIELD_NUMBER: _ClassVar[int]
    rank: int
    device: str
    block_bytes: int
    blocks: BlockCounts
    slots: SlotCounts
    host_blocks: BlockCounts
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int
    allocator: AllocatorBytes
    def __init__(self, rank: _Optional[int] = ..., device: _Optional[str] = ..., block_bytes: _Optional[int] = ..., blocks: _Optional[_Union[BlockCounts, _Mapping]] = ..., slots: _Optional[_Union[SlotCounts, _Mapping]] = ..., host_blocks: _Optional[_Union[BlockCounts, _Mapping]] = ..., weight_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., graph_bytes: _Optional[int] = ..., allocator: _Optional[_Union[AllocatorBytes, _Mapping]] = ...) -> None: ...

class AllocatorBytes(_message.Message):
    __slots__ = ("reserved", "allocated", "slack", "free", "largest_free", "external_fragmentation_percent")
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    SLACK_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FRAGMENTATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    reserved: int
    allocated: int
    slack: int
    free: int
    largest_free: int
    external_fragmentation_percent: float
    def __init__(self, reserved: _Optional[int] = ..., allocated: _Optional[int] = ..., slack: _Optional[int] = ..., free: _Optional[int] = ..., largest_free: _Optional[int] = ..., external_fragmentation_percent: _Optional[float] = ...) -> None: ...

class ContiguousServer(_message.Message):
    __slots__ = ("policy", "running", "queued", "peak_running", "delayed", "refused", "evicted", "capacity", "filled", "reservation", "internal", "free", "largest_hole", "holes", "external_fragmentation_percent", "filled_percent", "reservation_percent", "internal_percent", "pool_filled_percent", "behind_seconds", "first_out_of_memory", "first_fragmented")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PEAK_RUNNING_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FILLED_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_HOLE_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FRAGMENTATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    FILLED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_PERCENT_FIELD_NUMBER: _ClassVar[int]
    POOL_FILLED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    BEHIND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FRAGMENTED_FIELD_NUMBER: _ClassVar[int]
    policy: str
    running: int
    queued: int
    peak_running: int
    delayed: int
    refused: int
    evicted: int
    capacity: int
    filled: int
    reservation: int
    internal: int
    free: int
    largest_hole: int
    holes: int
    external_fragmentation_percent: float
    filled_percent: float
    reservation_percent: float
    internal_percent: float
    pool_filled_percent: float
    behind_seconds: float
    first_out_of_memory: OutOfMemory
    first_fragmented: OutOfMemory
    def __init__(self, policy: _Optional[str] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., peak_running: _Optional[int] = ..., delayed: _Optional[int] = ..., refused: _Optional[int] = ..., evicted: _Optional[int] = ..., capacity: _Optional[int] = ..., filled: _Optional[int] = ..., reservation: _Optional[int] = ..., internal: _Optional[int] = ..., free: _Optional[int] = ..., largest_hole: _Optional[int] = ..., holes: _Optional[int] = ..., external_fragmentation_percent: _Optional[float] = ..., filled_percent: _Optional[float] = ..., reservation_percent: _Optional[float] = ..., internal_percent: _Optional[float] = ..., pool_filled_percent: _Optional[float] = ..., behind_seconds: _Optional[float] = ..., first_out_of_memory: _Optional[_Union[OutOfMemory, _Mapping]] = ..., first_fragmented: _Optional[_Union[OutOfMemory, _Mapping]] = ...) -> None: ...

class OutOfMemory(_message.Message):
    __slots__ = ("after_seconds", "needed", "free", "largest_hole", "reserved_idle", "running", "message")
    AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_HOLE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_IDLE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    after_seconds: float
    needed: int
    free: int
    largest_hole: int
    reserved_idle: int
    running: int
    message: str
    def __init__(self, after_seconds: _Optional[float] = ..., needed: _Optional[int] = ..., free: _Optional[int] = ..., largest_hole: _Optional[int] = ..., reserved_idle: _Optional[int] = ..., running: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class MoveCounts(_message.Message):
    __slots__ = ("brought", "recomputed", "cut_short", "blocks_out", "blocks_in", "tokens_in", "bytes_out", "bytes_in", "estimated_seconds", "seconds")
    BROUGHT_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    CUT_SHORT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_OUT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_IN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    brought: int
    recomputed: int
    cut_short: int
    blocks_out: int
    blocks_in: int
    tokens_in: int
    bytes_out: int
    bytes_in: int
    estimated_seconds: float
    seconds: float
    def __init__(self, brought: _Optional[int] = ..., recomputed: _Optional[int] = ..., cut_short: _Optional[int] = ..., blocks_out: _Optional[int] = ..., blocks_in: _Optional[int] = ..., tokens_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., estimated_seconds: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class PreemptionCounts(_message.Message):
    __slots__ = ("swapped", "recomputed", "held", "blocks_out", "blocks_in", "swap_estimated_seconds", "swap_seconds", "recompute_estimated_seconds", "recompute_seconds", "moved", "ordered")
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_OUT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_IN_FIELD_NUMBER: _ClassVar[int]
    SWAP_ESTIMATED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SWAP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_ESTIMATED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    swapped: int
    recomputed: int
    held: int
    blocks_out: int
    blocks_in: int
    swap_estimated_seconds: float
    swap_seconds: float
    recompute_estimated_seconds: float
    recompute_seconds: float
    moved: int
    ordered: int
    def __init__(self, swapped: _Optional[int] = ..., recomputed: _Optional[int] = ..., held: _Optional[int] = ..., blocks_out: _Optional[int] = ..., blocks_in: _Optional[int] = ..., swap_estimated_seconds: _Optional[float] = ..., swap_seconds: _Optional[float] = ..., recompute_estimated_seconds: _Optional[float] = ..., recompute_seconds: _Optional[float] = ..., moved: _Optional[int] = ..., ordered: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("name", "architecture", "context_tokens", "vocab_size", "eos_token_ids", "has_chat_template", "block_size", "sleeping", "weight_version", "adapters", "base_model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    SLEEPING_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    context_tokens: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    has_chat_template: bool
    block_size: int
    sleeping: bool
    weight_version: str
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    base_model: str
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., has_chat_template: _Optional[bool] = ..., block_size: _Optional[int] = ..., sleeping: _Optional[bool] = ..., weight_version: _Optional[str] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., base_model: _Optional[str] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "version", "rank")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    rank: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("model", "name", "path")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    path: str
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("model", "name")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class WakeUpRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class UpdateWeightsRequest(_message.Message):
    __slots__ = ("model", "directory")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    model: str
    directory: str
    def __init__(self, model: _Optional[str] = ..., directory: _Optional[str] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("model", "sleeping", "weight_version", "groups")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SLEEPING_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    model: str
    sleeping: bool
    weight_version: str
    groups: int
    def __init__(self, model: _Optional[str] = ..., sleeping: _Optional[bool] = ..., weight_version: _Optional[str] = ..., groups: _Optional[int] = ...) -> None: ...
