from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Job(_message.Message):
    __slots__ = ("job_id", "name", "family", "framework", "precision", "batch_size", "iterations", "input_elements", "graph_digest", "parameters", "peak_live_bytes", "op_stats", "memory_format", "loads_data", "framework_version", "memory")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    INPUT_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PEAK_LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OP_STATS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    LOADS_DATA_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    family: str
    framework: str
    precision: str
    batch_size: int
    iterations: int
    input_elements: int
    graph_digest: str
    parameters: int
    peak_live_bytes: int
    op_stats: _containers.RepeatedCompositeFieldContainer[OpStats]
    memory_format: str
    loads_data: bool
    framework_version: str
    memory: Memory
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., family: _Optional[str] = ..., framework: _Optional[str] = ..., precision: _Optional[str] = ..., batch_size: _Optional[int] = ..., iterations: _Optional[int] = ..., input_elements: _Optional[int] = ..., graph_digest: _Optional[str] = ..., parameters: _Optional[int] = ..., peak_live_bytes: _Optional[int] = ..., op_stats: _Optional[_Iterable[_Union[OpStats, _Mapping]]] = ..., memory_format: _Optional[str] = ..., loads_data: _Optional[bool] = ..., framework_version: _Optional[str] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes", "workspace_bytes", "batch_bytes")
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int
    workspace_bytes: int
    batch_bytes: int
    def __init__(self, parameter_bytes: _Optional[int] = ..., gradient_bytes: _Optional[int] = ..., optimizer_state_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., workspace_bytes: _Optional[int] = ..., batch_bytes: _Optional[int] = ...) -> None: ...

class OpStats(_message.Message):
    __slots__ = ("kind", "phase", "intensity_octave", "count", "input_elements_max", "input_elements", "output_elements", "flops", "bytes_moved", "parameters", "shape")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    INTENSITY_OCTAVE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INPUT_ELEMENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    INPUT_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    phase: str
    intensity_octave: int
    count: int
    input_elements_max: int
    input_elements: int
    output_elements: int
    flops: float
    bytes_moved: float
    parameters: int
    shape: str
    def __init__(self, kind: _Optional[str] = ..., phase: _Optional[str] = ..., intensity_octave: _Optional[int] = ..., count: _Optional[int] = ..., input_elements_max: _Optional[int] = ..., input_elements: _Optional[int] = ..., output_elements: _Optional[int] = ..., flops: _Optional[float] = ..., bytes_moved: _Optional[float] = ..., parameters: _Optional[int] = ..., shape: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "data_sheet", "share")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_SHEET_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    data_sheet: DataSheet
    share: Share
    def __init__(self, kind: _Optional[str] = ..., data_sheet: _Optional[_Union[DataSheet, _Mapping]] = ..., share: _Optional[_Union[Share, _Mapping]] = ...) -> None: ...

class DataSheet(_message.Message):
    __slots__ = ("compute_capability", "memory_bytes", "cores", "peak_flops_per_s", "memory_bandwidth_bytes_per_s", "op_overhead_s", "context_bytes")
    class PeakFlopsPerSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    PEAK_FLOPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    OP_OVERHEAD_S_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    compute_capability: float
    memory_bytes: int
    cores: int
    peak_flops_per_s: _containers.ScalarMap[str, float]
    memory_bandwidth_bytes_per_s: float
    op_overhead_s: float
    context_bytes: int
    def __init__(self, compute_capability: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., cores: _Optional[int] = ..., peak_flops_per_s: _Optional[_Mapping[str, float]] = ..., memory_bandwidth_bytes_per_s: _Optional[float] = ..., op_overhead_s: _Optional[float] = ..., context_bytes: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("fraction", "mode")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    mode: str
    def __init__(self, fraction: _Optional[float] = ..., mode: _Optional[str] = ...) -> None: ...

class Correction(_message.Message):
    __slots__ = ("factor", "runs", "source")
    class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Correction.Source]
        JOB_ON_DEVICE: _ClassVar[Correction.Source]
        DEVICE: _ClassVar[Correction.Source]
        PRECISION: _ClassVar[Correction.Source]
        JOB: _ClassVar[Correction.Source]
        COLOCATED_JOBS: _ClassVar[Correction.Source]
    NONE: Correction.Source
    JOB_ON_DEVICE: Correction.Source
    DEVICE: Correction.Source
    PRECISION: Correction.Source
    JOB: Correction.Source
    COLOCATED_JOBS: Correction.Source
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    factor: float
    runs: int
    source: Correction.Source
    def __init__(self, factor: _Optional[float] = ..., runs: _Optional[int] = ..., source: _Optional[_Union[Correction.Source, str]] = ...) -> None: ...

