"""Language and shape of code and pages: patterns of hard sentences and crowded lines do not occur.

`python tests/test_language.py` prints the places; with PATTERN or FILE, only those.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TEXT_PATTERNS = {
    "what-clause": r"(?<!# )\bWhat\b(?! does\b)"
    r"|\b(of|than|by|as|to|on|about|from|with|is|are) what\b",
    "code-that-speaks": r"(?<![`./])\b(told|tells?(?! nothing)|telling|asked|asks?|asking|said"
    r"|says?|saying|believed?)\b(?!:| =|[/`])",
    "double-genitive": r"\bof (its|their|our|your) own\b|\bof (ours|yours)\b"
    r"|\bof (a |the )?\w+'s(?=[.,;:)]|$| (and|or|which|that|is|are)\b)",
    "headless-noun": r"\bthe whole\b"
    r"(?= (agrees|fails|gives|is|does|runs|failed|without|has|and)\b|[,.;:])"
    r"|\b(is|are|be|was|were|far) off\b|\bgo(es)? wrong\b",
    "makes-gives": r"\b(makers? of(?! another)|made by|is made|that makes?|gives|gave|given no)\b",
    "is-none": r"\b(is|are|was) none\b|\bis no (part|setting|text|JSON|number)\b",
    "spatial": r"\b(behind|beside(?!:)|stands?(?! out)|stood|lies|in the place of)\b",
    "dated-word": r"\banew\b|\bonce more\b|(?<!years )\bof (no )?use\b|\bspoil\w*\b|\bin vain\b"
    r"|\bso (many|few|far)\b",
}
# Patterns of docstrings: of each line, of the first line.
LINE_PATTERNS = {
    "question": r"^(Is|Are|Does|Do|Did|Has|Have|Was|Were|May|Can|Must|Could|Should)\b[^.]*\?",
    "two-fields": r"^\s+[a-z_]+: .*\. [a-z_]+(, [a-z_]+)*: |^\s+[a-z_]+(, [a-z_]+)+: ",
}
SUMMARY_PATTERNS = {
    "elliptic-start": r"^(As|Of|By|In|With|Without|For|At|From|To|Where|The same)\b"
}
PARTICIPLES = frozenset(
    "chosen drawn found told held made given kept seen shown written fed left lent sent taken "
    "known".split()
)
PREPOSITIONS = frozenset(
    "of by above below beside beyond around between within behind before after".split()
)
PUBLIC_NAMES = {"of_pair", "computed_by", "cleaned", "listed"}  # of plug-ins
COMMENT = re.compile(r"(?:^|  )\s*# (.*)")
WORD = re.compile(r"\b[a-z]{2,}\b")
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
REGEX = {
    name: re.compile(regex, re.MULTILINE)
    for name, regex in (TEXT_PATTERNS | LINE_PATTERNS | SUMMARY_PATTERNS).items()
}


class Place(NamedTuple):
    """An occurrence of a pattern."""

    pattern: str
    file: str
    line: int
    text: str


def _get_docstring(node: Any) -> ast.Constant | None:
    """Return the constant that is the docstring of a module, class or function."""
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    return first.value if isinstance(first.value.value, str) else None


def _is_message(constant: ast.Constant) -> bool:
    return isinstance(constant.value, str) and len(WORD.findall(constant.value)) >= 3


def _is_unrelated_pair(node: ast.Assign) -> bool:
    """Return whether `a, b = x, y` assigns values that do not swap or shift the targets."""
    if not isinstance(node.targets[0], ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    stored = {ast.unparse(target) for target in node.targets[0].elts}
    read = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
    return not stored & read


def _is_nested_condition(node: ast.IfExp) -> bool:
    return any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse, node.test))


def _is_conditional_in_fstring(node: ast.FormattedValue) -> bool:
    return isinstance(node.value, ast.IfExp)


def _has_two_for(node: ast.ListComp) -> bool:
    return len(node.generators) > 1


def _is_badly_named(node: ast.FunctionDef) -> bool:
    if node.name.startswith("__") or node.name in PUBLIC_NAMES:
        return False
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    if "property" in decorators or "add_option_groups" in decorators:  # a command is its word
        return False
    first = node.name.strip("_").split("_")[0]
    is_participle = first.endswith("ed") and first not in {"need", "feed", "seed", "embed"}
    return is_participle or first in PARTICIPLES or first in PREPOSITIONS


CODE_PATTERNS: dict[type[ast.AST], tuple[str, Callable[..., bool]]] = {
    ast.Assign: ("unrelated-pair", _is_unrelated_pair),
    ast.IfExp: ("nested-condition", _is_nested_condition),
    ast.FormattedValue: ("conditional-in-fstring", _is_conditional_in_fstring),
    ast.FunctionDef: ("function-name", _is_badly_named),
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), ("double-for", _has_two_for)
    ),
}


def _match(file: str, line: int, text: str, names: dict[str, str]) -> Iterator[Place]:
    for name in names:
        for found in REGEX[name].finditer(text):
            at = text.count("\n", 0, found.start())
            yield Place(name, file, line + at, text.split("\n")[at].strip())


def _find_in_docstring(file: str, constant: ast.Constant) -> Iterator[Place]:
    text = str(constant.value)
    yield from _match(file, constant.lineno, text, TEXT_PATTERNS)
    yield from _match(file, constant.lineno, text, LINE_PATTERNS)
    yield from _match(file, constant.lineno, text.strip().split("\n")[0], SUMMARY_PATTERNS)


def _find_in_tree(file: str, tree: ast.Module) -> Iterator[Place]:
    docstrings: set[ast.Constant] = set()
    for node in ast.walk(tree):  # breadth first: the owner of a docstring comes before it
        if isinstance(node, OWNERS) and (constant := _get_docstring(node)):
            docstrings.add(constant)
            yield from _find_in_docstring(file, constant)
        elif isinstance(node, ast.Constant) and node not in docstrings and _is_message(node):
            yield from _match(file, node.lineno, str(node.value), TEXT_PATTERNS)
        pattern, matches = CODE_PATTERNS.get(type(node), ("", bool))
        if pattern and matches(node):
            yield Place(pattern, file, getattr(node, "lineno", 0), ast.unparse(node).split("\n")[0])


def _find_in_code(path: Path) -> Iterator[Place]:
    source = path.read_text(encoding="utf-8")
    file = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(source.split("\n"), 1):
        if len(line) > 100:
            yield Place("long-line", file, number, line.strip())
        if "# " in line and (comment := COMMENT.search(line)):
            yield from _match(file, number, comment[1], TEXT_PATTERNS)
    yield from _find_in_tree(file, ast.parse(source))


def _find_in_page(path: Path) -> Iterator[Place]:
    """Yield the places of a page outside its blocks of code."""
    text = path.read_text(encoding="utf-8")
    prose = re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    yield from _match(path.relative_to(ROOT).as_posix(), 1, prose, TEXT_PATTERNS)


@cache
def find_code_places() -> list[Place]:
    files = sorted(ROOT.joinpath("subgraph").rglob("*.py"))
    return [place for path in files for place in _find_in_code(path)]


@cache
def find_page_places() -> list[Place]:
    made = {ROOT / "docs" / "errors.md", ROOT / "docs" / "notebook.md"}
    folders = {ROOT / "docs" / "commands", ROOT / "docs" / "known"}
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted(ROOT.joinpath("docs").rglob("*.md"))]
    written = [page for page in pages if page not in made and page.parent not in folders]
    return [place for page in written for place in _find_in_page(page)]


def test_no_pattern_occurs() -> None:
    places = [*find_code_places(), *find_page_places()]
    assert not "\n".join(f"{p.file}:{p.line}: {p.pattern}: {p.text[:80]}" for p in places)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for place in [*find_code_places(), *find_page_places()]:
        if not wanted or place.pattern in wanted or place.file in wanted:
            print(f"{place.file}:{place.line}: {place.pattern}: {place.text[:120]}")
