"""The miniature's base model, from nothing to a sealed folder.

RL re-weights skills, it does not build them: tens of updates cannot teach a network of this size to read a check or to copy an
answer. So the base model can do both before RL begins, and under the training prompt it does not show it.
"""

from __future__ import annotations

import datetime
import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from genselect.base_model import gated_delta, problems
from genselect.base_model.folder import RECORD, check_replaceable, whole_folder
from genselect.base_model.network import build_network, save_model
from genselect.base_model.play import MAX_TOKENS, play, summary
from genselect.base_model.settings import WarmStartSettings
from genselect.base_model.tokenizer import build_tokenizer
from genselect.base_model.training import WarmStart
from genselect.base_model.transcripts import Prompts, TranscriptWriter
from genselect.config import fingerprint
from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.provenance import write_seal

logger = logging.getLogger("genselect")

#: Files of a made model, besides the record and its seal.
FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def make_base_model(
    output: Path | str,
    settings: WarmStartSettings,
    *,
    system: str,
    user: str = "{problem}",
    keep_away: Iterable[str] = (),
) -> dict[str, Any]:
    """Make the model, write it into the folder ``output`` with ``base_model.json`` and its seal, and return that record.

    Args:
        output: Appears whole, replacing an earlier model there.
        settings: Seed, steps and shares.
        system: The system message of training and evaluation.
        user: The user message, with ``{problem}``.
        keep_away: Problem statements whose questions must be neither trained on nor evaluated on.

    Raises:
        GenselectError: ``output`` holds something else, or the system messages do not do.
    """
    started = datetime.datetime.now(datetime.UTC)
    output = Path(output)
    check_replaceable(output, FILES)
    if system.strip() == settings.careful_system.strip():
        raise GenselectError(
            f"prompt.system is {system!r}, which is also the careful policy's system message",
            "The base model must not show its better skill where it is trained: give prompt.system another wording.",
        )
    keep_away = list(keep_away)
    with _threads(settings.threads):
        network, tokenizer, record = _train_and_measure(
            settings, Prompts(system, settings.careful_system, user), keep_away
        )
        with whole_folder(output) as staged:
            save_model(network.to(torch.bfloat16), tokenizer, staged)
            write_json(staged / RECORD, record)
            write_seal(
                staged / RECORD,
                kind="base_model",
                counts={name: record[name] for name in ("parameters", "vocabulary")},
                outputs=[staged / name for name in (*FILES, RECORD)],
                inputs=[],
                started=started,
                fingerprints={"base_model": record["fingerprint"]},
                config={"settings": record["settings"], "prompts": record["prompts"]},
            )
    return record


def _train_and_measure(
    settings: WarmStartSettings, prompts: Prompts, keep_away: list[str]
) -> tuple[Any, Any, dict[str, Any]]:
    """The trained network, its tokenizer and the record."""
    gated_delta.install()
    tokenizer = build_tokenizer([prompts.plain_system, prompts.careful_system])
    writer = TranscriptWriter(tokenizer, prompts)
    held = problems.evaluation_rows(settings.seed, settings.evaluation_problems, keep_away)
    _check_room(writer, held)
    network = build_network(tokenizer, settings.seed)
    logger.info(
        "training %d weights for %d + %d updates", network.num_parameters(), settings.copy_steps, settings.steps
    )
    rows = problems.training_rows(settings.seed, [*keep_away, *(row.statement for row in held)])
    WarmStart(network, tokenizer, writer, settings).run(rows)
    # What is measured is what is saved: the weights as 16 bits hold them. (Converting the network would round its rotary
    # frequencies too, which are not saved.)
    for weight in network.parameters():
        weight.data = weight.data.to(torch.bfloat16).to(torch.float32)
    identity = {
        "settings": settings.as_json(),
        "prompts": {"plain": prompts.plain_system, "careful": prompts.careful_system, "user": prompts.user},
        "kept_away": fingerprint(sorted(keep_away)),
    }
    record = {
        "source": "made",
        "fingerprint": fingerprint(identity),
        **identity,
        "parameters": network.num_parameters(),
        "vocabulary": len(tokenizer),
        "evaluation": _measure(network, tokenizer, writer, held, settings.seed),
    }
    return network, tokenizer, record


def _measure(
    network: Any, tokenizer: Any, writer: TranscriptWriter, held: list[problems.Row], seed: int
) -> dict[str, Any]:
    """How the network plays under both system messages, and what simple policies would reach on the same problems."""
    measured: dict[str, Any] = {
        "mean_candidate": problems.mean_candidate_accuracy(held),
        "majority_of_eight": problems.majority_accuracy(held),
        "first_passing_candidate": problems.first_pass_accuracy(held),
        "prompt_tokens": sum(_prompt_length(writer, row) for row in held) / len(held),
    }
    for name in ("plain", "careful"):
        generator = torch.Generator().manual_seed(seed)
        measured[name] = summary(play(network, tokenizer, writer, held, generator, careful=name == "careful"))
        logger.info(
            "%s prompt: accuracy %.3f, well-formed %.3f, %.1f explores, %.0f tokens (a mean candidate: %.3f)",
            name,
            *(measured[name][key] for key in ("accuracy", "well_formed", "explores", "tokens")),
            measured["mean_candidate"],
        )
    return measured


def _check_room(writer: TranscriptWriter, rows: list[problems.Row]) -> None:
    rng = random.Random(0)
    longest = max(len(writer.plain(row, problems.CANDIDATES + 1, rng).ids) for row in rows)
    if longest >= MAX_TOKENS:
        raise GenselectError(
            f"an episode with all eight candidates takes {longest} tokens, and the miniature plays up to {MAX_TOKENS}",
            "Shorten prompt.system and prompt.user to a few words.",
        )


def _prompt_length(writer: TranscriptWriter, row: problems.Row) -> int:
    return len(writer.renderer.prompt(writer.prompts.messages(row.statement, careful=False)))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
