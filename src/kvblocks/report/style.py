"""The look of a page and the script that draws its figures."""

from __future__ import annotations

STYLE = """
:root { --ink: #1b1f24; --quiet: #5a6472; --paper: #ffffff; --line: #d9dee5; --accent: #0072B2; --lift: #f5f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --quiet: #a3acb8; --paper: #15181c; --line: #343a42; --accent: #56B4E9; --lift: #1c2025; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; background: var(--paper); }
body { margin: 0 auto; padding: 1.6rem 1rem 4rem; max-width: 1100px; color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.8rem 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
.quiet { color: var(--quiet); overflow-wrap: anywhere; }
.lead { border-left: 4px solid var(--accent); padding: .1rem 0 .1rem .9rem; margin: 1.3rem 0; }
.lead p:first-child { font-size: 1.1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; font-size: .86rem; font-variant-numeric: tabular-nums;
  width: 100%; margin: .6rem 0; }
th, td { text-align: right; padding: .35rem .45rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--quiet); vertical-align: bottom; }
thead th { white-space: normal; line-height: 1.3; }
tbody th { color: var(--ink); font-weight: 400; vertical-align: middle; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); background-clip: padding-box;
  padding-left: 0; }
.tree th { white-space: normal; overflow-wrap: anywhere; min-width: 11rem; }
.words { text-align: left; white-space: normal; min-width: 13rem; }
.words:first-child { min-width: 8rem; overflow-wrap: break-word; }
tr.bold * { font-weight: 600; color: var(--accent); }
.legend span { display: inline-block; margin-right: 1rem; }
.legend span::before { content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .4em;
  border-radius: 2px; background: var(--c); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--lift); border-radius: 6px;
  padding: .7rem .9rem; margin: .6rem 0; }
.plot { width: 100%; }
select { font: inherit; padding: .15rem .4rem; color: inherit; background: var(--paper);
  border: 1px solid var(--line); border-radius: 4px; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--accent); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; font-size: .92rem; margin: .6rem 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.empty { background: var(--lift); border-radius: 6px; padding: .7rem .9rem; }
[hidden] { display: none; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .9rem; }
"""

SCRIPT = """
"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const narrow = matchMedia("(max-width: 640px)");
function draw() {
  const look = getComputedStyle(document.documentElement);
  const colour = name => look.getPropertyValue(name).trim();
  for (const [id, figure] of Object.entries(FIGURES)) {
    const place = document.getElementById(id);
    if (place.hidden) continue;
    const own = Object.assign({}, figure.layout);
    if (narrow.matches) {
      for (const [key, value] of Object.entries(figure.narrow || {})) {
        own[key] = Array.isArray(value) ? value : Object.assign({}, own[key], value);
      }
    }
    const layout = Object.assign(own, {
      font: Object.assign({}, figure.layout.font, { color: colour("--ink") }),
      hoverlabel: { bgcolor: colour("--paper"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      dragmode: touch.matches ? false : "zoom",  // a finger on a plot scrolls the page
    });
    Plotly.react(place, figure.data, layout, { responsive: true, displayModeBar: false });
  }
}
for (const select of document.querySelectorAll("select[data-plots]")) {
  select.addEventListener("change", () => {
    for (const place of document.querySelectorAll('[data-choice="' + select.dataset.plots + '"]')) {
      place.hidden = place.id !== select.value;
    }
    draw();
    Plotly.Plots.resize(document.getElementById(select.value));
  });
}
dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
draw();
"""