class Forecast(_message.Message):
    __slots__ = ("median", "low", "high", "unit", "in_domain", "quantiles", "domain_error_ratio", "correction")
    MEDIAN_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    IN_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ERROR_RATIO_FIELD_NUMBER: _ClassVar[int]
    CORRECTION_FIELD_NUMBER: _ClassVar[int]
    median: float
    low: float
    high: float
    unit: str
    in_domain: bool
    quantiles: _containers.RepeatedScalarFieldContainer[float]
    domain_error_ratio: float
    correction: Correction
    def __init__(self, median: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., unit: _Optional[str] = ..., in_domain: _Optional[bool] = ..., quantiles: _Optional[_Iterable[float]] = ..., domain_error_ratio: _Optional[float] = ..., correction: _Optional[_Union[Correction, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("grpc_status_code", "message")
    GRPC_STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    grpc_status_code: int
    message: str
    def __init__(self, grpc_status_code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("job_index", "device_index", "share")
    JOB_INDEX_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    job_index: int
    device_index: int
    share: Share
    def __init__(self, job_index: _Optional[int] = ..., device_index: _Optional[int] = ..., share: _Optional[_Union[Share, _Mapping]] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("jobs", "devices", "placements", "coverage", "levels")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    coverage: float
    levels: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., coverage: _Optional[float] = ..., levels: _Optional[_Iterable[float]] = ...) -> None: ...

class JobForecast(_message.Message):
    __slots__ = ("compute_utilization", "memory_bytes", "step_time_s", "runtime_s", "error", "additional")
    class AdditionalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Forecast
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Forecast, _Mapping]] = ...) -> None: ...
    COMPUTE_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_FIELD_NUMBER: _ClassVar[int]
    compute_utilization: Forecast
    memory_bytes: Forecast
    step_time_s: Forecast
    runtime_s: Forecast
    error: Error
    additional: _containers.MessageMap[str, Forecast]
    def __init__(self, compute_utilization: _Optional[_Union[Forecast, _Mapping]] = ..., memory_bytes: _Optional[_Union[Forecast, _Mapping]] = ..., step_time_s: _Optional[_Union[Forecast, _Mapping]] = ..., runtime_s: _Optional[_Union[Forecast, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., additional: _Optional[_Mapping[str, Forecast]] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("forecasts", "release_id", "coverage", "levels")
    FORECASTS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    forecasts: _containers.RepeatedCompositeFieldContainer[JobForecast]
    release_id: str
    coverage: float
    levels: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, forecasts: _Optional[_Iterable[_Union[JobForecast, _Mapping]]] = ..., release_id: _Optional[str] = ..., coverage: _Optional[float] = ..., levels: _Optional[_Iterable[float]] = ...) -> None: ...

class Colocation(_message.Message):
    __slots__ = ("device_index", "members")
    class Member(_message.Message):
        __slots__ = ("job_index", "share")
        JOB_INDEX_FIELD_NUMBER: _ClassVar[int]
        SHARE_FIELD_NUMBER: _ClassVar[int]
        job_index: int
        share: Share
        def __init__(self, job_index: _Optional[int] = ..., share: _Optional[_Union[Share, _Mapping]] = ...) -> None: ...
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    device_index: int
    members: _containers.RepeatedCompositeFieldContainer[Colocation.Member]
    def __init__(self, device_index: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Colocation.Member, _Mapping]]] = ...) -> None: ...

