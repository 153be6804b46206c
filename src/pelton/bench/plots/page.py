"""The page around the plots.

Figures are plain data in the form that plotly.js draws (https://plotly.com/javascript/reference/), `{"data": ...,
"layout": ...}`, so that the page can hold them as JSON: other programs find it in the element `figures`.
"""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.bench.extras import need
from pelton.bench.result_files import write_text

Figure = dict[str, Any]

BLUE, LIGHT_BLUE, ORANGE, GREEN, RED = "#2166ac", "#92c5de", "#e08214", "#1b7837", "#b2182b"
GREY, LIGHT_GREY, INK = "#7f8792", "#d5d9df", "#1f2328"

_FONT = "system-ui, sans-serif"
_AXIS = {"gridcolor": "#eceff3", "linecolor": GREY, "zeroline": False, "ticks": "outside", "tickcolor": GREY}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 1.5rem auto; max-width: 75rem; padding: 0 1rem; font: 15px/1.4 {font}; color: {ink}; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1.5rem; }}
dt {{ color: #59626e; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
<dl>
{facts}
</dl>
{places}
<script>{plotly}</script>
<script type="application/json" id="figures">{figures}</script>
<script>
JSON.parse(document.getElementById("figures").textContent).forEach((figure, number) =>
  Plotly.newPlot("figure-" + number, figure.data, figure.layout, {{displaylogo: false, responsive: true}}));
</script>
</body>
</html>
"""


def write_page(path: Path | str, title: str, facts: Mapping[str, object], figures: Sequence[Figure]) -> None:
    """Write a page with these figures below a heading and what is to be known about them.

    Facts without a value (None) are left out. Raises ValueError if plotly is not installed, and for figures that hold
    a number that is not finite.
    """
    need("plotly", "a plot")
    from plotly.offline import get_plotlyjs

    rows = (f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts.items() if value is not None)
    page = _PAGE.format(
        title=text(title),
        font=_FONT,
        ink=INK,
        facts="\n".join(rows),
        places="\n".join(f'<div id="figure-{number}"></div>' for number in range(len(figures))),
        plotly=get_plotlyjs(),
        # No text in it can end the element.
        figures=json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),
    )
    write_text(path, page)


def text(value: object) -> str:
    """What others wrote, such as a model's name, as text of the page or of a plot, which has HTML's tags too."""
    return html.escape(str(value))


def machine_facts(machine: Mapping[str, Any] | None, title: str = "Machine") -> dict[str, object]:
    """A line of what `describe_machine` says, for people; nothing if there is no machine."""
    if not machine:
        return {}
    parts = [machine.get("cpu"), f"{machine['cores']} cores" if machine.get("cores") else None, machine.get("kernels")]
    return {title: ", ".join(str(part) for part in parts if part) or None}


def axis(title: str, **settings: Any) -> dict[str, Any]:
    return _AXIS | {"title": {"text": title}} | settings


def layout(title: str, height: int, **settings: Any) -> dict[str, Any]:
    """`settings` are axes and whatever else differs from figure to figure; height is in pixels."""
    return {
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 17}},
        "height": height,
        "font": {"family": _FONT, "color": INK, "size": 13},
        "margin": {"l": 70, "r": 20, "t": 80, "b": 50},
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
    } | settings


def empty_figure(title: str, reason: str) -> Figure:
    """In place of a figure that there is no data for."""
    note = {"text": text(reason), "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    hidden = {"visible": False}
    return {"data": [], "layout": layout(title, 220, annotations=[note], xaxis=hidden, yaxis=hidden)}


def lines(parts: Iterable[str | None]) -> str:
    """Text of several lines, for a label that appears under the pointer."""
    return "<br>".join(part for part in parts if part)
