"""``presage models diff``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.releases import (
    INGREDIENTS,
    PLACEMENT_INGREDIENTS,
    better,
    figures,
    ingredients,
    placement_figures,
    print_diff,
    side_by_side,
)
from presage.cli.training.models.options import Model, Ref, ReleaseModel, facts_of, open_registry
from presage.cli.training.options import RegistryUri


@command(
    examples="""
    presage models diff champion challenger
    presage models diff champion 3 --model placement
    """
)
def diff(
    a: Ref,
    b: Ref,
    registry: RegistryUri = "",
    model: Model = ReleaseModel.PREDICTORS,
    as_json: Json = False,
) -> None:
    """Compare the metrics and the training data of two releases.

    The metrics come from each release's own evaluation. `presage models gate` compares both on
    the same rows, or placement releases on the same simulated clusters.
    """
    is_placement = model is ReleaseModel.PLACEMENT
    metrics_of = placement_figures if is_placement else figures
    names = PLACEMENT_INGREDIENTS if is_placement else INGREDIENTS
    opened = open_registry(registry, model)
    releases = [opened.resolve(ref) for ref in (a, b)]
    left, right = (opened.manifest(release) for release in releases)
    made_of = {name: pair for name, pair in ingredients(left, right, names) if pair[0] != pair[1]}
    rows = [
        {"predictor": p, "split": s, "metric": m, "a": x, "b": y, "better": better(m, x, y)}
        for (p, s, m), x, y in side_by_side(metrics_of(left), metrics_of(right))
    ]
    if as_json:
        pair = dict(zip("ab", map(facts_of, releases), strict=True))
        print_json(pair | {"metrics": rows, "made_of": made_of}, sort_keys=True)
    else:
        print_diff([release.release_id for release in releases], rows, made_of)
