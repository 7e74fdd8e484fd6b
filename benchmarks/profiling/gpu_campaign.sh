#!/usr/bin/env bash
# Measures this machine's GPU from a bare checkout: no network, no install.
#
#   bash benchmarks/profiling/gpu_campaign.sh BUDGET OUT_DIR [CAMPAIGN_FILE]
#
# BUDGET is wall time such as 9m; OUT_DIR gets the tables, and a later call goes on from them.
# Needs python3 with torch for CUDA, numpy, pandas, pyarrow, psutil, pyyaml, nvidia-ml-py, rich and
# typer, and nothing of this project installed.
set -euo pipefail
budget=${1:?give a budget such as 9m}
out=${2:?give the folder of the tables}
root=$(cd "$(dirname "$0")/../.." && pwd)
campaign=${3:-$root/benchmarks/profiling/hopper.yaml}

export PYTHONPATH=$root/src${PYTHONPATH:+:$PYTHONPATH}
# Jobs keep one core busy each: they launch kernels. More threads only fight over the others.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

mkdir -p "$out"
python3 -m presage doctor --json >"$out/environment.json"
on_gpu='import sys; from presage.features.device.local_device import detect; sys.exit(detect().compute_capability == 0)'
if ! python3 -c "$on_gpu"; then
  echo "error: no GPU that torch can use; $out/environment.json says what is missing" >&2
  exit 1
fi
exec python3 -m presage profile --campaign "$campaign" --budget "$budget" --out "$out"
