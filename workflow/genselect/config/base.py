"""What every section of the configuration is made of.

A section is a pydantic model that refuses unknown keys. Its fields are of two kinds: those that change a result, which make
up the section's *identity* and are hashed into fingerprints, and runtime-only ones (time-outs, concurrency, ports), marked
``RUNTIME``, which may change between two starts of the same experiment without anything being redone.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict

#: Passed as ``json_schema_extra`` to the fields that never change a result.
RUNTIME: dict[str, Any] = {"runtime": True}


class Section(BaseModel):
    """One section of the configuration: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

    def identity(self) -> dict[str, Any]:
        """The fields that change a result, nested sections included, as plain JSON values."""
        kept: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("runtime"):
                continue
            value = getattr(self, name)
            kept[name] = _identity(value)
        return kept


def _identity(value: Any) -> Any:
    """``value`` as JSON would give it back, of sections, also those in lists and mappings, their identity."""
    if isinstance(value, Section):
        return value.identity()
    if isinstance(value, list | tuple):
        return [_identity(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): _identity(entry) for key, entry in value.items()}
    return json_value(value)


def json_value(value: Any) -> Any:
    """``value`` as JSON would give it back (tuples become lists, paths strings)."""
    return json.loads(json.dumps(value, default=str))


def fingerprint(fields: Any) -> str:
    """The sha256, in hex, of ``fields`` written as canonical JSON: equal settings give equal fingerprints."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()
