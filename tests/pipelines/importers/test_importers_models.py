"""Importers of published models and operators: timm, torchvision, GPUMemNet, NeuSight."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn

from presage.errors import GraphError, TableError
from presage.features.from_torch.graph import trace_module
from presage.features.tables import schemas as tables
from presage.pipelines.importers import IMPORTERS
from presage.pipelines.importers.gpumemnet import trace_mlp
from presage.pipelines.importers.imported import Imported
from presage.pipelines.importers.public_models import timm_models
from presage.pipelines.importers.public_models.graph_cache import GraphCache, NoGraphs
from presage.pipelines.importers.public_models.timm_job import TimmJob, add_timm_job
from presage.pipelines.importers.public_models.torchvision_models import (
    CLASSIFIERS,
    trace_classifier,
)
from tests.pipelines.public_files import OneGraph, real


def imported(source: str, path: Path, *, graphs: GraphCache | None = None) -> Imported:
    found = Imported(IMPORTERS[source].origin)
    IMPORTERS[source].read(path, found, graphs or NoGraphs())
    return found


def imported_table(source: str, path: Path, table: str, folder: Path) -> pd.DataFrame:
    """Return rows of a table after an import and the schema's checks."""
    imported(source, path).write(folder)
    rows: pd.DataFrame = tables.read(tables.TABLES[table], folder / f"{table}.parquet").to_pandas()
    return rows


# --- every file of the shared folder, by count ---


@pytest.mark.parametrize(
    ("source", "counts", "skipped"),
    [
        ("timm", {"executions": 17_319, "jobs": 5_734, "devices": 22}, {}),
        ("torchvision", {"executions": 1_268, "scale_out": 2_304, "jobs": 256}, {}),
        (
            "gpumemnet",
            {"executions": 3_000 + 3_783, "jobs": 6_783},
            {
                "status 'suspect_high': not what the job needs": 19,
                "less memory than 0.6 x (parameters + activations), which cannot be": 68,
            },
        ),
        (
            "neusight",
            {"operators": 256_434, "devices": 6},
            {
                f"AMD Instinct {name}: AMD's devices have no CUDA compute capability": 22_400
                for name in ("MI100", "MI210")
            },
        ),
    ],
)
def test_every_row_of_the_published_tables_is_imported_or_counted(
    source, counts, skipped, tmp_path
):
    found = imported(source, real(source))
    found.write(tmp_path)

    assert {name: found.count(name) for name in counts} == counts
    assert found.skipped == Counter(skipped)


def test_rows_name_their_source(tmp_path):
    rows = imported_table("gpumemnet", real("gpumemnet"), "executions", tmp_path)

    assert set(rows["source"]) == {"https://github.com/itu-rad/GPUMemNet"}
    assert set(rows["licence"]) == {"none"}
    assert set(rows["campaign"]) == {"timm-memory", "mlp-utilization"}


# --- timm ---

TRAIN = "benchmark-train-amp-nhwc-pt112-cu113-rtx3090"
INFER = "benchmark-infer-amp-nchw-pt291-cu130-5090"


def timm_csv(folder: Path, name: str, *, step_ms: float = 200.0, model: str = "resnet50") -> Path:
    kind = name.split("-")[1]
    path = folder / f"{name}.csv"
    path.write_text(
        f"model,{kind}_samples_per_sec,{kind}_step_time,{kind}_batch_size,{kind}_img_size,"
        f"param_count\n{model},1280.0,{step_ms},256,224,25.56\n"
    )
    return path


def test_names_of_upstream_timm_files_hold_device_and_precision(tmp_path):
    timm_csv(tmp_path, TRAIN)
    timm_csv(tmp_path, INFER, model="resnet50.a1_in1k", step_ms=50)
    (tmp_path / "results-imagenet.csv").write_text("model,top1\nresnet50,80\n")

    train, infer = (
        imported_table("timm", tmp_path / f"{name}.csv", "executions", tmp_path / name).iloc[0]
        for name in (TRAIN, INFER)
    )

    assert train["job_id"] == "timm/resnet50/s224/b256/sgd/fp16/channels-last"
    assert (train["device_kind"], train["campaign"]) == ("rtx-3090", TRAIN)
    assert train["versions"] == "torch=1.12 cuda=11.3"
    assert train["step_time_median_s"] == 0.2
    assert infer["job_id"] == "timm/resnet50/s224/b256/inference/fp16"
    assert (infer["device_kind"], infer["versions"]) == ("rtx-5090", "torch=2.9.1 cuda=13.0")
    assert imported("timm", tmp_path).count("executions") == 2


