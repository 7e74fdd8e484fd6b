"""Fit of the scaling law to measured tables, printed as JSON.

Run ``python -m presage.pipelines.pretraining.print_scaling_law data/public/pollux``. The built-in
constants, ``DEFAULT_LAW``, are those of the tables that ``presage import pollux`` writes. A release
needs no such step: it is fitted to the tables of its campaigns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from presage.features.tables.campaign import read_campaign
from presage.models.training.scaling_law_fit import fit_scaling_law
from presage.models.training.scaling_rows import scaling_table
from presage.pipelines.stages.stage import run_stage


def main(argv: list[str] | None = None) -> None:
    """Print the law."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("tables", type=Path, nargs="+", help="folders with a table scale_out")
    args = parser.parse_args(argv)
    law = fit_scaling_law(scaling_table([read_campaign(folder) for folder in args.tables]))
    print(json.dumps(law.as_json(), indent=2))  # noqa: T201


if __name__ == "__main__":
    run_stage(main)
