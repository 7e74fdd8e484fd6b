import json
from dataclasses import asdict

import onnx
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from presage.errors import GraphError, InvalidJobError
from presage.features.graph.op_graph import OpGraph, OpNode
from presage.features.graph.step_memory import MemoryEstimate
from presage.serving.client.job_features import (
    from_graph,
    from_json,
    from_module,
    from_onnx,
    to_json,
)
from presage.serving.codec import wire_values
from presage.serving.v1 import prediction_pb2 as pb


def test_a_graph_becomes_the_features_of_a_job():
    graph = OpGraph(
        nodes=(OpNode("addmm", "MatMul", "forward", 64, 32, 2048, 4096, 9000, count=3),),
        parameters=2048,
        peak_live_bytes=16_640,
        memory=MemoryEstimate(8192, 8192, 0, 128, 256, 0),
        input_elements=16,
    )

    features = from_graph(graph, name="mlp", batch_size=4, iterations=10, precision="bf16")

    assert (features.job.job_id, features.job.name) == ("mlp", "mlp")
    assert (features.job.batch_size, features.job.iterations) == (4, 10)
    assert features.job.input_elements == 16
    assert features.job.graph_digest == graph.digest
    assert features.job.framework_version == ""
    assert (features.parameters, features.memory) == (2048, graph.memory)
    assert features.peak_live_bytes == graph.peak_live_bytes
    assert [(row.kind, row.count, row.flops, row.parameters) for row in features.op_stats] == [
        ("MatMul", 3, 3 * 4096.0, 3 * 2048)
    ]


@pytest.fixture
def onnx_file(tmp_path):
    weight = helper.make_tensor("w", TensorProto.FLOAT, [16, 8], [0.0] * 128)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [weight],
    )
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_an_onnx_file_becomes_the_features_of_a_job(onnx_file):
    features = from_onnx(onnx_file, batch_size=32, iterations=5)

    assert features.job.name == "tiny"
    assert (features.job.framework, features.job.framework_version) == ("onnx", "")
    assert features.job.input_elements == 16
    assert features.parameters == 128
    assert {row.phase for row in features.op_stats} == {"forward", "backward", "optimizer"}
    inference = from_onnx(onnx_file, batch_size=32, iterations=5, training=False)
    assert {row.phase for row in inference.op_stats} == {"forward"}


def test_the_error_names_a_missing_onnx_file(tmp_path):
    with pytest.raises(GraphError, match=r"absent\.onnx: cannot be read"):
        from_onnx(tmp_path / "absent.onnx", batch_size=1, iterations=1)


def test_a_module_and_its_factory_have_the_same_features_and_keep_their_weights():
    import torch
    from torch import nn

    def factory() -> nn.Module:
        shared = nn.Linear(16, 16)
        return nn.Sequential(shared, nn.ReLU(), shared, nn.BatchNorm1d(16))

    module = factory()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = torch.randn(4, 16)

    of_module = from_module(module, x, iterations=7, optimizer="adam")
    of_factory = from_module(factory, [x], iterations=7, optimizer="adam")

    assert of_module == of_factory
    assert of_module.job.batch_size == 4
    assert of_module.job.name == "Sequential"
    assert of_module.job.framework == "torch"
    assert of_module.job.framework_version == torch.__version__.split("+")[0]
    assert of_module.parameters == 16 * 17 + 32  # the shared layer counts once
    for name, tensor in module.state_dict().items():
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, before[name])


@given(st.integers(1, 2**63 - 1), st.floats(0, 1e300), st.text(max_size=20), st.integers(0, 2**60))
def test_json_round_trips_features(job, batch_size, flops, name, size):
    from dataclasses import replace

    features = job(batch_size=1, name=name)
    features = replace(
        features,
        job=replace(features.job, batch_size=batch_size, framework_version="2.13.0"),
        op_stats=(replace(features.op_stats[0], flops=flops, parameters=size), *features.op_stats),
        memory=replace(features.memory, gradient_bytes=size, batch_bytes=size),
    )

    assert from_json(to_json(features)) == features


def test_fields_with_a_default_are_optional(job):
    content = asdict(job())
    for name in ("graph_digest", "memory_format", "loads_data", "framework_version"):
        del content["job"][name]
    del content["op_stats"][1]["parameters"]
    del content["op_stats"][1]["shape"]

    assert from_json(json.dumps(content)) == job()


def test_json_holds_memory_components_and_not_the_peak(job):
    content = json.loads(to_json(job(batch_size=1)))

    assert content["memory"] == {
        "parameter_bytes": "400000", "gradient_bytes": "400000", "optimizer_state_bytes": "800000",
        "activation_bytes": "440000", "workspace_bytes": "8000", "batch_bytes": "2000",
    }  # fmt: skip


