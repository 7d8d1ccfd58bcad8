"""Records, and files that appear whole or not at all."""

from genselect.formats.atomic import atomic_path, write_text
from genselect.formats.jsonl import parse_line, read_json, read_jsonl, write_json, write_jsonl
from genselect.formats.records import ROW_SCHEMA, SOURCES, Candidate, Label, Problem, Source, read_labels, read_problems

__all__ = [
    "ROW_SCHEMA",
    "SOURCES",
    "Candidate",
    "Label",
    "Problem",
    "Source",
    "atomic_path",
    "parse_line",
    "read_json",
    "read_jsonl",
    "read_labels",
    "read_problems",
    "write_json",
    "write_jsonl",
    "write_text",
]