def test_timm_tidied_rows_are_those_of_upstream(tmp_path):
    tidied = pd.read_parquet(real("timm") / "timm_step_time.parquet")
    row = tidied[(tidied["file"] == TRAIN) & (tidied["batch_size"] == 256)].iloc[0]
    tidied[tidied["file"] == TRAIN].to_parquet(tmp_path / "timm_step_time.parquet")
    upstream = timm_csv(tmp_path, TRAIN, step_ms=row["step_time_ms"], model=row["model"])

    mine = imported_table("timm", upstream, "executions", tmp_path / "a").iloc[0]
    theirs = imported_table(
        "timm", tmp_path / "timm_step_time.parquet", "executions", tmp_path / "b"
    )

    same = theirs[theirs["job_id"] == mine["job_id"].replace("s224", f"s{row['img_size']}")]
    assert dict(same.iloc[0].drop("job_id").dropna()) == dict(mine.drop("job_id").dropna())


def test_a_timm_job_has_its_layout_and_mode(tmp_path):
    timm_csv(tmp_path, TRAIN)
    timm_csv(tmp_path, INFER)

    jobs = imported_table("timm", tmp_path, "jobs", tmp_path).set_index("optimizer")

    assert jobs.loc["sgd", "memory_format"] == "channels-last"
    assert jobs.loc["", "memory_format"] == "contiguous"
    assert set(jobs["precision"]) == {"fp16"}
    assert set(jobs["family"]) == {"resnet"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"{INFER}-dynamo", "compiled by torch.compile"),
        ("benchmark-infer-fp32-nchw-pt240-cpu-i3_530", "device 'cpu-i3_530' is not in"),
    ],
)
def test_timm_files_of_other_runs_are_counted(name, reason, tmp_path):
    found = imported("timm", timm_csv(tmp_path, name))

    assert [text for text in found.skipped if text.startswith(reason)]
    assert found.count("executions") == 0


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("tf_efficientnetv2_b0", "efficientnet"),
        ("legacy_seresnext26_32x4d", "seresnext"),
        ("vit_base_patch16_224", "vit"),
        ("cs3darknet_focus_l", "cs3darknet"),
        ("mobilenetv3_small_050", "mobilenet"),
        ("resnet50x4_clip", "resnet"),
    ],
)
def test_timm_family_is_the_first_word_without_publisher_and_size(model, family):
    assert TimmJob(model, 224, 1, "", "fp32").family == family


FAKE_TIMM = """
import enum
from torch import nn
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.ops.misc import FrozenBatchNorm2d
from torchvision.transforms.functional import InterpolationMode

__version__ = "fake"
assert len({InterpolationMode.NEAREST: 1, InterpolationMode.BILINEAR: 2}) == 2
assert not isinstance(nn.ReLU(), FrozenBatchNorm2d)

class Mine(transforms.ToTensor): pass

def create_model(name, pretrained, **sizes):
    if name == "lost":
        raise RuntimeError("Unknown model (lost)")
    if name == "any_size" and sizes:
        raise TypeError("img_size")
    side = sizes.get("img_size", 32)
    dense = nn.Linear(3 * side * side, 10) if name == "fixed_size" else nn.LazyLinear(10)
    model = nn.Sequential(nn.Flatten(), dense) if name == "fixed_size" else nn.Conv2d(3, 4, 3)
    model.pretrained_cfg = {"input_size": (3, 32, 32)}
    return model
"""


@pytest.fixture
def fake_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "site/timm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_TIMM)
    monkeypatch.syspath_prepend(str(package.parent))
    real = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "timm"}
    timm_models.library.cache_clear()
    yield
    timm_models.library.cache_clear()
    sys.modules.pop("timm", None)
    sys.modules.update(real)


