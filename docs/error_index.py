"""docs/errors.md: every error that a user can mend, read off the source, so that none is missing from the list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

GAP = "…"
AREAS = {
    "answers": "comparing answers",
    "base_model": "the base model",
    "config": "the configuration",
    "dataset": "shards, merge, build, selection",
    "episode": "the episode",
    "evaluation": "evaluation and comparison",
    "formats": "reading and writing files",
    "judge": "the judge and labelling",
    "memory": "foreseen memory",
    "plan": "the plan",
    "provenance": "seals and run directories",
    "publishing": "publications and trackers",
    "report": "the report",
    "status": "the status",
    "training": "training runs, gates, rollouts",
    "scripts": "the programs' options",
}
"""Title of each package of the library, and of the programs' folder beside it."""


def error_index(library: Path) -> str:
    """The Markdown page.

    Args:
        library: Folder of the package ``genselect``; ``scripts`` lies beside it.

    Raises:
        ValueError: Errors are raised in a package that has no title here.
    """
    folders = {path.name: path for path in (*library.iterdir(), library.parent / "scripts") if path.is_dir()}
    found_in = {
        name: sorted({pair for path in folder.rglob("*.py") for pair in errors_in(path)})
        for name, folder in folders.items()
    }
    untitled = [name for name, found in found_in.items() if found and name not in AREAS]
    if untitled:
        raise ValueError(f"docs/error_index.py: AREAS has no title for {', '.join(sorted(untitled))}")
    lines = [
        "# Every error, and its way out",
        "",
        "Read off the source by `make docs`. … stands for what the message fills in: a file, a row, a name, a number. Each is",
        "printed as `error: <message>`, and below it `Hint: <way out>`. By symptom: [troubleshooting.md](troubleshooting.md).",
    ]
    for area, title in AREAS.items():
        if found := found_in[area]:
            lines += ["", f"## {title[0].upper()}{title[1:]}", "", "| message | way out |", "|---|---|"]
            lines += [f"| {cell(message)} | {cell(hint)} |" for message, hint in found]
    return "\n".join(lines) + "\n"


def errors_in(path: Path) -> Iterator[tuple[str, str]]:
    """Message and hint of each ``GenselectError(…)`` in a module; those that only hand on another's words are left out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "GenselectError":
            message, hint = (words(argument) for argument in node.args[:2])
            if any(letter.isalpha() for letter in message):
                yield message, hint


def words(node: ast.expr) -> str:
    """The text that an expression gives, with gaps for what only the program knows."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words(node.left) + words(node.right)
    if isinstance(node, ast.IfExp):
        return f"{words(node.body)} / {words(node.orelse)}"
    return GAP


def cell(text: str) -> str:
    """As one cell of a table."""
    plain = " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
    while GAP + GAP in plain:
        plain = plain.replace(GAP + GAP, GAP)
    return plain or GAP
