"""Check the built documentation: `python .ci/check_site.py FOLDER`. No page may ask another server for anything.

A link that a reader clicks is no request; a script, style, picture, frame or font that a browser fetches by itself is.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

# What a browser loads without being asked to. `link` is one of them, except where it only names a page.
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
}
NAMED = {"canonical", "search", "index", "next", "prev", "author", "license"}
ELSEWHERE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)


class Page(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        values = dict(attrs)
        place = values.get(LOADED.get(tag, "")) or ""
        if ELSEWHERE.match(place) and not (tag == "link" and values.get("rel") in NAMED):
            self.loads.append(place)


def loaded(path: Path) -> list[str]:
    """What this file of the site makes a browser fetch from another server."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        return IN_STYLE.findall(text)
    page = Page()
    page.feed(text)
    return page.loads + IN_STYLE.findall(text)


def main(site: Path) -> int:
    """Print each problem; 1 if there is any."""
    pages = sorted(site.rglob("*.html"))
    problems = [
        f"{path.relative_to(site)} loads {place}" for path in (*pages, *site.rglob("*.css")) for place in loaded(path)
    ]
    if not (site / "index.html").is_file():
        problems.append("there is no index.html")
    for problem in problems:
        print(f"check_site: {problem}", file=sys.stderr)
    if not problems:
        print(f"{len(pages)} pages, and none asks another server for anything")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
