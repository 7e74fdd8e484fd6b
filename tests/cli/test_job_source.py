"""What a person names as a job, in process: user code that fails is one line with its place."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from presage.cli.extras import EXTRA_OF, how_to_install
from presage.cli.options.job_source import read_job
from presage.errors import GraphError, InvalidJobError
from presage.serving.client import job_features
from tests.features.examples import features
from tests.features.from_tensorflow.tensorflow_examples import graph, node, placeholder, save

REAL = Path(__file__).parents[1] / "features/from_tensorflow/files"


@pytest.fixture
def write(tmp_path, monkeypatch, request):
    """Write a user's module of a name that no other test has; its ``module:function``."""
    monkeypatch.chdir(tmp_path)

    def file(code, function="make"):
        name = f"user_{abs(hash(request.node.nodeid))}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        return f"{name}:{function}"

    return file


WHOLE = """
    import torch
    from torch import nn

    def make(batch_size):
        return nn.Linear(6, 3), torch.empty(batch_size, 6)

    def by_keyword(*, batch_size):
        return make(batch_size)

    def by_default(samples=3):
        return make(samples)

    def alone():
        return make(5)

    class Maker:
        def __new__(cls, batch_size):
            return make(batch_size)

    class Called:
        def __call__(self, batch_size):
            return make(batch_size)

    called = Called()

    def lazy(batch_size):
        import importlib
        return importlib.import_module(__name__).make(batch_size)
"""


@pytest.mark.parametrize(
    "function", ["make", "by_keyword", "by_default", "Maker", "called", "lazy"]
)
def test_a_callable_gets_the_batch_size_if_it_accepts_one(write, function):
    assert read_job(write(WHOLE, function), batch_size=7).job.batch_size == 7


def test_a_function_without_a_parameter_determines_the_batch_size(write):
    assert read_job(write(WHOLE, "alone")).job.batch_size == 5


def test_a_batch_size_is_rejected_by_a_function_without_a_parameter(write):
    with pytest.raises(GraphError, match="alone: has no parameter batch_size, so --batch-size"):
        read_job(write(WHOLE, "alone"), batch_size=7)


def test_a_model_can_create_tensors_at_run_time(write):
    source = write(
        """
        import torch
        class Net(torch.nn.Linear):
            def forward(self, x):
                mask = torch.ones(len(x), len(x)).tril()
                return super().forward((x @ x.T).masked_fill(mask == 0, 0.0) @ x)
        def make():
            return Net(2, 2), torch.empty(3, 2)
        """
    )

    assert read_job(source).parameters == 6


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(:\n    pass", r"SyntaxError: invalid syntax \(user_\d+.py, line 1\)"),
        ("raise RuntimeError('at\\nimport')", r"RuntimeError: at \(user_\d+.py, line 1\)"),
        ("import sys\nsys.exit('usage')", r"SystemExit: usage \(user_\d+.py, line 2\)"),
        ("import no_such_package", r"No module named 'no_such_package' \(user_\d+.py, line 1\)"),
        ("def make():\n    return {}['x']", r"KeyError: 'x' \(user_\d+.py, line 2\)"),
        ("def make(a, b):\n    pass", r"TypeError: make\(\) missing 1 required positional"),
        ("make = 3", r"'make' of module .* is not callable"),
        ("def other():\n    pass", r"module .* has no function 'make'; give module:function"),
        ("def make():\n    return 42", r"returned int; return \(torch module, inputs\)"),
        (
            "import torch\ndef make():\n    return torch.nn.Linear(2, 2), {'x': torch.ones(2, 2)}",
            r"returned inputs of type dict; return one tensor or a tuple",
        ),
        (
            "import torch\ndef make():\n    return torch.nn.Linear(2, 2), 5",
            r"returned inputs of type int; return one tensor or a tuple",
        ),
        (
            "import torch\nclass make(torch.nn.Module):\n    pass",
            r"returned make; return \(torch module, inputs\)",
        ),
        (
            """
            import torch
            class Net(torch.nn.Linear):
                def forward(self, x):
                    return self.missing(x)
            def make():
                return Net(2, 2), torch.empty(3, 2)
            """,
            r"AttributeError: 'Net' object has no attribute 'missing' \(user_\d+.py, line 5\)",
        ),
        (
            """
            import torch
            class Net(torch.nn.Linear):
                def forward(self, x):
                    return super().forward(x.T)
            def make():
                return Net(2, 2), torch.empty(3, 2)
            """,
            r"tracing failed .*ONNX.* \(user_\d+.py, line 5\)",
        ),
        (
            "import torch\ndef make():\n    return torch.nn.Linear(2, 2), [[1.0, 2.0]]",
            r"returned inputs of type list; return one tensor or a tuple",
        ),
    ],
)
def test_any_failure_of_user_code_is_reported_in_one_line(write, code, message):
    source = write(code)
    with pytest.raises(GraphError, match=message) as caught:
        read_job(source)

    assert str(caught.value).startswith(f"{source}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [":make", "no.such:make", "..mine:make", "json:no_such"])
def test_an_invalid_module_is_reported_in_one_line(source):
    with pytest.raises(GraphError, match=r"^[^\n]+$"):
        read_job(source)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(job_features.to_json(features(batch_size=8, iterations=100)))
    return path


def test_a_json_job_keeps_its_iterations_unless_an_option_changes_them(saved):
    assert read_job(str(saved)).job.iterations == 100
    assert read_job(str(saved), iterations=7).job.iterations == 7


@pytest.mark.parametrize(
    "said", [{"batch_size": 8}, {"optimizer": "adam"}, {"precision": "fp16"}], ids=str
)
def test_the_batch_size_of_a_json_job_cannot_be_changed(saved, said):
    option = next(iter(said)).replace("_", "-")
    with pytest.raises(InvalidJobError, match=f"--{option} cannot change a JSON job"):
        read_job(str(saved), **said)


@pytest.mark.parametrize("place", ["flops", "count", "input_elements", "iterations", "parameters"])
def test_a_number_beyond_the_range_of_floats_is_rejected_with_its_field(saved, place):
    content = json.loads(saved.read_text())
    for row in (content, content["op_stats"][0]):
        if place in row:
            row[place] = 10**400
    saved.write_text(json.dumps(content))
    with pytest.raises(InvalidJobError, match=f"job.json: .*{place}") as caught:
        read_job(str(saved))

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["training_adam.pb", "perceptron", "perceptron/saved_model.pb"])
def test_a_tensorflow_graph_is_a_job(name):
    job = read_job(str(REAL / name), batch_size=8, iterations=5).job

    assert (job.framework, job.batch_size, job.iterations) == ("tensorflow", 8, 5)


