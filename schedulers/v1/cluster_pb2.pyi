from presage.serving.v1 import prediction_pb2 as _prediction_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    WAITING: _ClassVar[Phase]
    PLACED: _ClassVar[Phase]
    RUNNING: _ClassVar[Phase]
    PAUSED: _ClassVar[Phase]
    LEAVING: _ClassVar[Phase]
    FINISHED: _ClassVar[Phase]
    FAILED: _ClassVar[Phase]
    CANCELLED: _ClassVar[Phase]
    REJECTED: _ClassVar[Phase]
    TIMED_OUT: _ClassVar[Phase]

class TaskPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_UNSPECIFIED: _ClassVar[TaskPhase]
    TASK_WAITING: _ClassVar[TaskPhase]
    TASK_RUNNING: _ClassVar[TaskPhase]
    TASK_PAUSED: _ClassVar[TaskPhase]
    TASK_ENDING: _ClassVar[TaskPhase]
    TASK_ENDED: _ClassVar[TaskPhase]
PHASE_UNSPECIFIED: Phase
WAITING: Phase
PLACED: Phase
RUNNING: Phase
PAUSED: Phase
LEAVING: Phase
FINISHED: Phase
FAILED: Phase
CANCELLED: Phase
REJECTED: Phase
TIMED_OUT: Phase
TASK_UNSPECIFIED: TaskPhase
TASK_WAITING: TaskPhase
TASK_RUNNING: TaskPhase
TASK_PAUSED: TaskPhase
TASK_ENDING: TaskPhase
TASK_ENDED: TaskPhase

class Job(_message.Message):
    __slots__ = ("job_id", "command", "folder", "environment", "gpus", "kinds", "latency_sensitive", "priority", "user", "model", "iterations", "features", "compute_milli", "memory_bytes", "checkpoint_interval_s", "grace_s", "retries", "min_gpus", "max_gpus", "time_limit_s", "after", "after_any", "array", "array_limit", "hold")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    MIN_GPUS_FIELD_NUMBER: _ClassVar[int]
    MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    AFTER_ANY_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    ARRAY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    command: _containers.RepeatedScalarFieldContainer[str]
    folder: str
    environment: _containers.ScalarMap[str, str]
    gpus: int
    kinds: _containers.RepeatedScalarFieldContainer[str]
    latency_sensitive: bool
    priority: int
    user: str
    model: str
    iterations: int
    features: _prediction_pb2.Job
    compute_milli: int
    memory_bytes: int
    checkpoint_interval_s: float
    grace_s: float
    retries: int
    min_gpus: int
    max_gpus: int
    time_limit_s: float
    after: _containers.RepeatedScalarFieldContainer[str]
    after_any: _containers.RepeatedScalarFieldContainer[str]
    array: str
    array_limit: int
    hold: bool
    def __init__(self, job_id: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., folder: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., gpus: _Optional[int] = ..., kinds: _Optional[_Iterable[str]] = ..., latency_sensitive: _Optional[bool] = ..., priority: _Optional[int] = ..., user: _Optional[str] = ..., model: _Optional[str] = ..., iterations: _Optional[int] = ..., features: _Optional[_Union[_prediction_pb2.Job, _Mapping]] = ..., compute_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., checkpoint_interval_s: _Optional[float] = ..., grace_s: _Optional[float] = ..., retries: _Optional[int] = ..., min_gpus: _Optional[int] = ..., max_gpus: _Optional[int] = ..., time_limit_s: _Optional[float] = ..., after: _Optional[_Iterable[str]] = ..., after_any: _Optional[_Iterable[str]] = ..., array: _Optional[str] = ..., array_limit: _Optional[int] = ..., hold: _Optional[bool] = ...) -> None: ...

