"""The judge: what it is asked, by whom, how its replies are read, kept and turned into labels."""

from genselect.judge.fingerprint import judge_fingerprint
from genselect.judge.gather import gather_labels
from genselect.judge.labelling import label_candidates
from genselect.judge.pairs import Shard
from genselect.judge.prompt import JudgePrompt
from genselect.judge.verdict import parse_verdict, reasoning_of

__all__ = [
    "JudgePrompt",
    "Shard",
    "gather_labels",
    "judge_fingerprint",
    "label_candidates",
    "parse_verdict",
    "reasoning_of",
]
