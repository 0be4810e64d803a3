"""What every page is made of: its frame, style and script, sections with plots, and tables; all in one file.

Text is escaped here, so that callers give it as it is; only what is called `html` is taken for HTML.
"""

from __future__ import annotations

import html
import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

STYLE = """
:root { --ink: #1b1f24; --quiet: #5a6472; --paper: #ffffff; --line: #d9dee5; --accent: #0072B2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --quiet: #a3acb8; --paper: #15181c; --line: #343a42; --accent: #56B4E9; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 1040px; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .3rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); overflow-wrap: anywhere; }
.lead { font-size: 1.08rem; border-left: 4px solid var(--accent); padding: .2rem 0 .2rem .9rem; margin: 1.2rem 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--quiet); white-space: normal; vertical-align: bottom; }
td:first-child, th:first-child { text-align: left; }
.plot { width: 100%; margin-bottom: .6rem; }
select { font: inherit; padding: .15rem .4rem; color: inherit; background: var(--paper);
  border: 1px solid var(--line); border-radius: 4px; } [hidden] { display: none; }
ul.tree { list-style: none; padding-left: 1.1rem; border-left: 1px solid var(--line); margin: .3rem 0; }
.legend span { display: inline-block; margin-right: 1rem; }
.legend span::before { content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .4em;
  border-radius: 2px; background: var(--c); }
td.words, th.words { text-align: left; white-space: normal; min-width: 13rem; overflow-wrap: anywhere; }
@media (max-width: 600px) { td.words:not(:first-child) { min-width: 18rem; } td.words:first-child { min-width: 8rem; } }
td.words:first-child { overflow-wrap: break-word; }
td b { color: var(--accent); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); border-radius: 4px;
  padding: .5rem .8rem; margin: .6rem 0; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .9rem; }
"""

SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const ink = getComputedStyle(document.body).color;
  for (const [id, figure] of Object.entries(FIGURES)) {
    const place = document.getElementById(id);
    if (place.hidden) continue;
    const layout = Object.assign({}, figure.layout, { font: Object.assign({}, figure.layout.font, { color: ink }) });
    Plotly.react(place, figure.data, layout, { responsive: true, displayModeBar: false });
  }
}
document.querySelectorAll("select[data-plots]").forEach(select => select.addEventListener("change", () => {
  document.querySelectorAll("[data-choice=" + select.dataset.plots + "]").forEach(
    place => { place.hidden = place.id !== select.value; });
  draw();
}));
dark.addEventListener("change", draw);
draw();
"""


def document(
    *,
    title: str,
    heading: str,
    subtitle: str,
    parts_html: Sequence[str],
    footer: str,
    drawn: Mapping[str, go.Figure],
) -> str:
    """The whole page. `drawn` are the figures of its sections, by the id of their place."""
    plots = {name: json.loads(figure.to_json()) for name, figure in drawn.items()}
    script = f"<script>{get_plotlyjs()}</script>\n<script>const FIGURES = {_script_json(plots)};{SCRIPT}</script>\n"
    return (
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
        "<meta name=viewport content='width=device-width, initial-scale=1'>\n"
        "<meta name=color-scheme content='light dark'>\n"
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n"
        f"<h1>{html.escape(heading)}</h1>\n"
        f"<p class=quiet>{html.escape(subtitle)}</p>\n"
        + "\n".join(parts_html)
        + f"\n<footer>{html.escape(footer)}</footer>\n{script if plots else ''}</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is "lead", "quiet" or nothing."""
    return f"<p{f' class={kind}' if kind else ''}>{html.escape(text)}</p>"


def preformatted(text: str) -> str:
    """Text in which every line counts."""
    return f"<pre>{html.escape(text)}</pre>"


def legend(colours: Mapping[str, str]) -> str:
    """What the colours of a figure are, by name."""
    spans = (f"<span style='--c:{colour}'>{html.escape(name)}</span>" for name, colour in colours.items())
    return f"<p class='legend quiet'>{''.join(spans)}</p>"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, words: Container[int] = (), bold: Container[int] = ()
) -> str:
    """A table of figures. Columns in `words` are prose: on the left, broken into lines. Rows in `bold` stand out."""

    def line(cells: Sequence[str], tag: str, mark: str = "{}") -> str:
        kinds = (" class=words" if i in words else "" for i in range(len(cells)))
        return "".join(
            f"<{tag}{kind}>{mark.format(html.escape(cell))}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td', '<b>{}</b>' if i in bold else '{}')}</tr>" for i, row in enumerate(rows))
    return f"<div class=scroll><table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"


def section(
    drawn: dict[str, go.Figure],
    title: str,
    words: str,
    plots: Mapping[str, go.Figure | None],
    otherwise: str,
    choices: Sequence[str] = (),
) -> list[str]:
    """A heading, a sentence and its plots (with several, a choice of one); or why there is none."""
    parts = [f"<h2>{html.escape(title)}</h2>"]
    shown = {name: figure for name, figure in plots.items() if figure is not None}
    if not shown:
        return [*parts, f"<p>{html.escape(otherwise)}</p>"]
    drawn.update(shown)
    parts.append(f"<p class=quiet>{html.escape(words)}</p>")
    group = next(iter(plots)).split("-")[0]
    if len(plots) > 1:
        last = list(shown)[-1]
        options = [
            f"<option value={name}{' selected' if name == last else ''}>{html.escape(choice)}</option>"
            for name, choice in zip(plots, choices, strict=True)
            if name in shown
        ]
        parts.append(f"<p><label>Cache size <select data-plots={group}>{''.join(options)}</select></label></p>")
        parts += [
            f"<div class=plot id={name} data-choice={group}{'' if name == last else ' hidden'}></div>" for name in shown
        ]
    else:
        parts += [f"<div class=plot id={name}></div>" for name in shown]
    return parts


def _script_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
