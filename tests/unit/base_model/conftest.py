"""A tokenizer, and problems, made once."""

from __future__ import annotations

import pytest

from genselect.base_model import problems
from genselect.base_model.tokenizer import build_tokenizer
from genselect.base_model.transcripts import Prompts, TranscriptWriter

PROMPTS = Prompts("solve", "check", "{problem}")


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer([PROMPTS.plain_system, PROMPTS.careful_system])


@pytest.fixture(scope="session")
def rows():
    return problems.evaluation_rows(1, 40, [])


@pytest.fixture(scope="session")
def writer(tokenizer):
    return TranscriptWriter(tokenizer, PROMPTS)