class PredictInterferenceRequest(_message.Message):
    __slots__ = ("jobs", "devices", "colocations", "coverage", "levels")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    COLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    colocations: _containers.RepeatedCompositeFieldContainer[Colocation]
    coverage: float
    levels: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., colocations: _Optional[_Iterable[_Union[Colocation, _Mapping]]] = ..., coverage: _Optional[float] = ..., levels: _Optional[_Iterable[float]] = ...) -> None: ...

class ColocationForecast(_message.Message):
    __slots__ = ("slowdowns", "fits", "fit_probability", "error")
    SLOWDOWNS_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    FIT_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    slowdowns: _containers.RepeatedCompositeFieldContainer[Forecast]
    fits: bool
    fit_probability: float
    error: Error
    def __init__(self, slowdowns: _Optional[_Iterable[_Union[Forecast, _Mapping]]] = ..., fits: _Optional[bool] = ..., fit_probability: _Optional[float] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class PredictInterferenceResponse(_message.Message):
    __slots__ = ("forecasts", "release_id", "coverage", "levels")
    FORECASTS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    forecasts: _containers.RepeatedCompositeFieldContainer[ColocationForecast]
    release_id: str
    coverage: float
    levels: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, forecasts: _Optional[_Iterable[_Union[ColocationForecast, _Mapping]]] = ..., release_id: _Optional[str] = ..., coverage: _Optional[float] = ..., levels: _Optional[_Iterable[float]] = ...) -> None: ...

class GpuPlacement(_message.Message):
    __slots__ = ("gpus", "nodes", "batch_size")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    gpus: int
    nodes: int
    batch_size: float
    def __init__(self, gpus: _Optional[int] = ..., nodes: _Optional[int] = ..., batch_size: _Optional[float] = ...) -> None: ...

class MeasuredStep(_message.Message):
    __slots__ = ("placement", "step_time_s")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    placement: GpuPlacement
    step_time_s: float
    def __init__(self, placement: _Optional[_Union[GpuPlacement, _Mapping]] = ..., step_time_s: _Optional[float] = ...) -> None: ...

class PredictScalingRequest(_message.Message):
    __slots__ = ("job", "device", "requested", "placements", "measured", "coverage")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    job: Job
    device: Device
    requested: GpuPlacement
    placements: _containers.RepeatedCompositeFieldContainer[GpuPlacement]
    measured: _containers.RepeatedCompositeFieldContainer[MeasuredStep]
    coverage: float
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., requested: _Optional[_Union[GpuPlacement, _Mapping]] = ..., placements: _Optional[_Iterable[_Union[GpuPlacement, _Mapping]]] = ..., measured: _Optional[_Iterable[_Union[MeasuredStep, _Mapping]]] = ..., coverage: _Optional[float] = ...) -> None: ...

class ScalingForecast(_message.Message):
    __slots__ = ("step_time_s", "speedup", "sync_share", "extrapolated")
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    SYNC_SHARE_FIELD_NUMBER: _ClassVar[int]
    EXTRAPOLATED_FIELD_NUMBER: _ClassVar[int]
    step_time_s: Forecast
    speedup: Forecast
    sync_share: float
    extrapolated: bool
    def __init__(self, step_time_s: _Optional[_Union[Forecast, _Mapping]] = ..., speedup: _Optional[_Union[Forecast, _Mapping]] = ..., sync_share: _Optional[float] = ..., extrapolated: _Optional[bool] = ...) -> None: ...

class PredictScalingResponse(_message.Message):
    __slots__ = ("forecasts", "release_id", "coverage", "law_fitted")
    FORECASTS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    LAW_FITTED_FIELD_NUMBER: _ClassVar[int]
    forecasts: _containers.RepeatedCompositeFieldContainer[ScalingForecast]
    release_id: str
    coverage: float
    law_fitted: bool
    def __init__(self, forecasts: _Optional[_Iterable[_Union[ScalingForecast, _Mapping]]] = ..., release_id: _Optional[str] = ..., coverage: _Optional[float] = ..., law_fitted: _Optional[bool] = ...) -> None: ...