@pytest.mark.usefixtures("fake_timm")
def test_timm_is_imported_without_torchvision_and_the_stub_is_removed():
    before = {name for name in sys.modules if name.startswith("torchvision")}

    assert timm_models.library().__version__ == "fake"
    assert {name for name in sys.modules if name.startswith("torchvision")} == before


@pytest.mark.usefixtures("fake_timm")
def test_a_timm_model_is_built_for_its_images_on_the_meta_device():
    fixed, (images,) = timm_models.build("fixed_size", 48, 5)
    _, (others,) = timm_models.build("any_size", 48, 5)
    _, (own,) = timm_models.build("fixed_size", 0, 5)

    assert {p.device.type for p in fixed.parameters()} == {"meta"}
    assert images.shape == others.shape == (5, 3, 48, 48)
    assert fixed(images).shape == (5, 10)
    assert own.shape == (5, 3, 32, 32)
    with pytest.raises(GraphError, match="Unknown model"):
        timm_models.build("lost", 0, 1)


@pytest.mark.usefixtures("fake_timm")
def test_a_timm_model_changed_after_its_measurement_has_no_graph(tmp_path):
    graphs = GraphCache(tmp_path / "graphs")
    ours = Imported(IMPORTERS["timm"].origin)
    parameters = 4 * 3 * 3 * 3 + 4

    for name, published_parameters in (("a", parameters), ("b", 10 * parameters + 1e6)):
        job = TimmJob("any_size", 64, 2, "sgd", "fp16")
        add_timm_job(ours, graphs, name, job, parameters=published_parameters)
    ours.write(tmp_path)

    jobs = tables.read(tables.JOBS, tmp_path / "jobs.parquet").to_pandas().set_index("job_id")
    assert jobs.loc["a", "parameters"] == parameters
    assert jobs.loc["a", "input_elements"] == jobs.loc["b", "input_elements"] == 3 * 64 * 64
    assert jobs.loc["b", "graph_digest"] == ""
    assert ours.notes == {"job without a graph: any_size has other parameters in our timm": 1}


def test_without_timm_rows_are_imported_and_counted_as_rows_without_a_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(timm_models, "library", lambda: None)

    found = imported("timm", timm_csv(tmp_path, TRAIN), graphs=GraphCache(tmp_path / "graphs"))

    assert found.count("executions") == 1
    assert list(found.notes) == [f"job without a graph: {timm_models.NOT_INSTALLED}"]


@pytest.mark.parametrize(
    ("model", "side", "optimizer"), [("resnet18", 128, "sgd"), ("vit_tiny_patch16_224", 224, "")]
)
def test_graphs_of_the_real_timm_have_the_published_parameters(model, side, optimizer, tmp_path):
    if timm_models.library() is None:
        pytest.skip("timm is not installed: pip install 'presage[timm]' to trace its models")
    known = {"resnet18": 11_689_512, "vit_tiny_patch16_224": 5_717_416}

    graph = TimmJob(model, side, 4, optimizer, "fp16").graph(GraphCache(tmp_path))

    assert graph is not None
    assert graph.parameters == known[model]
    assert graph.input_elements == 3 * side * side


# --- torchvision ---


