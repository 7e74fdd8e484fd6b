"""Hypothesis strategies for jobs, devices and shares, extreme values included."""

from hypothesis import strategies as st

from presage.features.device.device import Device, Share
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.op_stats import OpStats
from presage.features.graph.shape_class import SHAPES
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.job.job_description import MEMORY_FORMATS, PRECISIONS, Job, JobFeatures

COUNTS = st.integers(0, 2**63 - 1)
SIZES = st.integers(1, 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_PARTS = st.integers(0, (2**63 - 1) // 5)  # a peak is the sum of five


def op_stats(amounts):
    """Return a strategy for operator statistics with these FLOPs and bytes moved."""
    return st.sampled_from(OP_KINDS).flatmap(
        lambda kind: st.builds(
            OpStats,
            kind=st.just(kind),
            shape=st.sampled_from(("", *SHAPES.get(kind, ()))),
            phase=st.sampled_from(("forward", "backward", "optimizer")),
            intensity_octave=st.integers(-4, 12),
            count=SIZES,
            input_elements_max=COUNTS,
            input_elements=COUNTS,
            output_elements=COUNTS,
            flops=amounts,
            bytes_moved=amounts,
            parameters=COUNTS,
        )
    )


JOBS = st.builds(
    JobFeatures,
    job=st.builds(
        Job,
        job_id=NAMES,
        name=NAMES,
        family=NAMES,
        framework=NAMES,
        precision=st.sampled_from(PRECISIONS),
        batch_size=SIZES,
        iterations=SIZES,
        input_elements=SIZES,
        graph_digest=NAMES,
        memory_format=st.sampled_from(MEMORY_FORMATS),
        loads_data=st.booleans(),
        framework_version=st.just("") | st.builds("{}.{}{}".format, COUNTS, COUNTS, NAMES),
    ),
    op_stats=st.lists(op_stats(st.floats(0, 1e300)), min_size=1, max_size=3).map(tuple),
    parameters=COUNTS,
    memory=st.builds(
        MemoryEstimate,
        parameter_bytes=_PARTS,
        gradient_bytes=_PARTS,
        optimizer_state_bytes=_PARTS,
        activation_bytes=_PARTS,
        workspace_bytes=_PARTS,
        batch_bytes=_PARTS,
    ),
)


DEVICES = st.builds(
    Device,
    kind=NAMES,
    compute_capability=st.floats(0, 20),
    memory_bytes=SIZES,
    cores=SIZES,
    peak_flops_per_s=st.fixed_dictionaries(
        {"fp32": st.floats(1, 1e18), "bf16": st.floats(1, 1e18)}
    ),
    memory_bandwidth_bytes_per_s=st.floats(1, 1e15),
    op_overhead_s=st.floats(0, 1),
    context_bytes=COUNTS,
)
SHARES = st.builds(
    Share, fraction=st.floats(1e-6, 1), mode=st.sampled_from(("exclusive", "mps", "cpu-quota"))
)
