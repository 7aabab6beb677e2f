"""Follow every link inside the built site: `python docs/check_links.py docs/_build/html`.

A link is inside when it has no scheme. Its file must exist, and where it has a fragment, an element with that id.
Links to other sites are not followed: whether those stand is not ours to say. What a page loads by itself (scripts,
styles, pictures) must be inside, so that the site works without a network.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The ids of a page, and where its links, images, scripts and styles lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag names and where it leads."""
        given = {name: value for name, value in attrs if value}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        self.targets.extend(given[name] for name in ("href", "src") if name in given)
        if tag in ("script", "img") or (tag == "link" and given.get("rel") == "stylesheet"):
            self.loaded.extend(given[name] for name in ("href", "src") if name in given)


def broken_links(site: Path) -> list[str]:
    """One line for each link inside the site that leads nowhere, with the page it stands on."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in pages_of(site)}
    lines = []
    for path, page in pages.items():
        lines += [f"{_name(path, site)}: {one}: needs a network" for one in page.loaded if urlsplit(one).netloc]
        for target in dict.fromkeys(page.targets):
            reason = _broken(path, target, pages)
            if reason:
                lines.append(f"{_name(path, site)}: {target}: {reason}")
    return lines


def pages_of(site: Path) -> list[Path]:
    """The pages of a site; what the theme keeps among its static files is none."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.relative_to(site).parts)


def _name(path: Path, site: Path) -> str:
    return str(path.relative_to(site.resolve()))


def _broken(path: Path, target: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    goal = goal / "index.html" if goal.is_dir() else goal
    if not goal.exists():
        return "no such file"
    if parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].ids:
        return "no such place in that page"
    return ""


def main(folder: str) -> int:
    """Print what is broken; 1 if anything is."""
    site = Path(folder)
    found, n_pages = broken_links(site), len(pages_of(site))
    print("\n".join([*found, f"{n_pages} pages, {len(found)} broken links"]))
    return 1 if found or not n_pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
