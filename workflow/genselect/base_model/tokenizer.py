r"""The miniature's tokenizer: byte-level BPE of about 500 tokens, trained on generated text.

Whatever bytes come in can be encoded. What the policy reads and writes is short: numbers are cut into pairs of digits so that
0 to 99 are one token each, ``\boxed{`` is one, and so is every tag of a chat turn or a tool call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from genselect.base_model.chat_template import CHAT_TEMPLATE
from genselect.dataset.miniature import generate_problems
from genselect.episode import NONE_LEFT, TOOLS
from genselect.errors import GenselectError

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
#: Skipped when text is decoded without special tokens, as in the real family.
SPECIAL_TOKENS = (
    PADDING,
    "<|im_start|>",
    END_OF_TURN,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
#: One token each, but text: a parser of tool calls must see them.
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
        "<function=", "</function>", "<parameter=", "</parameter>")  # fmt: skip

#: Tokens a sequence may have.
MAX_LENGTH = 1024
_MAX_TOKENS = 512
# A problem statement and its candidates are a few words; a system message much longer than this would not fit beside them.
_MAX_SYSTEM_TOKENS = 256
# What a token may span. Letters apart from digits, digits in pairs, line ends apart from all else: so text that is put
# together from pieces has the same tokens as the pieces.
_PIECES = r"\\boxed\{|\n\n|\n|\d{1,2}| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+"
_CORPUS_SEED = 10**12 - 1
_CORPUS_PROBLEMS = 400


def build_tokenizer(systems: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train the tokenizer. Same arguments, same tokenizer.

    Args:
        systems: System messages that the policy will read.

    Raises:
        GenselectError: A system message is too long for the miniature.
    """
    systems = list(systems)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MAX_TOKENS - len(TAGS),
        min_frequency=8,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(systems), trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    for system in systems:
        length = len(made.encode(system, add_special_tokens=False))
        if length > _MAX_SYSTEM_TOKENS:
            raise GenselectError(
                f"prompt.system takes {length} tokens of the miniature's tokenizer, and it reads {_MAX_SYSTEM_TOKENS} at most",
                "Shorten prompt.system in the miniature's configuration to a few words; its tools explain themselves.",
            )
    return made


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerFast:
    """The tokenizer saved in a model folder, as every reader of it loads it."""
    return cast(PreTrainedTokenizerFast, AutoTokenizer.from_pretrained(str(folder), local_files_only=True))


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one token, named by its text."""
    return cast(int, tokenizer.convert_tokens_to_ids(token))


def number_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids of 0 to 99, in order.

    Raises:
        GenselectError: One of them is not a single token.
    """
    ids = [tokenizer.encode(str(number), add_special_tokens=False) for number in range(100)]
    if any(len(pieces) != 1 for pieces in ids):
        raise GenselectError(
            "the tokenizer has no single token for each of 0 to 99, which the miniature's answers need",
            "Make the base model again with this version.",
        )
    return [pieces[0] for pieces in ids]


def _corpus(systems: list[str]) -> Iterator[str]:
    """Text like what will be read and written. Repeats make whole words win over the rarer pieces of other words."""
    for problem in generate_problems(_CORPUS_SEED, _CORPUS_PROBLEMS):
        if problem.kind == "integer":
            yield "\n".join([problem.statement, *(candidate.text for candidate in problem.candidates)])
    names = " ".join(tool["function"]["name"] for tool in TOOLS)
    framework = f"tools: {names}\n\nsystem\nuser\nassistant\nexplore>\nsubmit>\nanswer>\npass\nfail\n"
    yield from [framework, NONE_LEFT + "\n", *(system + "\n" for system in systems)] * 100
    # Pairs of digits first of all: there are ninety, each of which must win a place.
    yield from [" ".join(map(str, range(100)))] * 2000
