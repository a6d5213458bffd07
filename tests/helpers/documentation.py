# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation as tests see them: code blocks, commands, links, tables.

A fenced block names its language. What its comment line says in front of it decides about it:

    <!-- not run: REASON -->    it cannot run on one machine in a test
    <!-- needs root -->         it runs only as root

A block with a title (```python title="train.py") is a file of that name beside the page's commands.
"""

import dataclasses
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(r"^```(.*)$")
_OPENING = re.compile(r'^(bash|dockerfile|json|python|text|yaml)(?: title="([^"/]+)")?$')
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_NEEDS_ROOT = "<!-- needs root -->"
_ASSIGNMENT = re.compile(r"^[A-Za-z_]+=")


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block.

    Args:
        page: Where it stands.
        line: Number of its first line of code.
        language: What the fence says.
        title: The name of the file that it is, or None.
        code: Its lines.
        reason: Why it is not run, or None.
        needs_root: Whether it runs only as root.
    """

    page: pathlib.Path
    line: int
    language: str
    title: str | None
    code: str
    reason: str | None
    needs_root: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: pathlib.Path) -> list[Block]:
    """The code blocks of a page, in order."""
    blocks = []
    lines = page.read_text().splitlines()
    begin = None
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if not fence:
            continue
        if begin is None:
            opening = _OPENING.match(fence.group(1))
            assert opening, f"{page}:{number}: name a language of {_OPENING.pattern}"
            before = lines[number - 2] if number > 1 else ""
            begin = number + 1
        else:
            assert not fence.group(1), f"{page}:{number}: the block before is not closed"
            reason = _NOT_RUN.match(before)
            code = "\n".join(lines[begin - 1 : number - 1]) + "\n"
            language, title = opening.groups()
            blocks.append(
                Block(
                    page,
                    begin,
                    language,
                    title,
                    code,
                    reason.group(1) if reason else None,
                    before == _NEEDS_ROOT,
                )
            )
            begin = None
    assert begin is None, f"{page}:{begin}: the block is not closed"
    return blocks


def prose_of(page: pathlib.Path) -> str:
    """A page without its code blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def commands_in(code: str) -> list[list[str]]:
    """The simple commands of a shell script, split into words, without variables in front."""
    commands = []
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and (_ASSIGNMENT.match(words[0]) or words[0] == "export"):
            words = words[1:]
        if words:
            commands.append([word for word in words if word != "&"])
    return commands


def commands_in_prose(page: pathlib.Path) -> list[list[str]]:
    """The commands of ours that stand in the text of a page."""
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose_of(page))
    ours = ("tfdear ", "make ", "pytest ", "python ")
    # In tables, a bar is written with a backslash.
    texts = [" ".join(span.replace("\\|", "|").split()) for span in spans]
    return [shlex.split(text) for text in texts if text.startswith(ours)]


def anchors_of(page: pathlib.Path) -> set[str]:
    """What links can name on a page: the headings, as GitHub and MkDocs both write them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = (re.sub(r"[`*]", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def links_of(page: pathlib.Path) -> list[str]:
    """The targets of the links and pictures of a page."""
    return re.findall(r"\]\(([^()\s]+)\)", prose_of(page))


def tables_of(page: pathlib.Path, heading: str) -> list[list[dict[str, str]]]:
    """The tables under a heading of the second level: rows as dictionaries by column."""
    (section,) = re.findall(
        rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL
    )
    tables = []
    for text in re.findall(r"(?:^\|.*\|$\n)+", section, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        columns = rows[0]
        tables.append([dict(zip(columns, row, strict=True)) for row in rows[2:]])
    return tables