def torchvision_csv(folder: Path, name: str, **milliseconds: list[float]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    pd.DataFrame(milliseconds).to_csv(path, index=False)
    return path


def test_torchvision_upstream_has_a_column_per_model_and_a_row_per_step(tmp_path):
    where = tmp_path / "new_results"
    steps = [10.0, 12.0, 11.0, 30.0, 11.5]
    torchvision_csv(
        where, "GeForce RTX 2080 Ti_1_gpus__half_model_train_benchmark.csv", resnet18=steps
    )
    torchvision_csv(where, "TITAN RTX_4_gpus__float_model_inference_benchmark.csv", vgg11=[40.0])
    torchvision_csv(where, "GeForce_RTX_2060_MaxQ__double_model_inference_benchmark.csv",
                    vgg11=[90.0])  # fmt: skip

    torchvision_csv(where, "A100-SXM4-40GB_1_gpus__float_model_train_benchmark.csv", vgg11=[8.0])
    torchvision_csv(where, "GeForce GTX 1080 Ti_double_model_training_benchmark.csv", vgg11=[9.0])

    alone = imported_table("torchvision", tmp_path, "executions", tmp_path).set_index("device_kind")
    many = imported_table("torchvision", tmp_path, "scale_out", tmp_path).iloc[0]

    trained = alone.loc["rtx-2080-ti"]
    assert trained["job_id"] == "torchvision/resnet18/s224/b12/none/fp16"
    assert trained["campaign"] == "new_results"
    assert trained["steps"] == 5
    assert trained["step_time_median_s"] == pytest.approx(0.0115)
    assert trained["step_time_p90_s"] == pytest.approx(0.0228)
    assert alone.loc["rtx-2060-max-q", "job_id"] == "torchvision/vgg11/s224/b12/inference/fp64"
    assert alone.loc["a100-40gb", "job_id"] == "torchvision/vgg11/s224/b12/none/tf32"
    assert alone.loc["gtx-1080-ti", "job_id"] == "torchvision/vgg11/s224/b12/none/fp64"
    assert (many["devices"], many["placement"], many["step_time_s"]) == (4, "4", 0.04)


def test_torchvision_steps_have_no_optimizer_and_inference_no_backward_pass():
    train = trace_classifier("resnet18", 2, "fp16", training=True)
    infer = trace_classifier("vgg11", 2, "fp64", training=False)

    assert {node.phase for node in train.nodes} == {"forward", "backward"}
    assert {node.phase for node in infer.nodes} == {"forward"}
    assert train.parameters == CLASSIFIERS["resnet18"].parameters
    assert infer.memory.parameter_bytes == 8 * CLASSIFIERS["vgg11"].parameters


def test_every_model_that_was_measured_can_be_built():
    measured = pd.read_csv(real("torchvision") / "torchvision_step_time.csv.gz")["model"]

    assert set(measured) == set(CLASSIFIERS)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_models_of_torchvision_have_its_published_parameters(name):
    try:
        with torch.device("meta"):
            model = CLASSIFIERS[name].make()
    except GraphError as error:
        if timm_models.library() is not None:
            raise
        pytest.skip(str(error))

    assert sum(p.numel() for p in model.parameters()) == CLASSIFIERS[name].parameters


# --- GPUMemNet ---


def memory_csv(folder: Path, **columns: object) -> Path:
    row = {
        "model": "resnet50", "batch_size": 8, "max_gpu_mem_mib": 3000, "status": "ok",
        "faketensor_final_mib": 1500.0, "param_count_m": 25.56,
    } | columns  # fmt: skip
    path = folder / "timm_train_memory_a100_40gb.csv"
    pd.DataFrame([row]).to_csv(path, index=False)
    return path


def test_gpumemnet_rows_have_memory_exactly_for_successful_runs(tmp_path):
    ran = imported_table("gpumemnet", memory_csv(tmp_path), "executions", tmp_path).iloc[0]
    failed = [
        imported_table(
            "gpumemnet", memory_csv(tmp_path, status=status), "executions", tmp_path
        ).iloc[0]
        for status in ("oom", "oom_or_full", "after_oom")
    ]

    assert ran["memory_peak_bytes"] == 3000 * 2**20
    assert ran["memory_utilization"] == pytest.approx(3000 / 40960)
    assert ran["job_id"] == "gpumemnet/resnet50/b8/adam/fp32"
    assert {row["failure"] for row in failed} == {"out-of-memory"}
    assert pd.isna([row["memory_peak_bytes"] for row in failed]).all()


@pytest.mark.parametrize(
    ("estimate_mib", "sides"),
    [(1500.0, ["s0"]), (0.001, ["s0", "s224"])],  # of the live bytes; far less is of small images
)
def test_gpumemnet_reads_a_graph_once_for_each_size_of_the_images(
    estimate_mib, sides, tmp_path, monkeypatch
):
    monkeypatch.setattr(timm_models, "library", lambda: SimpleNamespace(__version__="any"))
    graphs = OneGraph()

    imported("gpumemnet", memory_csv(tmp_path, faketensor_final_mib=estimate_mib), graphs=graphs)

    assert [recipe.split("/")[1] for recipe in graphs.asked] == sides


@pytest.mark.parametrize("columns", [{"status": "suspect_high"}, {"faketensor_final_mib": 5001.0}])
def test_impossible_memory_of_gpumemnet_is_counted(columns, tmp_path):
    found = imported("gpumemnet", memory_csv(tmp_path, **columns))

    assert found.count("executions") == 0
    assert sum(found.skipped.values()) == 1


def test_gpumemnet_mlp_is_rebuilt_from_its_layers():
    layers = [("linear", 629, 792540), ("ReLU", 629, 0), ("linear", 79, 49770)]

    graph = trace_mlp(1259, layers, 717)

    assert graph.parameters == 792540 + 49770
    assert graph.input_elements == 1259
    assert {"forward", "backward", "optimizer"} == {node.phase for node in graph.nodes}
    with pytest.raises(GraphError, match="dropout"):
        trace_mlp(4, [("dropout", 4, 0)], 1)


def mlp_csv(folder: Path, **columns: object) -> Path:
    row = {
        "Filename": "input:9_output:2_depth:1_arch:pyramid_batch:7.out",
        "Activations-Params": "[('linear', 4, 40), ('ReLU', 4, 0), ('linear', 2, 10)]",
        "Batch Size": 7, "Max GPU Memory (MiB)": 1479, "Avg GPUTL": 25.0, "Avg SMACT": 0.1,
        "Avg SMOCC": 0.02,
    } | columns  # fmt: skip
    path = folder / "mlp_data_step1.csv"
    pd.DataFrame([row]).to_csv(path, index=False)
    return path


def test_the_upstream_layout_of_a_gpumemnet_mlp(tmp_path):
    found = imported("gpumemnet", mlp_csv(tmp_path), graphs=GraphCache(tmp_path / "graphs"))
    found.write(tmp_path)

    run = tables.read(tables.EXECUTIONS, tmp_path / "executions.parquet").to_pandas().iloc[0]
    job = tables.read(tables.JOBS, tmp_path / "jobs.parquet").to_pandas().iloc[0]

    assert run["job_id"] == "gpumemnet/mlp/input9-output2-depth1-pyramid/b7/adam/fp32"
    assert (run["compute_utilization"], run["sm_activity"], run["sm_occupancy"]) == (
        0.25, 0.1, 0.02,
    )  # fmt: skip
    assert (job["parameters"], job["input_elements"], job["batch_size"]) == (50, 9, 7)


# --- NeuSight ---


def neusight_csv(folder: Path, op: str, latency_ms: list[float], **dims: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{op}.csv"
    constant = {"OPName": op, "Device": "Tesla T4", "Torch Version": "p2.1.0",
                "CUDA Version": "cu121"}  # fmt: skip
    pd.DataFrame({"Latency": latency_ms}).assign(**constant, **dims).to_csv(path, index=False)
    return path


MODULES: dict[str, tuple[dict[str, int], nn.Module, tuple[int, ...]]] = {
    "linear": ({"B": 2, "M": 3, "N": 5, "K": 7}, nn.Linear(5, 7), (2, 3, 5)),
    "conv": (
        {"B": 2, "Input_Channel": 3, "Output_Channel": 8, "Kernel_Szie": 3, "Input_Size": 9,
         "Stride": 2, "Padding": 1},
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        (2, 3, 9, 9),
    ),
    "ln": ({"B": 6, "H": 4}, nn.LayerNorm(4), (6, 4)),
    "softmax": ({"B": 6, "H": 4}, nn.Softmax(dim=1), (6, 4)),
    "relu": ({"B": 6, "H": 4}, nn.ReLU(), (6, 4)),
    "gelu": ({"B": 6, "H": 4}, nn.GELU(), (6, 4)),
}  # fmt: skip


@pytest.mark.parametrize("op", MODULES)
def test_neusight_operators_cost_the_same_as_traced_ones(op, tmp_path):
    dims, module, shape = MODULES[op]

    row = imported_table(
        "neusight", neusight_csv(tmp_path, op, [1.0], **dims), "operators", tmp_path
    )
    graph = trace_module(module.to("meta"), [torch.empty(shape, device="meta")], training=False)

    cost = row.iloc[0]
    assert cost["flops"] == sum(node.flops for node in graph.nodes)
    assert cost["kind"] in {node.kind for node in graph.nodes}
    assert cost["parameters"] == sum(p.numel() for p in module.parameters())


def test_neusight_products_of_batches(tmp_path):
    file = neusight_csv(tmp_path, "bmm", [0.5], B=2, M=3, N=5, K=7)

    row = imported_table("neusight", file, "operators", tmp_path).iloc[0]

    assert row["shape"] == "B=2 M=3 N=5 K=7"
    assert row["flops"] == 2 * 2 * 3 * 5 * 7
    assert row["input_elements"] == 2 * (3 * 5 + 5 * 7)
    assert row["bytes_moved"] == 4 * (2 * (3 * 5 + 5 * 7) + 2 * 3 * 7)
    assert (row["latency_s"], row["versions"]) == (0.0005, "torch=2.1.0 cuda=12.1")
    assert (row["device_kind"], row["kind"], row["precision"]) == ("t4", "MatMul", "fp32")


def test_neusight_repeats_become_their_median_and_duplicates_one_row(tmp_path):
    neusight_csv(tmp_path, "add", [1.0, 3.0, 8.0], B=4, H=4)
    neusight_csv(tmp_path / "add", "add", [3.0], B=4, H=4)

    found = imported("neusight", tmp_path)
    row = imported_table("neusight", tmp_path, "operators", tmp_path).iloc[0]

    assert (row["latency_s"], row["runs"]) == (0.003, 3)
    assert found.skipped == {"the same latency of the same shape, once more": 1}


def test_unknown_operators_of_neusight_are_counted(tmp_path):
    found = imported("neusight", neusight_csv(tmp_path, "erf", [1.0], B=4, H=4))

    assert found.count("operators") == 0
    assert sum(found.skipped.values()) == 1


# --- files that are not what they should be ---


def _not_csv(path: Path) -> Path:
    path.write_bytes(b"\x93NUMPY\x00\xff\xfe")
    return path


@pytest.mark.parametrize(
    ("source", "make", "says"),
    [
        ("timm", lambda f: timm_csv(f, TRAIN, step_ms=-1.0), "cannot be"),
        ("timm", lambda f: timm_csv(f, "benchmark-x-y"), "its name does not say"),
        ("timm", lambda f: _not_csv(f / f"{TRAIN}.csv"), "cannot be read"),
        ("timm", lambda f: _not_csv(f / "timm_step_time.parquet"), "cannot be read"),
        ("timm", lambda f: f / "nowhere", "no such file or folder"),
        ("timm", lambda f: f, "holds no"),
        (
            "torchvision",
            lambda f: torchvision_csv(f, "TITAN Xp__half_model_train_benchmark.csv", vgg11=[-2.0]),
            "vgg11",
        ),
        ("torchvision", mlp_csv, "no column 'file'"),
        ("gpumemnet", lambda f: memory_csv(f, max_gpu_mem_mib=0), "cannot be"),
        ("gpumemnet", lambda f: mlp_csv(f, **{"Activations-Params": "[(1,"}), "cannot be read"),
        ("gpumemnet", lambda f: mlp_csv(f, **{"Activations-Params": "[]"}), "none, or one"),
        ("gpumemnet", lambda f: mlp_csv(f, **{"Avg GPUTL": 250.0}), "cannot be"),
        ("gpumemnet", lambda f: timm_csv(f, TRAIN), "no column 'Filename'"),
        ("neusight", lambda f: neusight_csv(f, "add", [-1.0], B=4, H=4), "0 ms or less"),
        ("neusight", lambda f: neusight_csv(f, "add", [1.0], B=4), "no column 'H'"),
        ("neusight", lambda f: neusight_csv(f, "add", [1.0], B=4, H=-3), "a size is"),
        ("neusight", lambda f: timm_csv(f, TRAIN), "no column 'OPName'"),
    ],
)  # fmt: skip
def test_the_error_of_an_invalid_file_is_one_line_that_names_it(
    source: str, make: Callable[[Path], Path], says: str, tmp_path: Path
):
    path = make(tmp_path)

    with pytest.raises(TableError, match=r"docs/pipeline/importing\.md") as refusal:
        imported(source, path)

    assert says in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
