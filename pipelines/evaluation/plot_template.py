"""Template for the page of ``dvc plots`` that contains Vega: the page needs no network.

Run ``python -m presage.pipelines.evaluation.plot_template TARGET``, with the extra ``docs``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from presage.system.files.atomic_file import write_atomically

# DVC replaces the words in braces. Its own template has {scripts}, which load Vega from the web.
TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Plots of the last training</title>
<script>
VEGA
</script>
{refresh_tag}
</head>
<body>
{plot_divs}
</body>
</html>
"""


def plot_template() -> str:
    """Return the template, with Vega, Vega-Lite and Vega-Embed as one script of 0.9 MB."""
    import vl_convert

    # Its stub, which not every environment has, requires an argument.
    script = vl_convert.javascript_bundle()  # type: ignore[call-arg, unused-ignore]
    return TEMPLATE.replace("VEGA", script)


def main() -> None:
    """Write the template."""
    parser = argparse.ArgumentParser(
        prog="python -m presage.pipelines.evaluation.plot_template",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("target", type=Path)
    target: Path = parser.parse_args().target
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, lambda path: path.write_text(plot_template(), encoding="utf-8"))


if __name__ == "__main__":
    main()
