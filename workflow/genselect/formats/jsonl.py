"""JSON and JSON lines, read with errors that name file and line, written whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from genselect.errors import GenselectError
from genselect.formats.atomic import atomic_path

#: Errors show this much of an offending line.
_SHOWN = 80


def read_jsonl(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of each line; blank lines are skipped.

    Raises:
        GenselectError: The file is missing, or a line is not a UTF-8 JSON object.
    """
    path = Path(path)
    with _opened(path) as handle:
        for number, line in enumerate(handle, start=1):
            if line.strip():
                yield number, parse_line(line, path, number)


def parse_line(line: bytes, path: Path | str, number: int) -> dict[str, Any]:
    """The object on one line of ``path``."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        shown = line[:_SHOWN].decode("utf-8", errors="replace").rstrip("\n")
        raise GenselectError(
            f"{path}, line {number}: not JSON in UTF-8: {error}: {shown!r}",
            "Each line must be one JSON object; make the file again with the step that wrote it.",
        ) from None
    if not isinstance(value, dict):
        raise GenselectError(
            f"{path}, line {number}: a JSON object was expected, not {type(value).__name__}",
            "Each line must be one JSON object.",
        )
    return value


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> int:
    """Write ``rows`` in their order, keys in theirs; returns their number."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        for row in rows:
            handle.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


def read_json(path: Path | str) -> Any:
    """The value in a JSON file.

    Raises:
        GenselectError: The file is missing or not JSON.
    """
    path = Path(path)
    with _opened(path) as handle:
        try:
            return orjson.loads(handle.read())
        except orjson.JSONDecodeError as error:
            raise GenselectError(
                f"{path}: not JSON: {error}", "Make the file again with the step that wrote it."
            ) from None


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` indented, so that a person can read it."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(
            orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        raise GenselectError(
            f"{path}: there is no such file", "Run the step that makes it, or check the path."
        ) from None
    except OSError as error:
        raise GenselectError(
            f"{path}: cannot be read: {error.strerror}", "Check the path and its permissions."
        ) from error
    with handle:
        yield handle
