"""Write the files that are generated from the source, or check that they are in step.

python docs/generate.py            writes config/schema.json, the tables in config/README.md and docs/study.md, and docs/errors.md
python docs/generate.py --check    says what differs, and fails
"""

import argparse
import difflib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from error_index import error_index
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from study_table import study_tables

from genselect.config import Config
from genselect.config.load import is_named, section_of

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- generated: python docs/generate.py -->", "<!-- end of the generated part -->"


def schema() -> str:
    """The JSON schema of the configuration, which editors complete and check from."""
    values = Config.model_json_schema()
    values["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """A Markdown table row for each key."""
    for name, field in model.model_fields.items():
        inner = section_of(field.annotation)
        if inner:
            named = (
                "<name>."
                if is_named(field.annotation)
                else "[]."
                if field.annotation != inner and not is_named(field.annotation)
                else ""
            )
            yield from rows(inner, f"{prefix}{name}{'' if named == '[].' else '.'}{named}")
            continue
        default = "**required**" if field.default is PydanticUndefined else f"`{shown(field.default)}`"
        extra = field.json_schema_extra
        runtime = "runtime" if isinstance(extra, dict) and extra.get("runtime") else "result"
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        yield f"| `{prefix}{name}` | {default} | {runtime} | {text} |"


def shown(value: object) -> str:
    """A default, short enough for a table."""
    text = json.dumps(value, default=str, ensure_ascii=False).replace("|", "\\|")
    return text if len(text) <= 60 else text[:57] + "…"


def keys() -> str:
    """The table of every key."""
    return "\n".join(["| key | default | changes | meaning |", "|---|---|---|---|", *rows(Config)])


def renewed(name: str, content: str) -> str:
    """The file ``name`` with its generated part replaced by ``content``."""
    before, rest = (ROOT / name).read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


def _generated() -> dict[str, str]:
    """What each file should hold."""
    return {
        "config/schema.json": schema(),
        "config/README.md": renewed("config/README.md", keys()),
        "docs/errors.md": error_index(ROOT / "workflow/genselect"),
        "docs/study.md": renewed("docs/study.md", study_tables(ROOT / "config/study.yaml")),
    }


def main() -> int:
    """Write, or compare with ``--check``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of step")
    check = parser.parse_args().check
    differs = False
    for name, wanted in _generated().items():
        path = ROOT / name
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found == wanted:
            continue
        differs = True
        if check:
            sys.stdout.writelines(
                difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), name, f"{name} (generated)")
            )
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {name}")
    if check and differs:
        print("error: generated files are out of step with the source\nHint: run make docs and commit what it writes.")
    return int(check and differs)


if __name__ == "__main__":
    sys.exit(main())
