"""Pages of the documentation as blocks of code, and how to run them: one namespace and one folder for each page."""

import contextlib
import doctest
import io
import itertools
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from atypicality.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILT = ("_build", "_generated", "_figures", "auto_examples", "tables")
LANGUAGES = ("python", "bash", "text", "json", "html")
COLUMNS = 88
"""Widest line of a block, and the terminal that the commands of a page see."""
COMPARE = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]*) -->\n)?(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=fence)[ ]*$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text and line, the output right after it, and why it does not run here."""

    language: str
    code: str
    line: int
    expected: str | None = None
    why_not: str | None = None

    @property
    def runs(self):
        """Whether it is code, and no comment before it, which readers do not see, says why it cannot run here."""
        return self.language in ("python", "bash") and self.why_not is None


def pages():
    """Every page that a person writes: README and docs/, by their path from the root."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [path for path in found if not set(path.relative_to(ROOT).parts) & set(BUILT)]


def blocks(text):
    """The fenced blocks of a page; a `text` block after a block of code, with nothing between, is its output."""
    matches = [match for match in FENCE.finditer(text) if not match["language"].startswith("{")]
    found = []
    for match, after in itertools.zip_longest(matches, matches[1:]):
        follows = after is not None and after["language"] == "text" and not text[match.end() : after.start()].strip()
        line = text.count("\n", 0, match.start()) + 1
        expected = after["code"] if follows else None
        found.append(Block(match["language"].strip(), match["code"], line, expected, match["why"]))
    return found


def run_page(path, folder):
    """Run the blocks of a page in order, in `folder`; the output of each that runs, as (block, printed)."""
    namespace = {"__name__": "__main__"}
    try:
        with contextlib.chdir(folder):
            return [(block, run(block, path, namespace)) for block in blocks(path.read_text("utf-8")) if block.runs]
    finally:
        if "altair" in sys.modules:  # a page may choose a renderer, for the whole process
            sys.modules["altair"].renderers.enable("default")


def run(block, path, namespace):
    """What a block prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if block.language == "python":
            source = "\n" * block.line + block.code  # so that a traceback names the line of the page
            exec(compile(source, str(path), "exec", dont_inherit=True), namespace)
        else:
            for command in commands(block.code):
                run_command(command)
    return printed.getvalue()


def commands(code):
    """The commands of a shell block, continued lines joined, without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip() and not line.lstrip().startswith("#")]


def run_command(arguments):
    """Run one `atypicality` command; any other must be marked as not run."""
    assert arguments[0] == "atypicality", f"{arguments[0]} cannot be run by this test: mark the block"
    assert main(arguments[1:]) == 0, arguments


def same(expected, printed):
    """Whether printed text is what a page shows: white space may differ, and `...` stands for anything."""
    return doctest.OutputChecker().check_output(expected, printed, COMPARE)


def links(text):
    """Targets of links and images that lie in the repository, outside of code."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:|#", t)]
