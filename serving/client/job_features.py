"""Job features from a user's model, and their JSON form (``--job FILE``)."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from presage.errors import GraphError, InvalidJobError, one_line
from presage.features.graph.op_graph import OpGraph
from presage.features.graph.op_stats import OpStats, summarize
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.job.job_description import Job, JobFeatures, public_version
from presage.system.files.user_file import read_regular
from presage.system.text.known_names import did_you_mean

MAX_JSON_BYTES = 64 << 20
_MAX_DIGITS = 40


def from_graph(
    graph: OpGraph,
    *,
    name: str,
    batch_size: int,
    iterations: int,
    job_id: str = "",
    family: str = "",
    framework: str = "torch",
    framework_version: str = "",
    precision: str = "fp32",
) -> JobFeatures:
    """Return the features of a job whose training step is ``graph``, extracted at ``batch_size``.

    ``job_id`` defaults to ``name``.
    """
    return JobFeatures(
        job=Job(
            job_id=job_id or name,
            name=name,
            family=family,
            framework=framework,
            framework_version=framework_version,
            precision=precision,
            batch_size=batch_size,
            iterations=iterations,
            input_elements=graph.input_elements,
            graph_digest=graph.digest,
        ),
        op_stats=summarize(graph.nodes),
        parameters=graph.parameters,
        memory=graph.memory,
    )


def from_onnx(
    path: Path,
    *,
    batch_size: int,
    iterations: int,
    dims: Mapping[str, int] | None = None,
    optimizer: str = "sgd",
    training: bool = True,
    name: str = "",
    job_id: str = "",
    family: str = "",
    precision: str = "fp32",
) -> JobFeatures:
    """Return the features of a job that trains (or runs) the ONNX model at ``path``.

    Requires the onnx package. ``dims`` gives the symbolic dimensions other than the batch; ``name``
    defaults to the name of the file.

    Raises
    ------
    GraphError
        The file is missing, not ONNX, or leaves a shape unknown.
    """
    from presage.features.from_onnx.graph import read_onnx

    graph = read_onnx(
        path, batch_size=batch_size, dims=dims, optimizer=optimizer, training=training
    )
    return from_graph(
        graph,
        name=name or path.stem,
        batch_size=batch_size,
        iterations=iterations,
        job_id=job_id,
        family=family,
        framework="onnx",
        precision=precision,
    )


def from_tensorflow(
    path: Path,
    *,
    batch_size: int,
    iterations: int,
    dims: Mapping[str, int] | None = None,
    optimizer: str = "sgd",
    training: bool = True,
    name: str = "",
    job_id: str = "",
    family: str = "",
    precision: str = "fp32",
) -> JobFeatures:
    """Return the features of a job that trains (or runs) the TensorFlow graph at ``path``.

    Requires only numpy. ``path`` is a GraphDef, binary or text, a SavedModel or a checkpoint's
    .meta file. ``dims`` gives unknown dimensions other than the batch as "placeholder:axis". If the
    graph contains its own optimizer updates, they are used and ``optimizer`` is ignored.

    Raises
    ------
    GraphError
        The file is missing, not TensorFlow's, or leaves a shape unknown.
    """
    from presage.features.from_tensorflow.graph import read_tensorflow

    graph = read_tensorflow(
        path, batch_size=batch_size, dims=dims, optimizer=optimizer, training=training
    )
    return from_graph(
        graph,
        name=name or path.stem,
        batch_size=batch_size,
        iterations=iterations,
        job_id=job_id,
        family=family,
        framework="tensorflow",
        precision=precision,
    )


def from_module(
    module_or_factory: Any,
    inputs: Any,
    *,
    iterations: int,
    batch_size: int | None = None,
    optimizer: str = "sgd",
    training: bool = True,
    name: str = "",
    job_id: str = "",
    family: str = "",
    precision: str = "fp32",
) -> JobFeatures:
    """Return the features of a job that trains (or runs) a torch module.

    Requires torch; allocates no weights.

    Parameters
    ----------
    module_or_factory : nn.Module or callable
        A module, which stays unchanged, or a callable that builds one on the meta device.
    inputs : Tensor or sequence of Tensor
        Arguments of its ``forward``, on any device. The batch is the first dimension of the first
        one.
    batch_size : int, optional
        Batch size if the batch is not that dimension.
    precision : str
        With "bf16" or "fp16" a module with fp32 weights runs under autocast.

    Raises
    ------
    GraphError
        The module cannot be traced; names the operator.
    """
    # Imported by name: only callers that have a torch module get here; serving works without torch.
    torch = import_module("torch")
    from presage.features.from_torch.graph import trace_module

    if isinstance(module_or_factory, torch.nn.Module):
        module = _on_meta(module_or_factory)
    else:
        with torch.device("meta"):
            module = module_or_factory()
    # A single tensor is a sequence as well: of its samples.
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    meta = [tensor.to("meta") for tensor in tensors]
    if batch_size is None:
        batch_size = int(meta[0].shape[0]) if meta and meta[0].ndim else 1
    return from_graph(
        trace_module(module, meta, optimizer=optimizer, training=training, precision=precision),
        name=name or type(module).__name__,
        batch_size=batch_size,
        iterations=iterations,
        job_id=job_id,
        family=family,
        framework_version=public_version(str(torch.__version__)),
        precision=precision,
    )


def make_job_features(source: Any, **options: Any) -> JobFeatures:
    """Return job features from a model, a file or features.

    Parameters
    ----------
    source : JobFeatures, str, Path or (module, inputs)
        Features, which are returned unchanged; an ONNX file, a JSON file of features or a
        TensorFlow graph; or a torch module or a factory of one with its inputs.
    **options
        Options of :func:`from_onnx`, :func:`from_tensorflow` or :func:`from_module`:
        ``iterations``, for files ``batch_size``, and so on. Features take no options.

    Raises
    ------
    GraphError, InvalidJobError
        As raised by those functions; or options were given with features.
    """
    if isinstance(source, tuple):
        return from_module(*source, **options)
    path = None if isinstance(source, JobFeatures) else Path(source)
    if path is not None and path.suffix != ".json":
        return (from_onnx if path.suffix == ".onnx" else from_tensorflow)(path, **options)
    if options:
        raise InvalidJobError(
            f"job features define {', '.join(sorted(options))} already; omit the option, or give "
            "the model instead of its features"
        )
    if path is None:
        features: JobFeatures = source
        return features
    return read_json_file(path)


def _on_meta(module: Any) -> Any:
    """Return a copy of a module with its weights on the meta device, without allocating them."""
    on_meta: dict[int, Any] = {}
    for tensor in module.parameters():
        on_meta[id(tensor)] = type(tensor)(tensor.detach().to("meta"), tensor.requires_grad)
    for tensor in module.buffers():
        on_meta[id(tensor)] = tensor.detach().to("meta")
    return copy.deepcopy(module, on_meta)


def to_json(features: JobFeatures) -> str:
    """Return the protobuf JSON of a ``presage.v1.Job``.

    Protobuf JSON writes 64-bit integers as strings and omits fields that are 0, false or empty.
    """
    from google.protobuf.json_format import MessageToDict

    from presage.serving.codec.wire_values import write_job

    message = MessageToDict(write_job(features), preserving_proto_field_name=True)
    return json.dumps(message, indent=2) + "\n"


def from_json(text: str, *, source: str = "job") -> JobFeatures:
    """Return the features of a job from its JSON text.

    The text is a ``presage.v1.Job`` in protobuf JSON, or the earlier form: an object with ``job``,
    ``op_stats``, ``parameters`` and ``memory``.

    Parameters
    ----------
    source : str
        Name for errors, such as the name of the file.

    Raises
    ------
    InvalidJobError
        The text is not JSON, or a field is missing, unknown, of another type or out of range;
        names the field.
    """
    try:
        content = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise InvalidJobError(
            f"{source}: not JSON ({error}); write it with `presage features --json`"
        ) from error
    if isinstance(content, dict) and "job" not in content:
        return _from_message(content, source)
    return _from_fields(content, source)


def read_json_file(path: Path) -> JobFeatures:
    """Return the features of a job from its JSON file.

    Raises
    ------
    InvalidJobError
        The file cannot be read, is not a regular file or too large; or as :func:`from_json`.
    """
    try:
        text = read_regular(path, MAX_JSON_BYTES).decode()
    except OSError as error:
        raise InvalidJobError(
            f"{path}: cannot be read ({error.strerror}); check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidJobError(
            f"{path}: not text ({error.reason}); write it with `presage features --json`"
        ) from error
    return from_json(text, source=str(path))


def _from_message(content: dict[str, Any], source: str) -> JobFeatures:
    """Return features from protobuf JSON."""
    from google.protobuf.json_format import ParseDict, ParseError

    from presage.serving.codec.wire_values import read_job
    from presage.serving.v1 import prediction_pb2 as pb

    try:
        row = ParseDict(dict(content), pb.Job(), max_recursion_depth=8)
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = one_line(str(error).partition("Available Fields")[0]).rstrip(" .")
        raise InvalidJobError(
            f"{source}: {reason}; write the file with `presage features --json`"
        ) from error
    try:
        return read_job(row, "job")
    except InvalidJobError as error:
        raise InvalidJobError(f"{source}: {one_line(error)}") from error


def _from_fields(content: Any, source: str) -> JobFeatures:
    """Return features from the form that preceded protobuf JSON."""
    top = _checked(JobFeatures, content, source, at="")
    if not isinstance(top["op_stats"], list):
        raise InvalidJobError(f"{source}: op_stats must be a list of objects")
    job_fields = _checked(Job, top["job"], source, at="job")
    op_rows = [
        _checked(OpStats, row, source, at=f"op_stats[{i}]") for i, row in enumerate(top["op_stats"])
    ]
    memory_fields = _checked(MemoryEstimate, top["memory"], source, at="memory")
    try:
        top["job"] = Job(**job_fields)
        top["memory"] = _memory(memory_fields)
        top["op_stats"] = tuple(_op_stats(row, i) for i, row in enumerate(op_rows))
        return JobFeatures(**top)
    except InvalidJobError as error:
        raise InvalidJobError(f"{source}: {one_line(error)}") from error


def _op_stats(row: Mapping[str, Any], position: int) -> OpStats:
    try:
        return OpStats(**row)
    except InvalidJobError as error:
        raise InvalidJobError(f"op_stats[{position}]: {error}") from error


def _memory(row: Mapping[str, Any]) -> MemoryEstimate:
    try:
        return MemoryEstimate(**row)
    except GraphError as error:
        raise InvalidJobError(str(error).replace("memory estimate: ", "memory.", 1)) from error


# Annotation -> types and their name in errors; other fields are nested values, checked separately.
_JSON_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
}


def _checked(cls: Any, row: Any, source: str, *, at: str) -> dict[str, Any]:
    """Return the fields of ``row`` after checking names and types against the dataclass ``cls``."""
    if not isinstance(row, dict):
        raise InvalidJobError(
            f"{source}: {at or 'the file'} must be an object with the fields of {cls.__name__}"
        )
    prefix = f"{at}." if at else ""
    known = {field.name: field for field in fields(cls)}
    for name in row:
        if name not in known:
            raise InvalidJobError(
                f"{source}: {prefix}{name} is not a field; {did_you_mean(name, known)}"
            )
    for name, field in known.items():
        if name not in row:
            if field.default is MISSING:
                raise InvalidJobError(f"{source}: {prefix}{name} is missing; give it")
            continue
        value, (types, noun) = row[name], _JSON_TYPES.get(str(field.type), ((object,), ""))
        # bool is a subclass of int, but not a valid number of a job.
        if not isinstance(value, types) or (noun and isinstance(value, bool)):
            raise InvalidJobError(
                f"{source}: {prefix}{name}={one_line(repr(value))}, must be {noun}; "
                "write the file with `presage features --json`"
            )
    return dict(row)


def _parse_int(text: str) -> int | float:
    """Return an integer; return numbers too large for any field as a float, possibly infinite."""
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a valid number of a job")
