"""A network -> one HTML page that opens offline: the whole, and each group in a section that opens
by itself.

The page works without scripts: a closed group is a link to its section, a section is a `<details>`.
The script only adds buttons that open and close all, and opens the section that a link leads to.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from html import escape

from subgraph.drawing.layout import Drawer
from subgraph.drawing.svg import STYLE, Marks, svg
from subgraph.text import clean, count

SCRIPT = """
const all = open => document.querySelectorAll("details").forEach(d => { d.open = open; });
const show = () => { const d = document.getElementById(location.hash.slice(1)); if (d) { d.open = true;
  d.scrollIntoView(); } };
for (const [text, open] of [["Open all", true], ["Close all", false]]) {
  const button = document.createElement("button");
  button.textContent = text;
  button.onclick = () => all(open);
  document.querySelector("header").append(button, " ");
}
addEventListener("hashchange", show);
addEventListener("keydown", e => { if (e.key === "Escape") { all(false); scrollTo(0, 0); } });
show();
"""  # noqa: E501
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}
body {{ margin: 0 auto; padding: 1rem; max-width: {width:g}px; background: Canvas; color: CanvasText;
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.2rem; }} summary {{ cursor: pointer; padding: .2rem 0; }}
</style>
</head>
<body>
<header><h1>{title}</h1>
<p>{about}</p>
<p>A box with + is a group: a click leads to its section.</p></header>
{body}
<script>{script}</script>
</body>
</html>
"""  # noqa: E501


def page(
    drawer: Drawer,
    marks: Marks,
    title: str,
    opened: Collection[str] | None,
    width: float,
    lines: Iterable[str] = (),
) -> str:
    """The whole, with `opened` groups open, then a section per group, outer ones first; `lines`
    stand above."""
    tall = bool(marks.values)
    groups = [group for group in drawer.tree.groups.values() if group.key]
    marks = replace(marks, links={group.key: f"#g{k}" for k, group in enumerate(groups)})
    sections = [
        f'<details id="g{k}"><summary>{escape(clean(group.key))} · '
        f"{count(group.nodes, 'node')}</summary>\n"
        f"{svg(drawer.layout((), width, group.key, tall=tall), marks, group.key, style=False)}</details>"  # noqa: E501
        for k, group in enumerate(groups)
    ]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return PAGE.format(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        title=escape(clean(title)),
        style=STYLE,
        width=width + 32,
        about="<br>".join(map(escape, lines)),
        body="\n".join(
            [svg(drawer.layout(opened, width, tall=tall), marks, title, style=False), *sections]
        ),
        script=SCRIPT,
    )
