"""The rollout engine without a trainer: vLLM in this process, with verl's rollout settings and verl's tool-call parser.

vLLM's engine core is a process of its own, which outlives a killed parent (see :mod:`genselect.judge.keeper`). So a program that
uses this starts with :func:`run_kept`: it runs itself once more below the keeper, in the environment that the engine needs.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol
from uuid import uuid4

from genselect.config.training import Run
from genselect.episode import TOOLS, Call, Generated
from genselect.errors import GenselectError
from genselect.judge import keeper
from genselect.provenance import collect
from genselect.training.episodes import TOOL_PARSER
from genselect.training.launcher import STOPPED
from genselect.training.trainer_process import LEFT_OUT, engine_environment

#: Episodes in play at once, a card (or on a machine without cards).
EPISODES_A_CARD = 64
_KEPT = "GENSELECT_KEPT"
#: Seconds for the engine to shut down.
_GRACE_S = 30.0
_LAST_LINES = 15


class Policy(Protocol):
    """Whoever plays the turns of an episode."""

    async def generate(self, context: Sequence[int], max_tokens: int, seed: int) -> Generated:
        """The next turn: at most ``max_tokens`` ids after ``context``, drawn with ``seed``."""

    async def parse(self, turn: Sequence[int]) -> Sequence[Call]:
        """The tool calls in a turn."""


def run_kept() -> int | None:
    """Run this program's own command line below the keeper; returns its exit status, or None in the kept process itself.

    SIGTERM and SIGINT are handed on. An end that they brought about is 75 (SIGTERM) or 130, whatever was going on.
    """
    if os.environ.get(_KEPT):
        return None
    cpu = not collect()["gpus"]
    inherited = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    ours = {**engine_environment(cpu), "VLLM_HOST_IP": "127.0.0.1", _KEPT: "1"}
    command = [sys.executable, keeper.__file__, str(_GRACE_S), sys.executable, *sys.argv]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**inherited, **ours})
    told: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        assert process.stdin is not None
        process.stdin.close()  # the keeper passes SIGTERM on, and ends what does not end itself

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    status = process.wait()
    if status and told:
        return STOPPED if told[0] == signal.SIGTERM else 128 + told[0]
    return status


@contextlib.contextmanager
def vllm_policy(model: Path, run: Run, log: Path) -> Iterator[Policy]:
    """The model in ``model``, played by vLLM as verl's rollout would play it for ``run``; shut down at the end of the block.

    Args:
        model: Folder of the model.
        run: Whose episodes are played.
        log: Everything that vLLM and verl print goes there.

    Raises:
        GenselectError: Too few cards, or the engine fails.
    """
    cards = len(collect()["gpus"])
    if cards and cards < run.cards:
        raise GenselectError(
            f"the rollout is to use {run.cards} cards, and this machine has {cards}",
            "Set cards: of the run that the rollout is like to what the machine has.",
        )
    with _output_into(log):
        with _explained(log):
            policy = _Vllm(model, run, log, cpu=not cards)
        try:
            yield policy
        finally:
            policy.close()


class _Vllm:
    def __init__(self, model: Path, run: Run, log: Path, *, cpu: bool) -> None:
        # Both take half a minute to import, and read the environment as they do.
        from transformers import AutoTokenizer
        from verl.experimental.agent_loop.tool_parser import ToolParser
        from verl.tools.schemas import OpenAIFunctionToolSchema
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._run = run
        self._log = log
        self._schemas = [OpenAIFunctionToolSchema.model_validate(tool) for tool in TOOLS]
        self._parser = ToolParser.get_tool_parser(TOOL_PARSER, AutoTokenizer.from_pretrained(model))
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model), **engine_settings(run, cpu=cpu)))

    async def generate(self, context: Sequence[int], max_tokens: int, seed: int) -> Generated:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=self._run.temperature,
            top_p=1.0,
            top_k=-1,
            seed=seed,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        ids: list[int] = []
        with _explained(self._log):
            async for output in self._engine.generate(
                TokensPrompt(prompt_token_ids=list(context)), params, uuid4().hex
            ):
                ids = list(output.outputs[0].token_ids)
        return Generated(ids, [0.0] * len(ids))  # nobody trains on these

    async def parse(self, turn: Sequence[int]) -> Sequence[Call]:
        _, calls = await self._parser.extract_tool_calls(list(turn), self._schemas)
        return [Call(call.name, call.arguments) for call in calls]

    def close(self) -> None:
        self._engine.shutdown()
        # Its finaliser shuts down once more, which at the interpreter's end raises (vLLM 0.32): have it run now.
        del self._engine
        gc.collect()


def engine_settings(run: Run, *, cpu: bool) -> dict[str, Any]:
    """vLLM's engine arguments for ``run``'s episodes; on the CPU those that verl's rollout gets (``verl_config``, with reasons)."""
    length = run.tokens.prompt + run.tokens.response
    common = {"dtype": "bfloat16", "max_model_len": length, "disable_log_stats": True, "seed": run.seed}
    if not cpu:
        return {**common, "data_parallel_size": run.cards, "enable_prefix_caching": True}
    return {
        **common,
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": EPISODES_A_CARD * length,
        "max_num_seqs": EPISODES_A_CARD,
    }


@contextlib.contextmanager
def _explained(log: Path) -> Iterator[None]:
    try:
        yield
    except GenselectError:
        raise
    except Exception as error:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:] if log.exists() else []
        raise GenselectError(
            f"the rollout engine failed: {type(error).__name__}: {error}; its last lines:\n" + "\n".join(lines),
            f"Its whole output is in {log}. Mend the cause and start the same command again: finished parts are kept.",
        ) from error


@contextlib.contextmanager
def _output_into(log: Path) -> Iterator[None]:
    """What this process and its children print goes to ``log``; our own log lines still reach the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(descriptor) for descriptor in (1, 2)]
    ours = [handler for handler in logging.getLogger("genselect").handlers if type(handler) is logging.StreamHandler]
    with log.open("ab") as file, os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8") as terminal:
        before = [(handler, handler.setStream(terminal)) for handler in ours]
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, original in zip((1, 2), saved, strict=True):
                os.dup2(original, descriptor)
                os.close(original)
            for handler, stream in before:
                handler.setStream(stream or sys.stderr)
