"""What every page is made of: its frame, sections with a figure, and tables. All of a page is in one file."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from kvblocks.report.figures import Figure
from kvblocks.report.style import SCRIPT, STYLE
from kvblocks.report.values import escape, script_json

# The browser itself refuses anything from outside the page.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
NEEDS_SCRIPT = "<noscript><p class='empty'>The figures need JavaScript. The words and tables do not.</p></noscript>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, how to read its figure, and the figure: one, or one of several that the reader chooses."""

    title: str
    reading: str
    figures: Mapping[str, Figure | None]
    otherwise: str
    """What to say when there is nothing to draw."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Names of the figures, by id, for the reader to choose from."""
    after: str = ""
    """HTML that follows the figure."""

    @property
    def drawn(self) -> dict[str, Figure]:
        return {name: figure for name, figure in self.figures.items() if figure is not None}

    def html(self, choice: str = "") -> str:
        """The section; `choice` says what the reader chooses a figure by."""
        drawn = self.drawn
        parts = [f"<section>\n<h2>{escape(self.title)}</h2>"]
        if not drawn:
            return "\n".join([*parts, f"<p class='empty'>{escape(self.otherwise)}</p>", self.after, "</section>"])
        parts.append(f"<p class='quiet'>{escape(self.reading.strip())}</p>")
        last = list(drawn)[-1]
        group = last.split("-")[0]
        if len(drawn) > 1:
            options = "".join(
                f"<option value='{name}'{' selected' if name == last else ''}>{escape(self.choices[name])}</option>"
                for name in drawn
            )
            parts.append(f"<p><label>{escape(choice)} <select data-plots='{group}'>{options}</select></label></p>")
        for name in drawn:
            label = f"{self.title}, {self.choices[name]}" if name in self.choices else self.title
            parts.append(
                f"<div class='plot' id='{name}' data-choice='{group}' role='img' aria-label='{escape(label)}'"
                f"{'' if name == last else ' hidden'}></div>"
            )
        return "\n".join([*parts, self.after, "</section>"])


def document(
    *,
    title: str,
    heading: str,
    subtitle: str,
    body_html: Sequence[str],
    footer: str,
    figures: Mapping[str, Figure],
    plotly_js: str,
) -> str:
    """The whole page. `figures` are those of its sections, by id; without any the plotting library is left out."""
    drawing = (
        f"<script>{plotly_js}</script>\n<script>const FIGURES = {script_json(figures)};\n{SCRIPT}</script>\n"
        if figures
        else ""
    )
    body = [
        f"<header>\n<h1>{escape(heading)}</h1>\n<p class='quiet'>{escape(subtitle)}</p>\n</header>\n<main>",
        *([NEEDS_SCRIPT] if figures else []),
        *body_html,
        f"</main>\n<footer>{escape(footer)}</footer>",
    ]
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        "<meta name='color-scheme' content='light dark'>\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n{drawing}</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is "quiet" or nothing."""
    mark = f" class='{kind}'" if kind else ""
    return f"<p{mark}>{escape(text)}</p>"


def legend(colours: Mapping[str, str]) -> str:
    """What the colours of a figure are, by name."""
    spans = (f"<span style='--c:{colour}'>{escape(name)}</span>" for name, colour in colours.items())
    return f"<p class='legend quiet'>{''.join(spans)}</p>"


def table(
    name: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Container[int] = (),
    bold: Container[int] = (),
) -> str:
    """A table of figures, each row headed by its first cell. Columns in `words` are prose; rows in `bold` stand out."""

    def cell(i: int, text: str, tag: str) -> str:
        mark = " class='words'" if i in words else ""
        return f"<{tag}{mark}>{escape(text)}</{tag.split()[0]}>"

    top = "".join(cell(i, text, "th scope='col'") for i, text in enumerate(head))
    lines = []
    for number, row in enumerate(rows):
        cells = (cell(i, text, "td" if i else "th scope='row'") for i, text in enumerate(row))
        mark = " class='bold'" if number in bold else ""
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(name)}'><table>\n<thead><tr>{top}</tr>"
        "</thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>\n</table></div>"
    )