def test_an_open_dimension_of_a_tensorflow_graph_is_set_by_its_placeholder(tmp_path):
    nodes = [placeholder("tokens", None, None), node("y", "Relu", "tokens")]
    path = str(save(tmp_path, graph(*nodes)))
    with pytest.raises(GraphError, match="pass --dim tokens:1=N"):
        read_job(path)

    assert read_job(path, dims=["tokens:1=128"]).job.input_elements == 128


def test_a_binary_file_is_not_a_json_job(saved):
    saved.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidJobError, match="not text"):
        read_job(str(saved))


@pytest.mark.parametrize("text", ["x=²", "x=", "x", "=3", "x=3.5", "x=0", "x=-2", "x=many"])
def test_a_dimension_option_is_a_name_and_a_number(text):
    with pytest.raises(InvalidJobError, match="is not NAME=N"):
        read_job("none.onnx", dims=[text])


def test_a_missing_optional_package_is_reported_with_the_extra():
    line = how_to_install(ModuleNotFoundError(name="onnx.helper"))

    assert line == "the package 'onnx' is not installed; pip install 'presage[features]'"
    assert how_to_install(ModuleNotFoundError(name="presage.nothing")) is None
    assert how_to_install(ModuleNotFoundError()) is None


def test_every_missing_package_of_a_server_is_reported_with_the_extra():
    command = (
        "import sys; sys.modules['uvloop'] = None; sys.argv[1:] = ['serve', '--port', '0'];"
        "from presage.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], check=False, capture_output=True, text=True
    )

    said = "error: the package 'uvloop' is not installed; pip install 'presage[serve]'\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_every_named_extra_exists_in_the_project():
    import tomllib

    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())

    assert set(EXTRA_OF.values()) <= project["project"]["optional-dependencies"].keys()


# --- jobs of the profiler's zoo -----------------------------------------------------------------


def test_a_job_of_the_zoo_is_named_as_in_the_tables():
    read = read_job("llm_decode/w256-d4-k8-c64/b2/inference/bf16", iterations=7)

    assert read.job.job_id == "llm_decode/w256-d4-k8-c64/b2/inference/bf16"
    assert (read.job.family, read.job.name) == ("llm_decode", "llm_decode/w256-d4-k8-c64")
    assert (read.job.batch_size, read.job.iterations, read.job.precision) == (2, 7, "bf16")
    assert not read.trains


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("mlp/w128-d2/b8/sgd", {"batch_size": 9}, "--batch-size cannot change a job of the zoo"),
        ("mlp/w128-d2/b8/sgd", {"precision": "bf16"}, "--precision cannot change"),
        ("mlp/w128-d2/b0/sgd", {}, "batch_size=0, must be >= 1"),
        ("llm_decode/1b-c0/b1/inference", {}, "tokens=0, must be >= 1"),
        ("llm_decode/1b-c8/b1/adam", {}, "is inference only"),
        ("mpl/w128-d2/b8/sgd", {}, "no family 'mpl'; did you mean 'mlp'?"),
        ("mlp/w128-d2/b8/sdg", {}, "optimizer 'sdg' is not known"),
        ("mlp/w128-d2/b8/sgd/fp8", {}, "no precision 'fp8'"),
        (f"mlp/w128-d2/b{10**20}/sgd", {}, "."),
        (f"llm_decode/1b-c{10**20}/b1/inference", {}, "no variant"),
        (f"llm_decode/8b-c{10**9 - 1}/b{10**9}/inference", {}, "."),
    ],
)
def test_an_impossible_job_of_the_zoo_is_one_line(name, changes, words):
    with pytest.raises((GraphError, InvalidJobError), match=words) as error:
        read_job(name, **changes)
    assert "\n" not in str(error.value)


def test_a_file_of_such_a_name_is_read_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mlp/w128-d2/b8/sgd"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no model")

    with pytest.raises(GraphError, match="mlp/w128-d2/b8/sgd"):
        read_job("mlp/w128-d2/b8/sgd")
