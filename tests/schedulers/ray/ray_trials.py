"""Trials that share a node of Ray, under Tune and as tasks; prints how many ran at once."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from presage.models.release.pretrained import pretrained_release
from presage.ray import resources

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.schedulers.ray.trials import TRIAL, WAITING

TRIALS = 4
WAIT_S = 60.0


def at_once(folder: str) -> int:
    """Wait until another trial has come, or no more can; return how many there are at once."""
    mine = Path(folder) / str(os.getpid())
    mine.touch()
    end_s = time.monotonic() + WAIT_S
    most = 0
    while time.monotonic() < end_s and most < 3:
        most = max(most, len(list(Path(folder).iterdir())))
        time.sleep(0.05)
    time.sleep(1.0)  # a fourth one would come meanwhile
    most = max(most, len(list(Path(folder).iterdir())))
    mine.unlink()
    return most


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import tune

    share = resources(TRIAL, predictor=pretrained_release(), device="cpu-2", loading=WAITING)
    ray.init(num_cpus=2, _memory=4 * 2**30, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("tune", "ray", "results")]
        for place in places:
            place.mkdir()

        def train(config):
            return {"at_once": at_once(str(places[0]))}

        tuner = tune.Tuner(
            tune.with_resources(train, share),
            tune_config=tune.TuneConfig(num_samples=3),
            run_config=tune.RunConfig(storage_path=str(places[2]), verbose=0),
        )
        under_tune = int(tuner.fit().get_dataframe()["at_once"].max())
        remote = ray.remote(at_once).options(**share.remote_options())
        under_ray = max(ray.get([remote.remote(str(places[1])) for _ in range(3)]))
    sys.stdout.write(f"{under_tune} at once under Tune, {under_ray} at once under Ray\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
