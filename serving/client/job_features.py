"""From a user's model to what a prediction is asked with, and its JSON form (``--job FILE``)."""

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
from presage.features.job.job import Job, JobFeatures, public_version
from presage.system.known_names import did_you_mean
from presage.system.user_file import read_regular

MOST_JSON_BYTES = 64 << 20
_MOST_DIGITS = 40


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
    """Features of a job whose training step is ``graph``, extracted at ``batch_size``.

    ``job_id`` is ``name`` when it is not given.
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
    """Features of a job that trains (or runs) the ONNX model at ``path``; needs the onnx package.

    ``dims`` gives the model's symbolic dimensions other than the batch; ``name`` is the file's
    when it is not given.

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
    """Features of a job that trains (or runs) the TensorFlow graph at ``path``; needs numpy.

    ``path`` is a GraphDef, binary or text, a SavedModel or a checkpoint's .meta file. ``dims``
    gives open dimensions other than the batch as "placeholder:axis". A graph that holds its own
    updates is taken with them, whatever ``optimizer`` says.

    Raises
    ------
    GraphError
        The file is missing, not TensorFlow's, or leaves a shape open.
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
    """Features of a job that trains (or runs) a torch module; needs torch, allocates no weight.

    Parameters
    ----------
    module_or_factory : nn.Module or callable
        A module, which is left as it is, or what builds one: then it is built on the meta device.
    inputs : Tensor or sequence of Tensor
        Arguments of its ``forward``, on any device; the batch is the first one's first dimension.
    batch_size : int, optional
        Where the batch is not that dimension.
    precision : str
        In "bf16" and "fp16" a module with weights of fp32 runs under autocast.

    Raises
    ------
    GraphError
        The module cannot be traced; names the operator.
    """
    # By name: only a caller that has a torch module comes here, and serving does without torch.
    torch = import_module("torch")
    from presage.features.from_torch.graph import trace_module

    if isinstance(module_or_factory, torch.nn.Module):
        module = _on_meta(module_or_factory)
    else:
        with torch.device("meta"):
            module = module_or_factory()
    # A lone tensor is a sequence too: of its samples.
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


def job_of(what: Any, **options: Any) -> JobFeatures:
    """Features of whatever a user has of a job.

    Parameters
    ----------
    what : JobFeatures, str, Path or (module, inputs)
        Features as they are; an ONNX file, a JSON file of features, a TensorFlow graph; a torch
        module or what builds one, with its inputs.
    **options
        Of :func:`from_onnx`, :func:`from_tensorflow` or :func:`from_module`: ``iterations``, for
        files ``batch_size``, ...; none of features.

    Raises
    ------
    GraphError, InvalidJobError
        As those do; or options were given to features, which have their own.
    """
    if isinstance(what, tuple):
        return from_module(*what, **options)
    path = None if isinstance(what, JobFeatures) else Path(what)
    if path is not None and path.suffix != ".json":
        return (from_onnx if path.suffix == ".onnx" else from_tensorflow)(path, **options)
    if options:
        raise InvalidJobError(
            f"job features have their own {', '.join(sorted(options))}; leave that out, or give "
            "the model that they are of"
        )
    if path is None:
        features: JobFeatures = what
        return features
    return read_json_file(path)


def _on_meta(module: Any) -> Any:
    """A copy of a module whose weights are on the meta device; not even the copy allocates them."""
    on_meta: dict[int, Any] = {}
    for tensor in module.parameters():
        on_meta[id(tensor)] = type(tensor)(tensor.detach().to("meta"), tensor.requires_grad)
    for tensor in module.buffers():
        on_meta[id(tensor)] = tensor.detach().to("meta")
    return copy.deepcopy(module, on_meta)


def to_json(features: JobFeatures) -> str:
    """Return the protobuf JSON of a ``presage.v1.Job``, which every client and server takes.

    Whole numbers of 64 bits are texts there, and fields that are 0, false or empty left out.
    """
    from google.protobuf.json_format import MessageToDict

    from presage.serving.codec.wire import write_job

    message = MessageToDict(write_job(features), preserving_proto_field_name=True)
    return json.dumps(message, indent=2) + "\n"


def from_json(text: str, *, source: str = "job") -> JobFeatures:
    """Return the features of a job from its JSON text.

    It is a ``presage.v1.Job`` in protobuf JSON, or the form that was written before it: an object
    with ``job``, ``op_stats``, ``parameters`` and ``memory``.

    Parameters
    ----------
    source : str
        What errors call it: the name of its file.

    Raises
    ------
    InvalidJobError
        Not JSON, or a field is missing, unknown, of another type or out of bounds; names it.
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
        It cannot be read, is no regular file or too large; or as :func:`from_json`.
    """
    try:
        text = read_regular(path, MOST_JSON_BYTES).decode()
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
    """Of protobuf JSON."""
    from google.protobuf.json_format import ParseDict, ParseError

    from presage.serving.codec.wire import read_job
    from presage.serving.v1 import prediction_pb2 as pb

    try:
        row = ParseDict(dict(content), pb.Job(), max_recursion_depth=8)
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        said = one_line(str(error).partition("Available Fields")[0]).rstrip(" .")
        raise InvalidJobError(
            f"{source}: {said}; write the file with `presage features --json`"
        ) from error
    try:
        return read_job(row, "job")
    except InvalidJobError as error:
        raise InvalidJobError(f"{source}: {one_line(error)}") from error


def _from_fields(content: Any, source: str) -> JobFeatures:
    """Of the form before protobuf JSON."""
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


# By the annotations' text; what is not here is a value of its own and checked further down.
_JSON_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
}


def _checked(cls: Any, row: Any, source: str, *, at: str) -> dict[str, Any]:
    """``row``'s fields, once they are those of the dataclass ``cls`` in name and type."""
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
        # True counts as an int in Python, in no job.
        if not isinstance(value, types) or (noun and isinstance(value, bool)):
            raise InvalidJobError(
                f"{source}: {prefix}{name}={one_line(repr(value))}, must be {noun}; "
                "write the file with `presage features --json`"
            )
    return dict(row)


def _parse_int(text: str) -> int | float:
    """A whole number; one that no field can hold as a float, which is infinite where it must be."""
    return int(text) if len(text) <= _MOST_DIGITS else float(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that a job can have")
