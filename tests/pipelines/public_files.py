"""Small files in the layouts of public sources, and the folder of the real files."""

import json
import os
from pathlib import Path

import pytest

from presage.features.graph.op_graph import OpGraph
from presage.features.graph.step_memory import MemoryEstimate
from presage.pipelines.importers import IMPORTERS
from presage.pipelines.importers.imported import Imported
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.published_file import unpack
from tests.features.examples import node

ROOT = Path(__file__).parents[2]
DATASETS = Path(os.environ.get("PRESAGE_DATASETS", ROOT.parent / "shared/datasets"))


def real(name):
    """Return the folder of a source's real files; skip the test if it is missing."""
    folder = DATASETS / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: the real files of {name} are not read")
    return folder


class OneGraph(GraphCache):
    """Graph cache that returns one tiny graph for every job of the zoo; no model is traced."""

    def __init__(self):
        super().__init__(Path("/nonexistent"))
        self.asked = []

    def graph(self, recipe, make):
        self.asked.append(recipe)
        memory = MemoryEstimate(4000, 4000, 0, 1000, 0, 0)
        return OpGraph((node(),), 1000, 9000, 784, memory)


def rows_of(source, path, graphs=None):
    """Return the rows that an importer reads from a file or folder."""
    imported = Imported(IMPORTERS[source].origin)
    with unpack(path) as readable:
        IMPORTERS[source].read(readable, imported, graphs or OneGraph())
    return imported


LM, R18 = "('LM (batch size 5)', 1)", "('ResNet-18 (batch size 32)', 1)"
GAVEL = {
    "v100": {
        R18: {"null": 30.0, R18: [15.0, 15.0], LM: [20.0, 100.0]},
        LM: {"null": 100.0, R18: [100.0, 20.0], LM: [0.0, 0.0]},
        R18.replace("1)", "4)"): {"null": 100.0},
        LM.replace("1)", "2)"): {"null": 0.0},
        "('GPT-2 (batch size 1)', 1)": {"null": 3.0},
    },
    "v100_unconsolidated": {R18: {"null": 30.0}, R18.replace("1)", "4)"): {"null": 80.0}},
}


def gavel_upstream(folder):
    (folder / "simulation_throughputs.json").write_text(json.dumps(GAVEL))
    return folder


def gavel_tidied(folder):
    isolated = "source,gpu,placement,job,family,batch_size,num_gpus,steps_per_sec"
    rows = [
        "sim_v2,v100,consolidated,ResNet-18 (batch size 32),ResNet-18,32.0,1,30.0",
        "sim_v2,v100,consolidated,LM (batch size 5),LM,5.0,1,100.0",
        "sim_v2,v100,consolidated,ResNet-18 (batch size 32),ResNet-18,32.0,4,100.0",
        "sim_v2,v100,consolidated,LM (batch size 5),LM,5.0,2,0.0",
        "sim_v2,v100,consolidated,GPT-2 (batch size 1),GPT-2,1.0,1,3.0",
        "sim_v2,v100,unconsolidated,ResNet-18 (batch size 32),ResNet-18,32.0,1,30.0",
        "sim_v2,v100,unconsolidated,ResNet-18 (batch size 32),ResNet-18,32.0,4,80.0",
    ]
    (folder / "isolated.csv").write_text("\n".join([isolated, *rows]))
    pairs = "source,gpu,job_a,job_b,iso_a,iso_b,co_a,co_b,feasible,norm_a"
    lm, r18 = "LM (batch size 5)", "ResNet-18 (batch size 32)"
    rows = [
        f"sim_v2,v100,{r18},{r18},30.0,30.0,15.0,15.0,1,0.5",
        f"sim_v2,v100,{r18},{lm},30.0,100.0,20.0,100.0,1,",
        f"sim_v2,v100,{lm},{lm},100.0,100.0,0.0,0.0,0,",
    ]
    (folder / "pairs.csv").write_text("\n".join([pairs, *rows]))
    return folder


