"""The model card as HTML: the few forms of Markdown that `model_card` writes, and no others."""

import html
import re
from collections.abc import Iterator

__all__ = ["card_to_html"]

_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_CODE = re.compile(r"(?<!\\)`([^`]*)`")
_ITEM = re.compile(r"- |(\d+)\. ")


def card_to_html(markdown: str) -> str:
    r"""Headings, tables, lists, code and paragraphs; what the card shows as text stays text.

    >>> card_to_html("## Limits\n\n- one \\*name\\* &lt;b&gt;\n")
    '<h3>Limits</h3>\n<ul><li>one *name* &lt;b&gt;</li></ul>'
    """
    return "\n".join(_block(block) for block in _blocks(markdown))


def _blocks(markdown: str) -> Iterator[str]:
    """Paragraphs, with a fenced code block kept in one piece."""
    for place, part in enumerate(re.split(r"^```\w*\n(.*?)^```$", markdown, flags=re.M | re.S)):
        if place % 2:
            yield f"```{part}"
        else:
            yield from (block for block in re.split(r"\n\s*\n", part.strip("\n")) if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if block.startswith("```"):
        return f"<pre>{html.escape(block[3:])}</pre>"
    if block.startswith("#"):
        return f"<h3>{_inline(block.lstrip('#').strip())}</h3>"
    if block.startswith("|"):
        return _table(lines)
    if found := _ITEM.match(block):
        tag = "ul" if found[1] is None else f'ol start="{found[1]}"'
        texts = (_ITEM.sub("", line) for line in lines if line.strip())
        items = "".join(f"<li>{_inline(text)}</li>" for text in texts)
        return f"<{tag}>{items}</{tag[:2]}>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _table(lines: list[str]) -> str:
    head, _rule, *body = [[_inline(cell) for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]] for line in lines]
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>"


def _inline(text: str) -> str:
    parts = _CODE.split(text.strip())
    return "".join(f"<code>{_text(part)}</code>" if place % 2 else _text(part) for place, part in enumerate(parts))


def _text(text: str) -> str:
    return html.escape(html.unescape(_ESCAPED.sub(r"\1", text)), quote=False)