class PredictMatrixRequest(_message.Message):
    __slots__ = ("schema_hash", "features", "device_kinds", "device_index", "precisions", "iterations")
    class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FP32: _ClassVar[PredictMatrixRequest.Precision]
        TF32: _ClassVar[PredictMatrixRequest.Precision]
        FP16: _ClassVar[PredictMatrixRequest.Precision]
        BF16: _ClassVar[PredictMatrixRequest.Precision]
        FP64: _ClassVar[PredictMatrixRequest.Precision]
    FP32: PredictMatrixRequest.Precision
    TF32: PredictMatrixRequest.Precision
    FP16: PredictMatrixRequest.Precision
    BF16: PredictMatrixRequest.Precision
    FP64: PredictMatrixRequest.Precision
    SCHEMA_HASH_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KINDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PRECISIONS_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    schema_hash: str
    features: bytes
    device_kinds: _containers.RepeatedScalarFieldContainer[str]
    device_index: _containers.RepeatedScalarFieldContainer[int]
    precisions: _containers.RepeatedScalarFieldContainer[PredictMatrixRequest.Precision]
    iterations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, schema_hash: _Optional[str] = ..., features: _Optional[bytes] = ..., device_kinds: _Optional[_Iterable[str]] = ..., device_index: _Optional[_Iterable[int]] = ..., precisions: _Optional[_Iterable[_Union[PredictMatrixRequest.Precision, str]]] = ..., iterations: _Optional[_Iterable[int]] = ...) -> None: ...

class PredictMatrixResponse(_message.Message):
    __slots__ = ("release_id", "levels", "compute_utilization", "memory_bytes", "step_time_s", "runtime_s", "in_domain", "additional")
    class AdditionalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MatrixQuantiles
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MatrixQuantiles, _Mapping]] = ...) -> None: ...
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    IN_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_FIELD_NUMBER: _ClassVar[int]
    release_id: str
    levels: _containers.RepeatedScalarFieldContainer[float]
    compute_utilization: bytes
    memory_bytes: bytes
    step_time_s: bytes
    runtime_s: bytes
    in_domain: bytes
    additional: _containers.MessageMap[str, MatrixQuantiles]
    def __init__(self, release_id: _Optional[str] = ..., levels: _Optional[_Iterable[float]] = ..., compute_utilization: _Optional[bytes] = ..., memory_bytes: _Optional[bytes] = ..., step_time_s: _Optional[bytes] = ..., runtime_s: _Optional[bytes] = ..., in_domain: _Optional[bytes] = ..., additional: _Optional[_Mapping[str, MatrixQuantiles]] = ...) -> None: ...

class MatrixQuantiles(_message.Message):
    __slots__ = ("values", "in_domain")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    IN_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    in_domain: bytes
    def __init__(self, values: _Optional[bytes] = ..., in_domain: _Optional[bytes] = ...) -> None: ...

class PredictStreamRequest(_message.Message):
    __slots__ = ("request_id", "predict", "predict_interference")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PREDICT_FIELD_NUMBER: _ClassVar[int]
    PREDICT_INTERFERENCE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    predict: PredictRequest
    predict_interference: PredictInterferenceRequest
    def __init__(self, request_id: _Optional[int] = ..., predict: _Optional[_Union[PredictRequest, _Mapping]] = ..., predict_interference: _Optional[_Union[PredictInterferenceRequest, _Mapping]] = ...) -> None: ...

