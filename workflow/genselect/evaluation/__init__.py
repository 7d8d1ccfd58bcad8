"""The final word: baselines from the candidates, paired statistics, preregistration and comparison. No model, no torch."""

from genselect.evaluation.baselines import (
    Classes,
    baseline_rows,
    baseline_summary,
    classify,
    equal_by,
    form_pairs,
)
from genselect.evaluation.comparison import Arm, baseline_arms, compare_arms
from genselect.evaluation.comparison_text import comparison_text
from genselect.evaluation.conclusion import Verdict, verdict
from genselect.evaluation.power import minimum_detectable_effect, plan_effect, power_at
from genselect.evaluation.preregistration import (
    check,
    make_hypothesis,
    make_settings,
    preregister,
    read_preregistration,
)
from genselect.evaluation.questions import (
    CandidateView,
    Question,
    population_sha256,
    read_questions,
    read_row_questions,
)
from genselect.evaluation.replicates import combine_seeds
from genselect.evaluation.statistics import holm, mcnemar_exact, paired_comparison

__all__ = [
    "Arm",
    "CandidateView",
    "Classes",
    "Question",
    "Verdict",
    "baseline_arms",
    "baseline_rows",
    "baseline_summary",
    "check",
    "classify",
    "combine_seeds",
    "compare_arms",
    "comparison_text",
    "equal_by",
    "form_pairs",
    "holm",
    "make_hypothesis",
    "make_settings",
    "mcnemar_exact",
    "minimum_detectable_effect",
    "paired_comparison",
    "plan_effect",
    "population_sha256",
    "power_at",
    "preregister",
    "read_preregistration",
    "read_questions",
    "read_row_questions",
    "verdict",
]
