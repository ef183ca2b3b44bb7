"""Renders the chart with Helm's own engine, which comes as a wheel: no Helm and no cluster needed.

`python helm/render.py [VALUES.yaml ...]` prints what a release named `demo` would consist of, and
exits with 1 and the reason when the values are refused.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import helm_python

__all__ = ["main"]

CHART = Path(__file__).resolve().parent / "blockyard"


def main(files: Sequence[str]) -> int:
    """Render with the values of these files, the last one first."""
    values: dict[str, Any] = {}
    for name in files:
        values |= helm_python.values_from_yaml(Path(name).read_text())
    try:
        with helm_python.Chart.load(CHART) as chart:
            rendered = chart.render(values, name="demo", namespace="default")
    except helm_python.HelmError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in sorted(rendered.items()):
        if text.strip() and not path.endswith("NOTES.txt"):
            print(f"---\n# {path}\n{text.strip()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
