"""The page: one document without any outside resource, put together from its parts in `page/`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def page() -> bytes:
    """The document, with its style and its script inside."""
    folder = files("kvblocks.live") / "page"
    read = {name: (folder / name).read_text("utf-8") for name in ("page.html", "style.css", "page.js")}
    document = read["page.html"].replace("/*STYLE*/", read["style.css"])
    return document.replace("/*SCRIPT*/", read["page.js"]).encode()