def test_json_is_the_protobuf_json_of_a_job_and_the_form_before_it_is_still_read(job):
    features = job()
    message = json_format.Parse(to_json(features), pb.Job())

    assert message == wire_values.write_job(features)
    assert from_json(json_format.MessageToJson(message)) == features  # camelCase, as protoc has it
    assert from_json(json.dumps(asdict(features))) == features


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bach_size": 1}, 'no field named "bach_size"'),
        ({"batch_size": "many"}, "batch_size"),
        ({"batch_size": 0}, "job.batch_size=0, must be >= 1"),
        ({"op_stats": [{"kind": "Conv9D"}]}, "job.op_stats[0].kind is not known"),
        ({"op_stats": 3}, "op_stats"),
        ({"memory": {"memory": {}}}, "memory"),
        ({"parameters": 2**64}, "parameters"),
    ],
)
def test_the_error_names_an_invalid_field_of_protobuf_json_in_one_line(job, change, said):
    content = json.loads(to_json(job())) | change
    with pytest.raises(InvalidJobError) as caught:
        from_json(json.dumps(content), source="j.json")

    assert str(caught.value).startswith("j.json: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def changed(job, *way, to):
    content = asdict(job())
    content["op_stats"] = list(content["op_stats"])
    place = content
    for step in way[:-1]:
        place = place[step]
    if to is ...:
        del place[way[-1]]
    else:
        place[way[-1]] = to
    return json.dumps(content)


@pytest.mark.parametrize(
    ("way", "to", "said"),
    [
        (("job", "batch_size"), 0, "j.json: job 'job': batch_size=0, must be >= 1"),
        (("job", "batch_size"), "many", "j.json: job.batch_size='many', must be a whole number"),
        (("job", "batch_size"), 1.5, "j.json: job.batch_size=1.5, must be a whole number"),
        (("job", "batch_size"), True, "j.json: job.batch_size=True, must be a whole number"),
        (("job", "batch_size"), ..., "j.json: job.batch_size is missing"),
        (
            ("job", "bach_size"),
            1,
            "j.json: job.bach_size is not a field; did you mean 'batch_size'",
        ),
        (("job", "name"), 7, "j.json: job.name=7, must be a text"),
        (("job",), [], "j.json: job must be an object with the fields of Job"),
        (("parameters",), -1, "j.json: job 'job': parameters=-1"),
        (("job", "framework_version"), "v2", "j.json: job 'job': framework_version='v2', must be"),
        (("job", "framework_version"), 2.13, "j.json: job.framework_version=2.13, must be a text"),
        (("memory",), ..., "j.json: memory is missing"),
        (("memory",), 7, "j.json: memory must be an object with the fields of MemoryEstimate"),
        (("memory", "gradient_bytes"), ..., "j.json: memory.gradient_bytes is missing"),
        (("memory", "gradient_bytes"), -1, "j.json: memory.gradient_bytes=-1, must be >= 0"),
        (("memory", "gradient_bytes"), 0.5, "j.json: memory.gradient_bytes=0.5, must be a whole"),
        (("memory", "batch_bytes"), 2**63, "j.json: job 'job': memory.batch_bytes has 64 bits"),
        (("memory", "peak_bytes"), 1, "j.json: memory.peak_bytes is not a field; did you mean"),
        (("peak_live_bytes",), 1, "j.json: peak_live_bytes is not a field; known are"),
        (("op_stats",), {}, "j.json: op_stats must be a list"),
        (("op_stats",), [], "j.json: job 'job': no operator statistics"),
        (("op_stats", 1), "Relu", "j.json: op_stats[1] must be an object with the fields of OpSt"),
        (("op_stats", 1, "kind"), ..., "j.json: op_stats[1].kind is missing"),
        (("op_stats", 1, "flops"), "1e9", "j.json: op_stats[1].flops='1e9', must be a number"),
        (("op_stats", 1, "parameters"), 1.5, "j.json: op_stats[1].parameters=1.5, must be a who"),
        (("op_stats", 1, "shape"), 3, "j.json: op_stats[1].shape=3, must be a text"),
        (("op_stats", 1, "shape"), "odd 8", "j.json: op_stats[1]: operator statistics of Relu: sh"),
        (("op_stats", 1, "flops"), -1, "j.json: op_stats[1]: operator statistics of Relu: flops"),
        (("op_stats", 1, "flops"), float("nan"), "j.json: not JSON (NaN is not a valid number"),
    ],
)
def test_the_error_names_an_invalid_field(job, way, to, said):
    with pytest.raises(InvalidJobError) as caught:
        from_json(changed(job, *way, to=to), source="j.json")

    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nonsense", '{"job": 1e999}', "[1]"])
def test_other_json_than_a_job_is_rejected(text):
    with pytest.raises(InvalidJobError, match=r"^j\.json: "):
        from_json(text, source="j.json")
