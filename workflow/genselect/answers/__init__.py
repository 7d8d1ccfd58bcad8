"""Is this boxed answer equivalent to the expected answer? Extraction, normal forms, symbolic check and cascade."""

from genselect.answers.boxed import extract_boxed, final_answer, has_box_command
from genselect.answers.cascade import CASCADE_VERSION, Cascade, Source, Verdict, cascade_fingerprint_fields
from genselect.answers.checker import SymbolicChecker
from genselect.answers.normal import identical, normal_form
from genselect.answers.symbolic import SymbolicVerdict, symbolic_verdict

__all__ = [
    "CASCADE_VERSION",
    "Cascade",
    "Source",
    "SymbolicChecker",
    "SymbolicVerdict",
    "Verdict",
    "cascade_fingerprint_fields",
    "extract_boxed",
    "final_answer",
    "has_box_command",
    "identical",
    "normal_form",
    "symbolic_verdict",
]