class PredictStreamResponse(_message.Message):
    __slots__ = ("request_id", "predict", "predict_interference", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PREDICT_FIELD_NUMBER: _ClassVar[int]
    PREDICT_INTERFERENCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    predict: PredictResponse
    predict_interference: PredictInterferenceResponse
    error: Error
    def __init__(self, request_id: _Optional[int] = ..., predict: _Optional[_Union[PredictResponse, _Mapping]] = ..., predict_interference: _Optional[_Union[PredictInterferenceResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("job", "device", "share", "release_id", "finished_at_unix_s", "compute_utilization", "memory_peak_bytes", "step_time_median_s", "runtime_s", "failure", "idempotency_key", "colocated_jobs", "additional")
    class ColocatedJob(_message.Message):
        __slots__ = ("job", "share")
        JOB_FIELD_NUMBER: _ClassVar[int]
        SHARE_FIELD_NUMBER: _ClassVar[int]
        job: Job
        share: Share
        def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., share: _Optional[_Union[Share, _Mapping]] = ...) -> None: ...
    class AdditionalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_MEDIAN_S_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    COLOCATED_JOBS_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_FIELD_NUMBER: _ClassVar[int]
    job: Job
    device: Device
    share: Share
    release_id: str
    finished_at_unix_s: float
    compute_utilization: float
    memory_peak_bytes: int
    step_time_median_s: float
    runtime_s: float
    failure: str
    idempotency_key: str
    colocated_jobs: _containers.RepeatedCompositeFieldContainer[Outcome.ColocatedJob]
    additional: _containers.ScalarMap[str, float]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., release_id: _Optional[str] = ..., finished_at_unix_s: _Optional[float] = ..., compute_utilization: _Optional[float] = ..., memory_peak_bytes: _Optional[int] = ..., step_time_median_s: _Optional[float] = ..., runtime_s: _Optional[float] = ..., failure: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., colocated_jobs: _Optional[_Iterable[_Union[Outcome.ColocatedJob, _Mapping]]] = ..., additional: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ReportOutcomesRequest(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ...) -> None: ...

class ReportOutcomesResponse(_message.Message):
    __slots__ = ("accepted", "duplicates", "rejected")
    class Rejection(_message.Message):
        __slots__ = ("index", "error")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        index: int
        error: Error
        def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    duplicates: int
    rejected: _containers.RepeatedCompositeFieldContainer[ReportOutcomesResponse.Rejection]
    def __init__(self, accepted: _Optional[int] = ..., duplicates: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[ReportOutcomesResponse.Rejection, _Mapping]]] = ...) -> None: ...

class GetReleaseRequest(_message.Message):
    __slots__ = ("device_kinds",)
    DEVICE_KINDS_FIELD_NUMBER: _ClassVar[int]
    device_kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device_kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class GetReleaseResponse(_message.Message):
    __slots__ = ("release_id", "schema_hash", "columns", "op_kinds", "levels", "devices", "trained_devices", "metrics_json", "loaded_at_unix_s", "rejected_release")
    class RejectedRelease(_message.Message):
        __slots__ = ("reason", "rejected_at_unix_s")
        REASON_FIELD_NUMBER: _ClassVar[int]
        REJECTED_AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
        reason: str
        rejected_at_unix_s: float
        def __init__(self, reason: _Optional[str] = ..., rejected_at_unix_s: _Optional[float] = ...) -> None: ...
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_HASH_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OP_KINDS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TRAINED_DEVICES_FIELD_NUMBER: _ClassVar[int]
    METRICS_JSON_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REJECTED_RELEASE_FIELD_NUMBER: _ClassVar[int]
    release_id: str
    schema_hash: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    op_kinds: _containers.RepeatedScalarFieldContainer[str]
    levels: _containers.RepeatedScalarFieldContainer[float]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    trained_devices: _containers.RepeatedScalarFieldContainer[str]
    metrics_json: str
    loaded_at_unix_s: float
    rejected_release: GetReleaseResponse.RejectedRelease
    def __init__(self, release_id: _Optional[str] = ..., schema_hash: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., op_kinds: _Optional[_Iterable[str]] = ..., levels: _Optional[_Iterable[float]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., trained_devices: _Optional[_Iterable[str]] = ..., metrics_json: _Optional[str] = ..., loaded_at_unix_s: _Optional[float] = ..., rejected_release: _Optional[_Union[GetReleaseResponse.RejectedRelease, _Mapping]] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
