"""Which programs the rules run in which environment, and which packages those import; read off the source, nothing is run.

Imports inside functions count: a rule that reaches one fails after hours. So do modules that are started by name (``python -m``).
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

#: The library, in whatever environment its programs run.
LIBRARY = "genselect"

_RULE = re.compile(r"^( *)rule (\w+):\n((?:\1 +.*\n|\n)+)", re.MULTILINE)
_CONDA = re.compile(r"^ *conda:\n +\"\.\./envs/(\w+)\.yaml\"", re.MULTILINE)
_PROGRAM = re.compile(r"\{params\.scripts:q\}/(\w+)\.py")
_MODULE = re.compile(rf"{LIBRARY}(\.\w+)+")


def rule_programs(root: Path) -> dict[str, tuple[str | None, str | None]]:
    """Each rule of ``rules/`` that makes something: its environment and its program, None for one that names none."""
    found = {}
    for path in sorted((root / "rules").glob("*.smk")):
        for _, rule, body in _RULE.findall(path.read_text(encoding="utf-8")):
            if re.search(r"^ *(shell|run|script):", body, re.MULTILINE):
                conda, program = _CONDA.search(body), _PROGRAM.search(body)
                found[rule] = (conda and conda[1], program and program[1])
    return found


def programs(root: Path) -> dict[str, list[str]]:
    """The programs that each environment runs."""
    found: dict[str, set[str]] = {}
    for environment, program in rule_programs(root).values():
        if environment is not None and program is not None:
            found.setdefault(environment, set()).add(program)
    return {environment: sorted(names) for environment, names in sorted(found.items())}


def needs(root: Path, program: str) -> tuple[set[str], set[str]]:
    """What a program of workflow/scripts may import: modules of the library, and top modules of other packages."""
    workflow = root / "workflow"
    library: set[str] = set()
    others: set[str] = set()
    waiting = {*_imports(workflow / "scripts" / f"{program}.py", "")}
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if top != LIBRARY:
            if top not in sys.stdlib_module_names:
                others.add(top)
            continue
        parts = name.split(".")
        # A name out of a module (`from genselect.errors import GenselectError`) leads to that module; a module to the packages above it.
        for module in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            path = _source(workflow, module)
            if path is not None and module not in library:
                library.add(module)
                waiting |= _imports(path, module if path.name == "__init__.py" else module.rpartition(".")[0])
    return library, others


def _source(workflow: Path, module: str) -> Path | None:
    base = workflow.joinpath(*module.split("."))
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.exists()), None)


@cache
def _imports(path: Path, package: str) -> frozenset[str]:
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")), package))


def _names(tree: ast.Module, package: str) -> Iterator[str]:
    # What only type checkers read is never imported.
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for child in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.List | ast.Tuple):
            # python -m MODULE
            words = [element.value if isinstance(element, ast.Constant) else None for element in node.elts]
            yield from (str(after) for word, after in pairwise(words) if word == "-m" and after)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            yield node.value