LUCID_SOLO = """model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label
ResNet18,CIFAR-10,32,0,1600.0,50.0,25.0,2360.0,0
NeuMF,MovieLens,64,1,6400.0,10.0,2.0,2050.0,0
PPO,LunarLander,32,0,5.156,12.5,0.0,2051.0,0
"""
_MEMBER = "model{0},dataset{0},gpu_num{0},batchsize{0},amp{0},speed{0}"
LUCID_PAIRS = f""",{_MEMBER.format(1)},{_MEMBER.format(2)},gpu_util,gmem_util,gmem
0,ResNet18,CIFAR-10,1,32,0,0.8,NeuMF,MovieLens,1,64,1,1.25,60.0,30.0,4400
1,ResNet18,CIFAR-10,1,32,0,0.5,PPO,LunarLander,1,32,0,1.0,55.0,30.0,4400
2,ResNet18,CIFAR-10,1,32,0,0.0,NeuMF,MovieLens,1,64,1,0.9,55.0,30.0,4400
3,ResNet18,CIFAR-10,1,999,0,0.7,NeuMF,MovieLens,1,64,1,0.9,55.0,30.0,4400
"""


def lucid_upstream(folder):
    (folder / "analyzer").mkdir()
    (folder / "data").mkdir()
    (folder / "analyzer/single_data.csv").write_text(LUCID_SOLO)
    (folder / "data/colocate_info.csv").write_text(LUCID_PAIRS)
    return folder


def lucid_tidied(folder):
    (folder / "solo.csv").write_text(LUCID_SOLO)
    pairs = "\n".join(line.split(",", 1)[1] for line in LUCID_PAIRS.splitlines())
    (folder / "pairs.csv").write_text(pairs)
    return folder


PARVAGPU = [(3, 16, 1, 800.0, 0.02), (3, 16, 2, 500.0, 0.032), (3, 16, 3, 0, 0)]
_PARVAGPU = "Mig instance,Batch size,Workload Number,Throughput,Latency"


def parvagpu_upstream(folder):
    (folder / "prof_data").mkdir()
    (folder / "SLO_latency.csv").write_text("another,table\n1,2\n")
    lines = [",".join(map(str, row)) for row in PARVAGPU]
    (folder / "prof_data/resnet50.csv").write_text("\n".join([_PARVAGPU, *lines]))
    return folder


def parvagpu_tidied(folder):
    lines = [",".join(map(str, (*row, "resnet50"))) for row in PARVAGPU]
    (folder / "parvagpu_tidy.csv").write_text("\n".join([f"{_PARVAGPU},model", *lines]))
    return folder


def miso_upstream(folder):
    logs = folder / "mps/models/logs/mig"
    logs.mkdir(parents=True)
    steps = {"0": [43.3, 0.6, 0.598], "1": [0.597, 0.5975]}
    (logs / "2g.10gb_cyclegan_train1.json").write_text(json.dumps(steps))
    (logs / "7g.40gb_gnn_train64.json").write_text(json.dumps({"0": [0.012, 0.0117, 0.0116]}))
    return folder


def miso_tidied(folder):
    (folder / "mig_isolated_step_time.csv").write_text(
        "mig_slice,model,batch_size,n_steps,step_time_median_s,step_time_p95_s\n"
        "2g.10gb,cyclegan,1,5,0.598,0.6\n7g.40gb,gnn,64,3,0.0117,0.013\n"
    )
    return folder


POLLUX = {
    "placements": "placement,local_bsz,step_time,sync_time\n1,32,0.04,0.0005\n112,32,0.09,0.05\n",
    "scalability": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,7,32,0.14,0.09\n",
}


def pollux_upstream(folder):
    (folder / "traces/cifar10").mkdir(parents=True)
    (folder / "traces/cifar10/validation-128.csv").write_text("epoch,metric\n1,0.5\n")
    for kind, content in POLLUX.items():
        (folder / f"traces/cifar10/{kind}.csv").write_text(content)
    return folder


def pollux_tidied(folder):
    for kind, content in POLLUX.items():
        (folder / f"pollux_t4_cifar10_{kind}.csv").write_text(content)
    return folder


LAYOUTS = {
    "gavel": (gavel_upstream, gavel_tidied),
    "lucid": (lucid_upstream, lucid_tidied),
    "parvagpu": (parvagpu_upstream, parvagpu_tidied),
    "miso": (miso_upstream, miso_tidied),
    "pollux": (pollux_upstream, pollux_tidied),
}
