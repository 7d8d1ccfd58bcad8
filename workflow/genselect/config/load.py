"""From YAML to a checked configuration, with errors that say what was meant."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from genselect.config.models import Config
from genselect.errors import GenselectError


def load_config(path: Path | str) -> Config:
    """Read and check a configuration file.

    Raises:
        GenselectError: The file is missing, not YAML, or does not fit the models; every fault is listed.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise GenselectError(
            f"{path}: there is no such configuration file", "Start from config/mini.yaml or config/config.yaml."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise GenselectError(f"{path}: cannot be read: {error}", "The configuration is a UTF-8 YAML file.") from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise GenselectError(f"{path}: not YAML: {error}", "Check the indentation and quoting at that line.") from error
    return check_config(values, str(path))


def check_config(values: Any, origin: str) -> Config:
    """Check values already read, such as Snakemake's merged ``config``. ``origin`` is named in errors."""
    if not isinstance(values, Mapping):
        raise GenselectError(
            f"{origin}: the configuration is empty or not a mapping",
            "Start from config/mini.yaml or config/config.yaml.",
        )
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        faults = [_describe(fault) for fault in error.errors()]
        lines = "\n".join(f"  - {what}" for what, _ in faults)
        hints = list(dict.fromkeys(hint for _, hint in faults))
        raise GenselectError(
            f"{origin}: {len(faults)} fault(s) in the configuration:\n{lines}", " ".join(hints)
        ) from None


def _describe(fault: Any) -> tuple[str, str]:
    """One pydantic fault as (what is wrong, hint)."""
    location = list(fault["loc"])
    key = ".".join(str(part) for part in location)
    section = ".".join(str(part) for part in location[:-1]) or "the top level"
    if fault["type"] == "extra_forbidden":
        siblings = list(_fields_at(location[:-1]))
        close = difflib.get_close_matches(str(location[-1]), siblings, n=1, cutoff=0.6)
        if close:
            return f"{key}: no such key", f"Did you mean {'.'.join([*map(str, location[:-1]), close[0]])}?"
        elsewhere = [path for path in _all_keys(Config) if path.rsplit(".", 1)[-1] == location[-1]]
        if elsewhere:
            return f"{key}: no such key", f"{location[-1]} belongs at {elsewhere[0]}."
        return f"{key}: no such key", f"Keys of {section}: {', '.join(siblings)}."
    if fault["type"] == "missing":
        return f"{key}: missing", f"Add {location[-1]} to {section}; config/README.md says what it means."
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key or 'configuration'}: {message}", "config/README.md lists every key with its meaning."
    return f"{key}: {message} (got {fault['input']!r})", "config/README.md lists every key with its type and default."


def _fields_at(location: typing.Sequence[Any]) -> Iterator[str]:
    """The keys that the section at ``location`` knows."""
    model: type[BaseModel] | None = Config
    parts = iter(location)
    for part in parts:
        field = model.model_fields.get(str(part)) if model else None
        model = section_of(field.annotation) if field else None
        if field and is_named(field.annotation):
            next(parts, None)  # the name, which is the user's own
    if model:
        yield from model.model_fields


def is_named(annotation: Any) -> bool:
    """Whether ``annotation`` is a mapping from names to sections, such as ``runs``."""
    return typing.get_origin(annotation) is dict and section_of(annotation) is not None


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``annotation`` (optional, in a list, under names, or by itself), if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, dict, list):
        return next((found for part in typing.get_args(annotation) if (found := section_of(part))), None)
    return None


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if inner := section_of(field.annotation):
            middle = "<name>." if is_named(field.annotation) else ""
            yield from _all_keys(inner, f"{prefix}{name}.{middle}")
