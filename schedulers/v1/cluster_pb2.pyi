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
TASK_UNSPECIFIED: TaskPhase
TASK_WAITING: TaskPhase
TASK_RUNNING: TaskPhase
TASK_PAUSED: TaskPhase
TASK_ENDING: TaskPhase
TASK_ENDED: TaskPhase

class Job(_message.Message):
    __slots__ = ("job_id", "command", "folder", "environment", "gpus", "kinds", "latency_sensitive", "priority", "user", "model", "iterations", "features", "compute_milli", "memory_bytes", "checkpoint_every_s", "grace_s", "retries")
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
    CHECKPOINT_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
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
    checkpoint_every_s: float
    grace_s: float
    retries: int
    def __init__(self, job_id: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., folder: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., gpus: _Optional[int] = ..., kinds: _Optional[_Iterable[str]] = ..., latency_sensitive: _Optional[bool] = ..., priority: _Optional[int] = ..., user: _Optional[str] = ..., model: _Optional[str] = ..., iterations: _Optional[int] = ..., features: _Optional[_Union[_prediction_pb2.Job, _Mapping]] = ..., compute_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., checkpoint_every_s: _Optional[float] = ..., grace_s: _Optional[float] = ..., retries: _Optional[int] = ...) -> None: ...

class Allocation(_message.Message):
    __slots__ = ("device", "compute_milli", "memory_bytes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    device: int
    compute_milli: int
    memory_bytes: int
    def __init__(self, device: _Optional[int] = ..., compute_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ("kind", "compute_milli", "memory_bytes", "runtime_s", "promised_s", "setup_s", "in_domain", "foretold", "release_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    PROMISED_S_FIELD_NUMBER: _ClassVar[int]
    SETUP_S_FIELD_NUMBER: _ClassVar[int]
    IN_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    FORETOLD_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    compute_milli: int
    memory_bytes: int
    runtime_s: float
    promised_s: float
    setup_s: float
    in_domain: bool
    foretold: bool
    release_id: str
    def __init__(self, kind: _Optional[str] = ..., compute_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., runtime_s: _Optional[float] = ..., promised_s: _Optional[float] = ..., setup_s: _Optional[float] = ..., in_domain: _Optional[bool] = ..., foretold: _Optional[bool] = ..., release_id: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "phase", "why", "attempt", "node", "allocations", "submitted_unix_s", "started_unix_s", "ended_unix_s", "done", "usage_milli", "memory_bytes", "peak_memory_bytes", "late", "elapsed_s", "remaining_s", "told", "waited_s", "place_in_queue", "done_guessed")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
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
    LATE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    PLACE_IN_QUEUE_FIELD_NUMBER: _ClassVar[int]
    DONE_GUESSED_FIELD_NUMBER: _ClassVar[int]
    job: Job
    phase: Phase
    why: str
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
    late: bool
    elapsed_s: float
    remaining_s: float
    told: _containers.RepeatedCompositeFieldContainer[Told]
    waited_s: float
    place_in_queue: int
    done_guessed: bool
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., phase: _Optional[_Union[Phase, str]] = ..., why: _Optional[str] = ..., attempt: _Optional[int] = ..., node: _Optional[str] = ..., allocations: _Optional[_Iterable[_Union[Allocation, _Mapping]]] = ..., submitted_unix_s: _Optional[float] = ..., started_unix_s: _Optional[float] = ..., ended_unix_s: _Optional[float] = ..., done: _Optional[float] = ..., usage_milli: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., late: _Optional[bool] = ..., elapsed_s: _Optional[float] = ..., remaining_s: _Optional[float] = ..., told: _Optional[_Iterable[_Union[Told, _Mapping]]] = ..., waited_s: _Optional[float] = ..., place_in_queue: _Optional[int] = ..., done_guessed: _Optional[bool] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, known: _Optional[_Iterable[str]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("ended", "job_ids", "most", "failed_s")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    FAILED_S_FIELD_NUMBER: _ClassVar[int]
    ended: bool
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    most: int
    failed_s: float
    def __init__(self, ended: _Optional[bool] = ..., job_ids: _Optional[_Iterable[str]] = ..., most: _Optional[int] = ..., failed_s: _Optional[float] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("kind", "memory_bytes", "left_compute_milli", "left_memory_bytes", "job_ids")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEFT_COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    LEFT_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    memory_bytes: int
    left_compute_milli: int
    left_memory_bytes: int
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., left_compute_milli: _Optional[int] = ..., left_memory_bytes: _Optional[int] = ..., job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("name", "devices", "connected", "drained", "heard_s", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    HEARD_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    connected: bool
    drained: bool
    heard_s: float
    why: str
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., connected: _Optional[bool] = ..., drained: _Optional[bool] = ..., heard_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("jobs", "nodes", "policy", "forecaster", "last_entry", "left_out", "failed")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FORECASTER_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    policy: str
    forecaster: str
    last_entry: int
    left_out: int
    failed: _containers.RepeatedCompositeFieldContainer[JobStatus]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., policy: _Optional[str] = ..., forecaster: _Optional[str] = ..., last_entry: _Optional[int] = ..., left_out: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after", "job_ids")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    after: int
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, after: _Optional[int] = ..., job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("entry", "at_unix_s", "what", "job_id", "node", "detail", "by")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    entry: int
    at_unix_s: float
    what: str
    job_id: str
    node: str
    detail: str
    by: str
    def __init__(self, entry: _Optional[int] = ..., at_unix_s: _Optional[float] = ..., what: _Optional[str] = ..., job_id: _Optional[str] = ..., node: _Optional[str] = ..., detail: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "undo", "evict")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    node: str
    undo: bool
    evict: bool
    def __init__(self, node: _Optional[str] = ..., undo: _Optional[bool] = ..., evict: _Optional[bool] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("node", "device", "kind", "left_compute_milli", "left_memory_bytes", "need_compute_milli", "need_memory_bytes", "runtime_s", "verdict")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEFT_COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    LEFT_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEED_COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    NEED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    node: str
    device: int
    kind: str
    left_compute_milli: int
    left_memory_bytes: int
    need_compute_milli: int
    need_memory_bytes: int
    runtime_s: float
    verdict: str
    def __init__(self, node: _Optional[str] = ..., device: _Optional[int] = ..., kind: _Optional[str] = ..., left_compute_milli: _Optional[int] = ..., left_memory_bytes: _Optional[int] = ..., need_compute_milli: _Optional[int] = ..., need_memory_bytes: _Optional[int] = ..., runtime_s: _Optional[float] = ..., verdict: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("status", "sentence", "candidates", "history")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    status: JobStatus
    sentence: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    history: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, status: _Optional[_Union[JobStatus, _Mapping]] = ..., sentence: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("kind", "memory_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    memory_bytes: int
    def __init__(self, kind: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("finished", "out_of_memory", "asked", "how", "lost")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    out_of_memory: bool
    asked: bool
    how: str
    lost: bool
    def __init__(self, finished: _Optional[bool] = ..., out_of_memory: _Optional[bool] = ..., asked: _Optional[bool] = ..., how: _Optional[str] = ..., lost: _Optional[bool] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("job_id", "attempt", "phase", "allocations", "done", "saved", "usage_milli", "memory_bytes", "peak_memory_bytes", "late", "ran_s", "exit", "why", "done_guessed", "rest_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    USAGE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DONE_GUESSED_FIELD_NUMBER: _ClassVar[int]
    REST_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    phase: TaskPhase
    allocations: _containers.RepeatedCompositeFieldContainer[Allocation]
    done: float
    saved: float
    usage_milli: float
    memory_bytes: int
    peak_memory_bytes: int
    late: bool
    ran_s: float
    exit: Exit
    why: str
    done_guessed: bool
    rest_s: float
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., phase: _Optional[_Union[TaskPhase, str]] = ..., allocations: _Optional[_Iterable[_Union[Allocation, _Mapping]]] = ..., done: _Optional[float] = ..., saved: _Optional[float] = ..., usage_milli: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., late: _Optional[bool] = ..., ran_s: _Optional[float] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ..., why: _Optional[str] = ..., done_guessed: _Optional[bool] = ..., rest_s: _Optional[float] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("node", "agent_id", "number", "devices", "tasks", "orders", "problem", "cluster_id", "takes_pieces")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    TAKES_PIECES_FIELD_NUMBER: _ClassVar[int]
    node: str
    agent_id: str
    number: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    orders: int
    problem: str
    cluster_id: str
    takes_pieces: bool
    def __init__(self, node: _Optional[str] = ..., agent_id: _Optional[str] = ..., number: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., orders: _Optional[int] = ..., problem: _Optional[str] = ..., cluster_id: _Optional[str] = ..., takes_pieces: _Optional[bool] = ...) -> None: ...

class TaskOrder(_message.Message):
    __slots__ = ("job", "attempt", "allocations", "told", "elapsed_s", "done", "end", "discard", "alone", "submission", "run_as")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    RUN_AS_FIELD_NUMBER: _ClassVar[int]
    job: Job
    attempt: int
    allocations: _containers.RepeatedCompositeFieldContainer[Allocation]
    told: _containers.RepeatedCompositeFieldContainer[Told]
    elapsed_s: float
    done: float
    end: str
    discard: bool
    alone: bool
    submission: str
    run_as: str
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., attempt: _Optional[int] = ..., allocations: _Optional[_Iterable[_Union[Allocation, _Mapping]]] = ..., told: _Optional[_Iterable[_Union[Told, _Mapping]]] = ..., elapsed_s: _Optional[float] = ..., done: _Optional[float] = ..., end: _Optional[str] = ..., discard: _Optional[bool] = ..., alone: _Optional[bool] = ..., submission: _Optional[str] = ..., run_as: _Optional[str] = ...) -> None: ...

class NodeOrders(_message.Message):
    __slots__ = ("answers", "version", "unchanged", "tasks", "forget", "sharing", "lease_s", "logs", "cluster_id", "more")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    answers: int
    version: int
    unchanged: bool
    tasks: _containers.RepeatedCompositeFieldContainer[TaskOrder]
    forget: _containers.RepeatedCompositeFieldContainer[TaskName]
    sharing: Sharing
    lease_s: float
    logs: _containers.RepeatedCompositeFieldContainer[LogWanted]
    cluster_id: str
    more: bool
    def __init__(self, answers: _Optional[int] = ..., version: _Optional[int] = ..., unchanged: _Optional[bool] = ..., tasks: _Optional[_Iterable[_Union[TaskOrder, _Mapping]]] = ..., forget: _Optional[_Iterable[_Union[TaskName, _Mapping]]] = ..., sharing: _Optional[_Union[Sharing, _Mapping]] = ..., lease_s: _Optional[float] = ..., logs: _Optional[_Iterable[_Union[LogWanted, _Mapping]]] = ..., cluster_id: _Optional[str] = ..., more: _Optional[bool] = ...) -> None: ...

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

class LogWanted(_message.Message):
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

class LogTaken(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
