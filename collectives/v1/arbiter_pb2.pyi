from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Way(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RING: _ClassVar[Way]
    INC: _ClassVar[Way]
    REFUSED: _ClassVar[Way]
RING: Way
INC: Way
REFUSED: Way

class RankMessage(_message.Message):
    __slots__ = ("registration", "report", "adopted", "ack", "done", "leave")
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    registration: Registration
    report: Report
    adopted: Adopted
    ack: Ack
    done: Done
    leave: Leave
    def __init__(self, registration: _Optional[_Union[Registration, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., adopted: _Optional[_Union[Adopted, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class ArbiterMessage(_message.Message):
    __slots__ = ("registered", "view_update", "prepare", "update", "abort")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    VIEW_UPDATE_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    view_update: ViewUpdate
    prepare: Prepare
    update: Update
    abort: Abort
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., view_update: _Optional[_Union[ViewUpdate, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("job", "rank", "ranks", "job_token_sha256", "node", "instance", "agreement", "views", "newest_epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    JOB_TOKEN_SHA256_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    ranks: int
    job_token_sha256: bytes
    node: str
    instance: str
    agreement: str
    views: _containers.RepeatedCompositeFieldContainer[JobView]
    newest_epoch: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., ranks: _Optional[int] = ..., job_token_sha256: _Optional[bytes] = ..., node: _Optional[str] = ..., instance: _Optional[str] = ..., agreement: _Optional[str] = ..., views: _Optional[_Iterable[_Union[JobView, _Mapping]]] = ..., newest_epoch: _Optional[int] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("switches",)
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    def __init__(self, switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("name", "host", "port", "token", "epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    port: int
    token: str
    epoch: int
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("started", "phases", "counts", "decisions")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    started: int
    phases: Phases
    counts: Counts
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    def __init__(self, started: _Optional[int] = ..., phases: _Optional[_Union[Phases, _Mapping]] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ...) -> None: ...

class Phases(_message.Message):
    __slots__ = ("period_s", "calls", "anchor_number", "anchor_age_s", "margin_s")
    PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_AGE_S_FIELD_NUMBER: _ClassVar[int]
    MARGIN_S_FIELD_NUMBER: _ClassVar[int]
    period_s: float
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    anchor_number: int
    anchor_age_s: float
    margin_s: float
    def __init__(self, period_s: _Optional[float] = ..., calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ..., anchor_number: _Optional[int] = ..., anchor_age_s: _Optional[float] = ..., margin_s: _Optional[float] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("offset_s", "size_bytes", "shift_s")
    OFFSET_S_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHIFT_S_FIELD_NUMBER: _ClassVar[int]
    offset_s: float
    size_bytes: int
    shift_s: float
    def __init__(self, offset_s: _Optional[float] = ..., size_bytes: _Optional[int] = ..., shift_s: _Optional[float] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("inc", "ring", "refused", "saved_s")
    INC_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SAVED_S_FIELD_NUMBER: _ClassVar[int]
    inc: int
    ring: int
    refused: int
    saved_s: float
    def __init__(self, inc: _Optional[int] = ..., ring: _Optional[int] = ..., refused: _Optional[int] = ..., saved_s: _Optional[float] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("number", "age_s", "duration_s", "size_bytes", "reason", "way")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    number: int
    age_s: float
    duration_s: float
    size_bytes: int
    reason: int
    way: Way
    def __init__(self, number: _Optional[int] = ..., age_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., size_bytes: _Optional[int] = ..., reason: _Optional[int] = ..., way: _Optional[_Union[Way, str]] = ...) -> None: ...

class JobView(_message.Message):
    __slots__ = ("epoch", "first_number", "decisions")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first_number: int
    decisions: bytes
    def __init__(self, epoch: _Optional[int] = ..., first_number: _Optional[int] = ..., decisions: _Optional[bytes] = ...) -> None: ...

class ViewUpdate(_message.Message):
    __slots__ = ("views",)
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    views: _containers.RepeatedCompositeFieldContainer[JobView]
    def __init__(self, views: _Optional[_Iterable[_Union[JobView, _Mapping]]] = ...) -> None: ...

class Adopted(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("tag",)
    TAG_FIELD_NUMBER: _ClassVar[int]
    tag: int
    def __init__(self, tag: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("tag", "number")
    TAG_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    tag: int
    number: int
    def __init__(self, tag: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("tag", "view")
    TAG_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    tag: int
    view: JobView
    def __init__(self, tag: _Optional[int] = ..., view: _Optional[_Union[JobView, _Mapping]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("tag",)
    TAG_FIELD_NUMBER: _ClassVar[int]
    tag: int
    def __init__(self, tag: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("tag",)
    TAG_FIELD_NUMBER: _ClassVar[int]
    tag: int
    def __init__(self, tag: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("agreement", "epoch", "stage", "switches", "jobs", "notices")
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    agreement: str
    epoch: int
    stage: str
    switches: _containers.RepeatedCompositeFieldContainer[SwitchStatus]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    notices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agreement: _Optional[str] = ..., epoch: _Optional[int] = ..., stage: _Optional[str] = ..., switches: _Optional[_Iterable[_Union[SwitchStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., notices: _Optional[_Iterable[str]] = ...) -> None: ...

class SwitchStatus(_message.Message):
    __slots__ = ("name", "host", "port", "slots", "is_reachable", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    IS_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    port: int
    slots: int
    is_reachable: bool
    problem: str
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., slots: _Optional[int] = ..., is_reachable: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "ranks", "connected", "switches", "epoch", "first_number", "window", "started", "period_s", "counts", "state", "reasons", "mean_saved_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    MEAN_SAVED_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    ranks: int
    connected: int
    switches: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    first_number: int
    window: int
    started: int
    period_s: float
    counts: Counts
    state: str
    reasons: _containers.RepeatedCompositeFieldContainer[ReasonCount]
    mean_saved_s: float
    def __init__(self, job: _Optional[str] = ..., ranks: _Optional[int] = ..., connected: _Optional[int] = ..., switches: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., first_number: _Optional[int] = ..., window: _Optional[int] = ..., started: _Optional[int] = ..., period_s: _Optional[float] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., state: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[ReasonCount, _Mapping]]] = ..., mean_saved_s: _Optional[float] = ...) -> None: ...

class ReasonCount(_message.Message):
    __slots__ = ("reason", "text", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: int
    text: str
    count: int
    def __init__(self, reason: _Optional[int] = ..., text: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("job", "number")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    job: str
    number: int
    def __init__(self, job: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("job", "number", "is_allowed", "reason", "summary", "details")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    job: str
    number: int
    is_allowed: bool
    reason: int
    summary: str
    details: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., number: _Optional[int] = ..., is_allowed: _Optional[bool] = ..., reason: _Optional[int] = ..., summary: _Optional[str] = ..., details: _Optional[_Iterable[str]] = ...) -> None: ...

class TimelineRequest(_message.Message):
    __slots__ = ("last_s",)
    LAST_S_FIELD_NUMBER: _ClassVar[int]
    last_s: float
    def __init__(self, last_s: _Optional[float] = ...) -> None: ...

class TimelineResponse(_message.Message):
    __slots__ = ("rows", "switches")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[TimelineRow]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchStatus]
    def __init__(self, rows: _Optional[_Iterable[_Union[TimelineRow, _Mapping]]] = ..., switches: _Optional[_Iterable[_Union[SwitchStatus, _Mapping]]] = ...) -> None: ...

class TimelineRow(_message.Message):
    __slots__ = ("job", "switches", "decision")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    job: str
    switches: _containers.RepeatedScalarFieldContainer[str]
    decision: Decision
    def __init__(self, job: _Optional[str] = ..., switches: _Optional[_Iterable[str]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...
