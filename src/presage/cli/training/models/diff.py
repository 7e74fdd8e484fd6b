"""``presage models diff``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.releases import better, figures, ingredients, print_diff, side_by_side
from presage.cli.training.models.options import Ref, facts_of, open_registry
from presage.cli.training.options import RegistryUri


@command(examples="presage models diff champion challenger")
def diff(a: Ref, b: Ref, registry: RegistryUri = "", as_json: Json = False) -> None:
    """Compare the metrics and the training data of two releases.

    The metrics come from each release's own evaluation. `presage models gate` compares both on
    the same rows.
    """
    opened = open_registry(registry)
    releases = [opened.resolve(ref) for ref in (a, b)]
    left, right = (opened.manifest(release) for release in releases)
    made_of = {name: pair for name, pair in ingredients(left, right) if pair[0] != pair[1]}
    rows = [
        {"predictor": p, "split": s, "metric": m, "a": x, "b": y, "better": better(m, x, y)}
        for (p, s, m), x, y in side_by_side(figures(left), figures(right))
    ]
    if as_json:
        pair = dict(zip("ab", map(facts_of, releases), strict=True))
        print_json(pair | {"metrics": rows, "made_of": made_of}, sort_keys=True)
    else:
        print_diff([release.release_id for release in releases], rows, made_of)