class Allocation(_message.Message):
    __slots__ = ("device", "compute_milli", "memory_bytes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    device: int
    compute_milli: int
    memory_bytes: int
    def __init__(self, device: _Optional[int] = ..., compute_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "node", "allocation", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    node: str
    allocation: Allocation
    state: str
    def __init__(self, name: _Optional[str] = ..., node: _Optional[str] = ..., allocation: _Optional[_Union[Allocation, _Mapping]] = ..., state: _Optional[str] = ...) -> None: ...

class SizeChange(_message.Message):
    __slots__ = ("time_unix_s", "gpus", "reason")
    TIME_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    time_unix_s: float
    gpus: int
    reason: str
    def __init__(self, time_unix_s: _Optional[float] = ..., gpus: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("kind", "compute_milli", "memory_bytes", "runtime_s", "slo_s", "setup_s", "in_domain", "is_predicted", "release_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    SLO_S_FIELD_NUMBER: _ClassVar[int]
    SETUP_S_FIELD_NUMBER: _ClassVar[int]
    IN_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    IS_PREDICTED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    compute_milli: int
    memory_bytes: int
    runtime_s: float
    slo_s: float
    setup_s: float
    in_domain: bool
    is_predicted: bool
    release_id: str
    def __init__(self, kind: _Optional[str] = ..., compute_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., runtime_s: _Optional[float] = ..., slo_s: _Optional[float] = ..., setup_s: _Optional[float] = ..., in_domain: _Optional[bool] = ..., is_predicted: _Optional[bool] = ..., release_id: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "phase", "reason", "attempt", "node", "allocations", "submitted_unix_s", "started_unix_s", "ended_unix_s", "done", "usage_milli", "memory_bytes", "peak_memory_bytes", "slo_violated", "elapsed_s", "remaining_s", "predictions", "waited_s", "queue_position", "done_estimated", "members", "sizes", "held")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    USAGE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLO_VIOLATED_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    DONE_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    job: Job
    phase: Phase
    reason: str
    attempt: int
    node: str
    allocations: _containers.RepeatedCompositeFieldContainer[Allocation]
    submitted_unix_s: float
    started_unix_s: float
    ended_unix_s: float
    done: float
    usage_milli: float
    memory_bytes: int
    peak_memory_bytes: int
    slo_violated: bool
    elapsed_s: float
    remaining_s: float
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    waited_s: float
    queue_position: int
    done_estimated: bool
    members: _containers.RepeatedCompositeFieldContainer[Member]
    sizes: _containers.RepeatedCompositeFieldContainer[SizeChange]
    held: bool
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., phase: _Optional[_Union[Phase, str]] = ..., reason: _Optional[str] = ..., attempt: _Optional[int] = ..., node: _Optional[str] = ..., allocations: _Optional[_Iterable[_Union[Allocation, _Mapping]]] = ..., submitted_unix_s: _Optional[float] = ..., started_unix_s: _Optional[float] = ..., ended_unix_s: _Optional[float] = ..., done: _Optional[float] = ..., usage_milli: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., slo_violated: _Optional[bool] = ..., elapsed_s: _Optional[float] = ..., remaining_s: _Optional[float] = ..., predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ..., waited_s: _Optional[float] = ..., queue_position: _Optional[int] = ..., done_estimated: _Optional[bool] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., sizes: _Optional[_Iterable[_Union[SizeChange, _Mapping]]] = ..., held: _Optional[bool] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("existing_job_ids",)
    EXISTING_JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    existing_job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, existing_job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job_ids", "user", "all")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    user: str
    all: bool
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., user: _Optional[str] = ..., all: _Optional[bool] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("job_ids", "release")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    release: bool
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., release: _Optional[bool] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequeueRequest(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RequeueResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetPriorityRequest(_message.Message):
    __slots__ = ("job_ids", "priority")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    priority: int
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., priority: _Optional[int] = ...) -> None: ...

class SetPriorityResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("include_ended", "job_ids", "limit", "failed_within_s", "user", "node", "states", "offset")
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FAILED_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    include_ended: bool
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    failed_within_s: float
    user: str
    node: str
    states: _containers.RepeatedScalarFieldContainer[str]
    offset: int
    def __init__(self, include_ended: _Optional[bool] = ..., job_ids: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., failed_within_s: _Optional[float] = ..., user: _Optional[str] = ..., node: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ..., offset: _Optional[int] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("kind", "memory_bytes", "free_compute_milli", "free_memory_bytes", "job_ids", "reason", "temperature_c", "power_w")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    kind: str
    memory_bytes: int
    free_compute_milli: int
    free_memory_bytes: int
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    temperature_c: float
    power_w: float
    def __init__(self, kind: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., free_compute_milli: _Optional[int] = ..., free_memory_bytes: _Optional[int] = ..., job_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., temperature_c: _Optional[float] = ..., power_w: _Optional[float] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("name", "devices", "connected", "drained", "last_report_age_s", "reason", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    LAST_REPORT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    connected: bool
    drained: bool
    last_report_age_s: float
    reason: str
    state: str
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., connected: _Optional[bool] = ..., drained: _Optional[bool] = ..., last_report_age_s: _Optional[float] = ..., reason: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("jobs", "nodes", "policy", "forecaster_error", "last_entry", "remaining_job_count", "failed_jobs", "client", "client_roles")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FORECASTER_ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    REMAINING_JOB_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_JOBS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ROLES_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    policy: str
    forecaster_error: str
    last_entry: int
    remaining_job_count: int
    failed_jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    client: str
    client_roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., policy: _Optional[str] = ..., forecaster_error: _Optional[str] = ..., last_entry: _Optional[int] = ..., remaining_job_count: _Optional[int] = ..., failed_jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., client: _Optional[str] = ..., client_roles: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after_entry", "job_ids")
    AFTER_ENTRY_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    after_entry: int
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, after_entry: _Optional[int] = ..., job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("entry", "time_unix_s", "type", "job_id", "node", "details", "principal")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    entry: int
    time_unix_s: float
    type: str
    job_id: str
    node: str
    details: str
    principal: str
    def __init__(self, entry: _Optional[int] = ..., time_unix_s: _Optional[float] = ..., type: _Optional[str] = ..., job_id: _Optional[str] = ..., node: _Optional[str] = ..., details: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "undo", "evict", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    undo: bool
    evict: bool
    reason: str
    def __init__(self, node: _Optional[str] = ..., undo: _Optional[bool] = ..., evict: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("user", "devices", "weight")
    USER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    user: str
    devices: float
    weight: float
    def __init__(self, user: _Optional[str] = ..., devices: _Optional[float] = ..., weight: _Optional[float] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("quota", "remove")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    remove: bool
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ..., remove: _Optional[bool] = ...) -> None: ...

class SetQuotaResponse(_message.Message):
    __slots__ = ("held_devices",)
    HELD_DEVICES_FIELD_NUMBER: _ClassVar[int]
    held_devices: float
    def __init__(self, held_devices: _Optional[float] = ...) -> None: ...

class QuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UserStatus(_message.Message):
    __slots__ = ("quota", "held_devices", "used_device_s")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    HELD_DEVICES_FIELD_NUMBER: _ClassVar[int]
    USED_DEVICE_S_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    held_devices: float
    used_device_s: float
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ..., held_devices: _Optional[float] = ..., used_device_s: _Optional[float] = ...) -> None: ...

class QuotasResponse(_message.Message):
    __slots__ = ("default_quota", "users", "half_life_s", "fair_share")
    DEFAULT_QUOTA_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    HALF_LIFE_S_FIELD_NUMBER: _ClassVar[int]
    FAIR_SHARE_FIELD_NUMBER: _ClassVar[int]
    default_quota: Quota
    users: _containers.RepeatedCompositeFieldContainer[UserStatus]
    half_life_s: float
    fair_share: bool
    def __init__(self, default_quota: _Optional[_Union[Quota, _Mapping]] = ..., users: _Optional[_Iterable[_Union[UserStatus, _Mapping]]] = ..., half_life_s: _Optional[float] = ..., fair_share: _Optional[bool] = ...) -> None: ...

class OutagesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Outage(_message.Message):
    __slots__ = ("from_s", "until_s")
    FROM_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    from_s: float
    until_s: float
    def __init__(self, from_s: _Optional[float] = ..., until_s: _Optional[float] = ...) -> None: ...

class DeviceOutages(_message.Message):
    __slots__ = ("device_id", "node", "outages")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OUTAGES_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    node: str
    outages: _containers.RepeatedCompositeFieldContainer[Outage]
    def __init__(self, device_id: _Optional[str] = ..., node: _Optional[str] = ..., outages: _Optional[_Iterable[_Union[Outage, _Mapping]]] = ...) -> None: ...

class OutagesResponse(_message.Message):
    __slots__ = ("now_s", "nodes", "devices")
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    now_s: float
    nodes: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceOutages]
    def __init__(self, now_s: _Optional[float] = ..., nodes: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[_Union[DeviceOutages, _Mapping]]] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("from_unix_s", "to_unix_s", "step_s")
    FROM_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    TO_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    from_unix_s: float
    to_unix_s: float
    step_s: float
    def __init__(self, from_unix_s: _Optional[float] = ..., to_unix_s: _Optional[float] = ..., step_s: _Optional[float] = ...) -> None: ...

class SampledValue(_message.Message):
    __slots__ = ("mean", "least", "greatest")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    GREATEST_FIELD_NUMBER: _ClassVar[int]
    mean: float
    least: float
    greatest: float
    def __init__(self, mean: _Optional[float] = ..., least: _Optional[float] = ..., greatest: _Optional[float] = ...) -> None: ...

class HistoryPoint(_message.Message):
    __slots__ = ("time_unix_s", "samples", "devices", "devices_in_use", "allocated_devices", "used_devices", "waiting_jobs", "running_jobs", "slo_violated_jobs", "finished_jobs", "failed_jobs", "forecast_errors", "hottest_c", "power_w")
    TIME_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_IN_USE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_DEVICES_FIELD_NUMBER: _ClassVar[int]
    USED_DEVICES_FIELD_NUMBER: _ClassVar[int]
    WAITING_JOBS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_JOBS_FIELD_NUMBER: _ClassVar[int]
    SLO_VIOLATED_JOBS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_JOBS_FIELD_NUMBER: _ClassVar[int]
    FAILED_JOBS_FIELD_NUMBER: _ClassVar[int]
    FORECAST_ERRORS_FIELD_NUMBER: _ClassVar[int]
    HOTTEST_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    time_unix_s: float
    samples: int
    devices: SampledValue
    devices_in_use: SampledValue
    allocated_devices: SampledValue
    used_devices: SampledValue
    waiting_jobs: SampledValue
    running_jobs: SampledValue
    slo_violated_jobs: SampledValue
    finished_jobs: int
    failed_jobs: int
    forecast_errors: ForecastErrors
    hottest_c: SampledValue
    power_w: SampledValue
    def __init__(self, time_unix_s: _Optional[float] = ..., samples: _Optional[int] = ..., devices: _Optional[_Union[SampledValue, _Mapping]] = ..., devices_in_use: _Optional[_Union[SampledValue, _Mapping]] = ..., allocated_devices: _Optional[_Union[SampledValue, _Mapping]] = ..., used_devices: _Optional[_Union[SampledValue, _Mapping]] = ..., waiting_jobs: _Optional[_Union[SampledValue, _Mapping]] = ..., running_jobs: _Optional[_Union[SampledValue, _Mapping]] = ..., slo_violated_jobs: _Optional[_Union[SampledValue, _Mapping]] = ..., finished_jobs: _Optional[int] = ..., failed_jobs: _Optional[int] = ..., forecast_errors: _Optional[_Union[ForecastErrors, _Mapping]] = ..., hottest_c: _Optional[_Union[SampledValue, _Mapping]] = ..., power_w: _Optional[_Union[SampledValue, _Mapping]] = ...) -> None: ...

class ForecastErrors(_message.Message):
    __slots__ = ("jobs", "mean", "greatest", "beyond_bound")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    GREATEST_FIELD_NUMBER: _ClassVar[int]
    BEYOND_BOUND_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    mean: float
    greatest: float
    beyond_bound: int
    def __init__(self, jobs: _Optional[int] = ..., mean: _Optional[float] = ..., greatest: _Optional[float] = ..., beyond_bound: _Optional[int] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("points", "step_s", "has_errors")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    HAS_ERRORS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[HistoryPoint]
    step_s: float
    has_errors: bool
    def __init__(self, points: _Optional[_Iterable[_Union[HistoryPoint, _Mapping]]] = ..., step_s: _Optional[float] = ..., has_errors: _Optional[bool] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("node", "device", "kind", "free_compute_milli", "free_memory_bytes", "required_compute_milli", "required_memory_bytes", "runtime_s", "verdict")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FREE_COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    node: str
    device: int
    kind: str
    free_compute_milli: int
    free_memory_bytes: int
    required_compute_milli: int
    required_memory_bytes: int
    runtime_s: float
    verdict: str
    def __init__(self, node: _Optional[str] = ..., device: _Optional[int] = ..., kind: _Optional[str] = ..., free_compute_milli: _Optional[int] = ..., free_memory_bytes: _Optional[int] = ..., required_compute_milli: _Optional[int] = ..., required_memory_bytes: _Optional[int] = ..., runtime_s: _Optional[float] = ..., verdict: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("status", "summary", "candidates", "history")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    status: JobStatus
    summary: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    history: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, status: _Optional[_Union[JobStatus, _Mapping]] = ..., summary: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class WhatIfVariant(_message.Message):
    __slots__ = ("gpus", "kinds", "compute_milli", "policy")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    gpus: int
    kinds: _containers.RepeatedScalarFieldContainer[str]
    compute_milli: int
    policy: str
    def __init__(self, gpus: _Optional[int] = ..., kinds: _Optional[_Iterable[str]] = ..., compute_milli: _Optional[int] = ..., policy: _Optional[str] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("job_ids", "new_job", "variants", "samples", "horizon_s", "within_s", "seed")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_JOB_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HORIZON_S_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    new_job: Job
    variants: _containers.RepeatedCompositeFieldContainer[WhatIfVariant]
    samples: int
    horizon_s: float
    within_s: _containers.RepeatedScalarFieldContainer[float]
    seed: int
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., new_job: _Optional[_Union[Job, _Mapping]] = ..., variants: _Optional[_Iterable[_Union[WhatIfVariant, _Mapping]]] = ..., samples: _Optional[int] = ..., horizon_s: _Optional[float] = ..., within_s: _Optional[_Iterable[float]] = ..., seed: _Optional[int] = ...) -> None: ...

class TimeQuantiles(_message.Message):
    __slots__ = ("low_s", "median_s", "high_s")
    LOW_S_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_S_FIELD_NUMBER: _ClassVar[int]
    HIGH_S_FIELD_NUMBER: _ClassVar[int]
    low_s: float
    median_s: float
    high_s: float
    def __init__(self, low_s: _Optional[float] = ..., median_s: _Optional[float] = ..., high_s: _Optional[float] = ...) -> None: ...

class WhatIfAnswer(_message.Message):
    __slots__ = ("job_id", "variant", "verdict", "start", "end", "start_probabilities", "reason", "policy")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    START_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    variant: WhatIfVariant
    verdict: str
    start: TimeQuantiles
    end: TimeQuantiles
    start_probabilities: _containers.RepeatedScalarFieldContainer[float]
    reason: str
    policy: str
    def __init__(self, job_id: _Optional[str] = ..., variant: _Optional[_Union[WhatIfVariant, _Mapping]] = ..., verdict: _Optional[str] = ..., start: _Optional[_Union[TimeQuantiles, _Mapping]] = ..., end: _Optional[_Union[TimeQuantiles, _Mapping]] = ..., start_probabilities: _Optional[_Iterable[float]] = ..., reason: _Optional[str] = ..., policy: _Optional[str] = ...) -> None: ...

class WhatIfResponse(_message.Message):
    __slots__ = ("answers", "time_unix_s", "samples", "horizon_s", "run_times", "assumptions")
    class RunTimesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HORIZON_S_FIELD_NUMBER: _ClassVar[int]
    RUN_TIMES_FIELD_NUMBER: _ClassVar[int]
    ASSUMPTIONS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[WhatIfAnswer]
    time_unix_s: float
    samples: int
    horizon_s: float
    run_times: _containers.ScalarMap[str, int]
    assumptions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, answers: _Optional[_Iterable[_Union[WhatIfAnswer, _Mapping]]] = ..., time_unix_s: _Optional[float] = ..., samples: _Optional[int] = ..., horizon_s: _Optional[float] = ..., run_times: _Optional[_Mapping[str, int]] = ..., assumptions: _Optional[_Iterable[str]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job_id", "offset", "follow")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    offset: int
    follow: bool
    def __init__(self, job_id: _Optional[str] = ..., offset: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "memory_bytes", "id", "temperature_c", "power_w")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    kind: str
    memory_bytes: int
    id: str
    temperature_c: float
    power_w: float
    def __init__(self, kind: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., id: _Optional[str] = ..., temperature_c: _Optional[float] = ..., power_w: _Optional[float] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("finished", "out_of_memory", "requested", "description", "lost")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    out_of_memory: bool
    requested: bool
    description: str
    lost: bool
    def __init__(self, finished: _Optional[bool] = ..., out_of_memory: _Optional[bool] = ..., requested: _Optional[bool] = ..., description: _Optional[str] = ..., lost: _Optional[bool] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("job_id", "attempt", "phase", "allocations", "done", "saved", "usage_milli", "memory_bytes", "peak_memory_bytes", "slo_violated", "ran_s", "exit", "reason", "done_estimated", "remaining_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    USAGE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLO_VIOLATED_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DONE_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    phase: TaskPhase
    allocations: _containers.RepeatedCompositeFieldContainer[Allocation]
    done: float
    saved: float
    usage_milli: float
    memory_bytes: int
    peak_memory_bytes: int
    slo_violated: bool
    ran_s: float
    exit: Exit
    reason: str
    done_estimated: bool
    remaining_s: float
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., phase: _Optional[_Union[TaskPhase, str]] = ..., allocations: _Optional[_Iterable[_Union[Allocation, _Mapping]]] = ..., done: _Optional[float] = ..., saved: _Optional[float] = ..., usage_milli: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., slo_violated: _Optional[bool] = ..., ran_s: _Optional[float] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ..., reason: _Optional[str] = ..., done_estimated: _Optional[bool] = ..., remaining_s: _Optional[float] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("node", "agent_id", "number", "devices", "tasks", "commands_version", "problem", "cluster_id", "supports_chunks", "signals", "signals_id", "unchanged")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_ID_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    node: str
    agent_id: str
    number: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    commands_version: int
    problem: str
    cluster_id: str
    supports_chunks: bool
    signals: _containers.RepeatedCompositeFieldContainer[HealthSignal]
    signals_id: str
    unchanged: bool
    def __init__(self, node: _Optional[str] = ..., agent_id: _Optional[str] = ..., number: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., commands_version: _Optional[int] = ..., problem: _Optional[str] = ..., cluster_id: _Optional[str] = ..., supports_chunks: _Optional[bool] = ..., signals: _Optional[_Iterable[_Union[HealthSignal, _Mapping]]] = ..., signals_id: _Optional[str] = ..., unchanged: _Optional[bool] = ...) -> None: ...

class HealthSignal(_message.Message):
    __slots__ = ("number", "device", "source", "severity", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    device: int
    source: str
    severity: str
    reason: str
    def __init__(self, number: _Optional[int] = ..., device: _Optional[int] = ..., source: _Optional[str] = ..., severity: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TaskCommand(_message.Message):
    __slots__ = ("job", "attempt", "allocations", "predictions", "elapsed_s", "done", "end_reason", "discard", "exclusive", "submission_id", "run_as", "worker", "traceparent")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_AS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    job: Job
    attempt: int
    allocations: _containers.RepeatedCompositeFieldContainer[Allocation]
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    elapsed_s: float
    done: float
    end_reason: str
    discard: bool
    exclusive: bool
    submission_id: str
    run_as: str
    worker: ElasticWorker
    traceparent: str
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., attempt: _Optional[int] = ..., allocations: _Optional[_Iterable[_Union[Allocation, _Mapping]]] = ..., predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ..., elapsed_s: _Optional[float] = ..., done: _Optional[float] = ..., end_reason: _Optional[str] = ..., discard: _Optional[bool] = ..., exclusive: _Optional[bool] = ..., submission_id: _Optional[str] = ..., run_as: _Optional[str] = ..., worker: _Optional[_Union[ElasticWorker, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ElasticWorker(_message.Message):
    __slots__ = ("job_id", "name", "leader_job", "port", "token")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEADER_JOB_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    leader_job: str
    port: int
    token: str
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., leader_job: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class NodeCommands(_message.Message):
    __slots__ = ("report_number", "version", "unchanged", "tasks", "forget", "sharing", "lease_s", "log_requests", "cluster_id", "has_more", "signals_id", "signals_number", "withdrawn_devices", "heartbeat_s", "report_s")
    REPORT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    LOG_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_NUMBER_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_DEVICES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    REPORT_S_FIELD_NUMBER: _ClassVar[int]
    report_number: int
    version: int
    unchanged: bool
    tasks: _containers.RepeatedCompositeFieldContainer[TaskCommand]
    forget: _containers.RepeatedCompositeFieldContainer[TaskName]
    sharing: Sharing
    lease_s: float
    log_requests: _containers.RepeatedCompositeFieldContainer[LogRequest]
    cluster_id: str
    has_more: bool
    signals_id: str
    signals_number: int
    withdrawn_devices: _containers.RepeatedScalarFieldContainer[int]
    heartbeat_s: float
    report_s: float
    def __init__(self, report_number: _Optional[int] = ..., version: _Optional[int] = ..., unchanged: _Optional[bool] = ..., tasks: _Optional[_Iterable[_Union[TaskCommand, _Mapping]]] = ..., forget: _Optional[_Iterable[_Union[TaskName, _Mapping]]] = ..., sharing: _Optional[_Union[Sharing, _Mapping]] = ..., lease_s: _Optional[float] = ..., log_requests: _Optional[_Iterable[_Union[LogRequest, _Mapping]]] = ..., cluster_id: _Optional[str] = ..., has_more: _Optional[bool] = ..., signals_id: _Optional[str] = ..., signals_number: _Optional[int] = ..., withdrawn_devices: _Optional[_Iterable[int]] = ..., heartbeat_s: _Optional[float] = ..., report_s: _Optional[float] = ...) -> None: ...

class TaskName(_message.Message):
    __slots__ = ("job_id", "attempt")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Sharing(_message.Message):
    __slots__ = ("step_milli", "least_milli", "check_s", "overcommit", "reserve")
    STEP_MILLI_FIELD_NUMBER: _ClassVar[int]
    LEAST_MILLI_FIELD_NUMBER: _ClassVar[int]
    CHECK_S_FIELD_NUMBER: _ClassVar[int]
    OVERCOMMIT_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    step_milli: int
    least_milli: int
    check_s: float
    overcommit: float
    reserve: float
    def __init__(self, step_milli: _Optional[int] = ..., least_milli: _Optional[int] = ..., check_s: _Optional[float] = ..., overcommit: _Optional[float] = ..., reserve: _Optional[float] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("request_id", "task", "offset")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    task: TaskName
    offset: int
    def __init__(self, request_id: _Optional[str] = ..., task: _Optional[_Union[TaskName, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("request_id", "content", "offset", "ended")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    content: bytes
    offset: int
    ended: bool
    def __init__(self, request_id: _Optional[str] = ..., content: _Optional[bytes] = ..., offset: _Optional[int] = ..., ended: _Optional[bool] = ...) -> None: ...

class SendLogResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
