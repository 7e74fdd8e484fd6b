"""Registry of the quantities that Presage predicts: the one place that lists them.

Training, evaluation, the gate, releases, serving, drift and displays read it when they run. To
predict another quantity, add it here (``docs/pipeline/quantities.md``).
"""

from __future__ import annotations

from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import columns
from presage.features.graph.operator_time_shares import TIME_SHARE_COLUMNS
from presage.features.job.memory_components import MEMORY_COLUMNS
from presage.features.quantities.quantity import Quantity

COMPUTE_UTILIZATION = Quantity(
    name="compute_utilization",
    unit="fraction",
    title="Compute utilization",
    label="utilization",
    column="compute_utilization",
    forecast_field="compute_utilization",
    in_proto=True,
    transform="log-odds",
    maximum=1.0,
    negligible=0.01,
)
MEMORY = Quantity(
    name="memory",
    unit="bytes",
    title="Memory",
    label="peak memory",
    column="memory_peak_bytes",
    forecast_field="memory_bytes",
    in_proto=True,
    prior="memory_prior_bytes",
    inputs=(
        "batch_size", "channels_last", "framework_release", "half_precision", "trains", "op_count",
        "peak_live_bytes", "memory_prior_bytes", *(column.name for column in MEMORY_COLUMNS),
    ),
    device_limit="memory_bytes",
    negligible=1e6,
)  # fmt: skip
STEP_TIME = Quantity(
    name="step_time",
    unit="seconds",
    title="Step time",
    label="step time",
    column="step_time_median_s",
    forecast_field="step_time_s",
    in_proto=True,
    prior="roofline_s",
    inputs=(
        "batch_size", "channels_last", "loads_data", "share", "roofline_s", "op_count",
        "bytes_per_op", "largest_input", *(column.name for column in TIME_SHARE_COLUMNS),
    ),
    negligible=1e-6,
)  # fmt: skip
INTERFERENCE = Quantity(
    name="interference",
    unit="slowdown",
    title="Slowdown by co-runners",
    label="slowdown",
    column="slowdown",
    forecast_field="slowdown",
    in_proto=True,
    scope="co-location",
    inputs=MEMBER_COLUMNS,
    minimum=1.0,
)
# Of GPUs only: a processor's meter is not read. It depends on how busy the device is, which the
# shares of time in computing and in launching operators tell before a job runs.
POWER = Quantity(
    name="power",
    unit="watts",
    title="Power",
    label="power",
    column="power_w",
    forecast_field="power_w",
    inputs=(
        "batch_size", "share", "half_precision", "roofline_s", "op_count", "bytes_per_op",
        "compute_bound_share", "overhead_share",
    ),
    negligible=1.0,
)  # fmt: skip
# Forecast without a model of its own: start-up + iterations x step time.
RUNTIME = Quantity(
    name="runtime",
    unit="seconds",
    title="Runtime",
    label="run time",
    column="runtime_s",
    forecast_field="runtime_s",
    in_proto=True,
    inputs=(),
)

# Quantities that have a model, by name, in the order in which they are shown.
QUANTITIES: dict[str, Quantity] = {}


def register(quantity: Quantity) -> None:
    """Add a quantity that has a model.

    Raises
    ------
    ValueError
        Another quantity has its name, forecast field or column; a column that it reads is in no
        feature set; or it is a second one of co-locations, whose network and input contract are
        written for the slowdown.
    """
    for other in (*QUANTITIES.values(), RUNTIME):
        for attribute in ("name", "forecast_field", "column"):
            if getattr(quantity, attribute) == getattr(other, attribute):
                raise ValueError(
                    f"quantity {quantity.name!r}: {other.name!r} has the same {attribute}"
                )
    if quantity.scope == "co-location" and INTERFERENCE.name in QUANTITIES:
        raise ValueError(f"quantity {quantity.name!r}: co-locations have one quantity only")
    known = columns("full") if quantity.scope == "solo" else MEMBER_COLUMNS
    for name in (*quantity.inputs, *filter(None, [quantity.prior])):
        if name not in known:
            raise ValueError(f"quantity {quantity.name!r}: no column {name!r} to read")
    QUANTITIES[quantity.name] = quantity


for _quantity in (COMPUTE_UTILIZATION, MEMORY, STEP_TIME, POWER, INTERFERENCE):
    register(_quantity)


def required_quantities() -> dict[str, Quantity]:
    """Return the quantities that every release predicts, by name."""
    return {name: one for name, one in QUANTITIES.items() if not one.is_optional}


def solo_quantities() -> dict[str, Quantity]:
    """Return the quantities of a solo job that have a model, by name."""
    return {name: one for name, one in QUANTITIES.items() if one.scope == "solo"}


def job_quantities() -> dict[str, Quantity]:
    """Return the quantities of a job's forecast, by forecast field, with the derived runtime.

    Those with fields in ``presage.v1`` come first: their positions are part of the protocol.
    """
    known = (*solo_quantities().values(), RUNTIME)
    in_order = (*(q for q in known if q.in_proto), *(q for q in known if not q.in_proto))
    return {quantity.forecast_field: quantity for quantity in in_order}


def additional_quantities() -> dict[str, Quantity]:
    """Return the quantities that travel in the maps named ``additional``, by forecast field."""
    return {name: one for name, one in job_quantities().items() if not one.in_proto}


def solo_columns() -> tuple[str, ...]:
    """Return the measured columns of the solo quantities that have a model."""
    return tuple(quantity.column for quantity in solo_quantities().values())
