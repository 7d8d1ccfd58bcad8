#!/usr/bin/env python3
"""Do rows that are packed into one sequence get what they get alone? Qwen3.5 with the kernels it is trained with.

A randomly initialised Qwen3.5 (head sizes and head counts of the 9B, fewer and narrower layers, about 0.8 B parameters), patched
by verl 0.9.1 and wrapped by PEFT as in training, is run as policy, as critic and as submit predictor on the same rows:

* packed into one sequence, positions restarting at each row, with the rows' boundaries (``cu_seqlens``) passed as verl passes them,
* the same without boundaries, which is what a value model gets when its ``forward`` does not name the argument,
* padded on the right, with an attention mask,
* each row alone.

What counts is the largest absolute difference of the tokens' log-probabilities (policy) or values, packed against padded. With
boundaries it must stay under the limit: 1e-3 in fp32; in bf16 three times the difference that padding alone makes (padded against
alone), at least 1e-3. Without boundaries it must exceed the limit: otherwise the check could not have noticed a leak. Before
that, the gated delta rule itself is compared on random tensors, and with transformers' version of it in plain PyTorch.

The decays are set to a memory of 1 to 1,000 tokens; transformers' own initial values forget within a few, and would hide leaks.
Attention is PyTorch's (``sdpa``), which keeps packed rows apart by position ids; training uses flash-attention 2, not tested here.
In fp32, Triton multiplies as ``tf32x3`` here, not in TF32 as it would by default, whose noise would be near the limit.

    python docs/benchmarks/packed_against_padded.py --output packed_against_padded.json
    python docs/benchmarks/packed_against_padded.py --device cpu --tiny    # the script itself, in a minute

On a CPU there is no flash-linear-attention, and transformers' own rule ignores boundaries (``--kernel torch`` shows that, and
gives no verdict). ``--kernel rows``, the default there, hides that it accepts them, so that verl runs it row by row.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from genselect.training.boundaries import name_boundaries

#: Lengths of the rows in tokens. Long ones first, so that there is a state to leak; one shorter than the convolution, one
#: exactly a chunk of the delta rule (64), one a token longer than two chunks.
ROWS = (700, 37, 1203, 2, 64, 333, 129, 512)
TINY_ROWS = (150, 37, 70, 2, 64, 33)
FP32_LIMIT = 1e-3
#: In bf16, what packing may add to what padding does anyway.
BF16_TIMES_FLOOR = 3.0
NETWORKS = ("policy", "critic", "submit predictor")
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "flash-linear-attention",
    "fla-core",
    "verl",
    "peft",
    "causal-conv1d",
    "tilelang",
)
LORA = {"r": 64, "lora_alpha": 128, "target_modules": "all-linear", "bias": "none"}
_STARTED = time.monotonic()


class Network(NamedTuple):
    """One network as it is trained."""

    kind: str
    module: Any
    passed: bool  # whether verl passes boundaries to it
    passed_unnamed: bool  # whether verl would have without name_boundaries
    kernels: dict[str, str]


def main() -> int:
    arguments = _arguments()
    dtypes = [getattr(torch, name) for name in arguments.dtypes]
    if torch.float32 in dtypes:
        os.environ.setdefault("TRITON_F32_DEFAULT", "tf32x3")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    kernel = arguments.kernel or ("fla" if arguments.device == "cuda" else "rows")

    report: dict[str, Any] = {
        "versions": versions(),
        "machine": machine(arguments.device),
        "kernel": kernel,
        "parts": {},
    }
    progress(json.dumps(report))
    report["rows"] = TINY_ROWS if arguments.tiny else ROWS
    parts: dict[str, Callable[[], dict[str, Any]]] = {}
    if kernel == "fla":
        parts |= {f"delta rule, {_name(dtype)}": partial(compare_rule, dtype, arguments) for dtype in dtypes}
    for seed, kind in enumerate(NETWORKS):
        parts[kind] = partial(compare_network, kind, seed, dtypes, kernel, arguments)
    for name, measure in parts.items():
        report["parts"][name] = run_part(name, measure)
        report["seconds"] = round(time.monotonic() - _STARTED, 1)
        if arguments.output:  # now, lest a time limit take what is known
            arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(render(report), flush=True)
    return 1 if _failed(report) else 0


def run_part(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``measure`` returns, with its cost; an error is printed and returned instead, so that the next part can run."""
    progress(f"{name} ...")
    start = time.monotonic()
    try:
        result = measure()
    except Exception:
        traceback.print_exc()
        result = {"error": traceback.format_exc()}
    result["seconds"] = round(time.monotonic() - start, 1)
    if torch.cuda.is_available():
        result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.empty_cache()
    progress(f"{name}: {'ERROR' if 'error' in result else 'done'} after {result['seconds']} s")
    return result


def progress(message: str) -> None:
    """Print a line with the time of day and the seconds since the start."""
    print(f"[{time.strftime('%H:%M:%S')} +{time.monotonic() - _STARTED:6.1f} s] {message}", flush=True)


# --- the networks ---


def build_config(tiny: bool) -> Any:
    """A ``Qwen3_5Config``: three layers of gated delta net, then one of full attention, with the 9B's heads unless ``tiny``."""
    from transformers import Qwen3_5Config

    if tiny:
        text: dict[str, Any] = {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        }
    else:  # the defaults of the heads are the 9B's
        text = {"vocab_size": 32768, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16}
    sections = [2, 1, 1] if tiny else [11, 11, 10]
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": sections}
    text["rope_parameters"] |= {"mrope_interleaved": True, "partial_rotary_factor": 0.25}
    vision: dict[str, Any] = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "num_position_embeddings": 64,
    }
    vision["out_hidden_size"] = text["hidden_size"]
    last = text["vocab_size"] - 1
    special = {"image_token_id": last, "video_token_id": last - 1, "vision_start_token_id": last - 2}
    return Qwen3_5Config(text_config=text, vision_config=vision, vision_end_token_id=last - 3, num_labels=1, **special)


def build_network(kind: str, seed: int, kernel: str, tiny: bool, device: str) -> Network:
    """One network in fp32, built, patched, given named boundaries and wrapped in the order of verl's and our engines.

    Args:
        kind: One of ``NETWORKS``.
        seed: Of its weights.
        kernel: ``fla``, ``torch`` or ``rows``, see the module.
        tiny: For a CPU.
        device: Where it lives; ``meta`` counts parameters without any.
    """
    from transformers import AutoModelForImageTextToText, AutoModelForTokenClassification

    if kernel == "rows":
        hide_boundaries()
    auto = AutoModelForImageTextToText if kind == "policy" else AutoModelForTokenClassification
    torch.manual_seed(seed)
    with torch.device(device):
        module = auto.from_config(build_config(tiny), attn_implementation="sdpa", dtype=torch.float32)
    apply_monkey_patch()(module, use_remove_padding=True)
    unnamed = names_boundaries(module)
    if kind != "policy":
        name_boundaries(module)
    passed = names_boundaries(module)
    module = add_lora(module, kind).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(math.log(1e-3), 0.0)
            elif "lora_B" in name:
                parameter.normal_(std=0.02)
    return Network(kind, module, passed, unnamed, kernels_of(module))


def names_boundaries(module: Any) -> bool:
    """What verl asks before PEFT and FSDP wrap the module (``FSDPEngine._build_model_optimizer``)."""
    return "cu_seqlens" in inspect.signature(module.forward).parameters


def add_lora(module: Any, kind: str) -> Any:
    """LoRA as in training: verl's for the policy, ``genselect.training.engines.ValueEngine``'s for the value models."""
    from peft import LoraConfig, TaskType, get_peft_model

    if kind == "policy":
        return get_peft_model(module, LoraConfig(task_type=TaskType.CAUSAL_LM, **LORA))
    return get_peft_model(module, LoraConfig(task_type=TaskType.TOKEN_CLS, exclude_modules=["score"], **LORA))


def apply_monkey_patch() -> Callable[..., None]:
    """verl's, which lets Qwen3.5's layers take ``cu_seqlens``.

    verl's package imports its trainer, thus Ray. Where that is missing, only the modules that hold the patches are imported.
    """
    try:
        importlib.import_module("verl")
    except ImportError as error:
        progress(f"verl without its trainer ({error})")
        for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
            del sys.modules[name]
        spec = importlib.util.find_spec("verl")
        if spec is None:
            raise
        sys.modules["verl"] = importlib.util.module_from_spec(spec)  # never executed
    return importlib.import_module("verl.models.transformers.monkey_patch").apply_monkey_patch


def hide_boundaries() -> None:
    """Let transformers' PyTorch rule no longer accept ``cu_seqlens``, which it ignores: then verl calls it row by row."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    rule = modeling.torch_chunk_gated_delta_rule
    if "kwargs" not in inspect.signature(rule).parameters:
        return

    def torch_chunk_gated_delta_rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        options = {"initial_state": initial_state, "output_final_state": output_final_state}
        return rule(query, key, value, g, beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **options)

    modeling.torch_chunk_gated_delta_rule = torch_chunk_gated_delta_rule


def kernels_of(module: Any) -> dict[str, str]:
    """Where the first gated delta net's functions come from."""
    layer = next(layer for layer in module.modules() if hasattr(layer, "chunk_gated_delta_rule"))
    rule = inspect.unwrap(layer.chunk_gated_delta_rule)
    convolution = layer.causal_conv1d_fn
    return {
        "delta rule": f"{rule.__module__}.{rule.__qualname__}",
        "convolution": "torch.nn.Conv1d, row by row"
        if convolution is None
        else f"{convolution.__module__}.causal_conv1d_fn",
        "gated norm": f"{type(layer.norm).__module__}.{type(layer.norm).__qualname__}",
        "layer": f"{type(layer).forward.__module__}.{type(layer).forward.__qualname__}",
    }


# --- what is measured ---


def compare_network(
    kind: str, seed: int, dtypes: list[torch.dtype], kernel: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Packed against padded for one network in each type: what ``render`` prints of it."""
    network = build_network(kind, seed, kernel, arguments.tiny, arguments.device)
    parameters = sum(parameter.numel() for parameter in network.module.parameters())
    progress(f"{kind}: {parameters / 1e6:.0f} M parameters, {network.kernels}")
    torch.manual_seed(1000)
    vocabulary = build_config(arguments.tiny).text_config.vocab_size - 4
    lengths = TINY_ROWS if arguments.tiny else ROWS
    rows = [torch.randint(vocabulary, (length,), device=arguments.device) for length in lengths]
    result: dict[str, Any] = {
        "parameters": parameters,
        "kernels": network.kernels,
        "verl_passes_boundaries": network.passed,
        "verl_passes_boundaries_without_name_boundaries": network.passed_unnamed,
        "differences": {},
    }
    for dtype in dtypes:
        network.module.to(dtype)
        padded, alone = run_padded(network, rows, dtype), run_alone(network, rows, dtype)
        # As in training: a network that does not name them is not passed any.
        packed = run_packed(network, rows, dtype, boundaries=network.passed)
        leaking = run_packed(network, rows, dtype, boundaries=False)
        measured = judge(dtype, packed, leaking, padded, alone)
        if kernel == "torch":
            measured["verdict"] = "no verdict: this rule ignores boundaries"
        result["differences"][_name(dtype)] = measured
        progress(f"{kind}, {_name(dtype)}: {json.dumps(measured)}")
    return result


def run_packed(network: Network, rows: list[Tensor], dtype: torch.dtype, boundaries: bool) -> list[Tensor]:
    """Scores of each row, shape (tokens,), from one sequence of all; inputs as ``FSDPEngine.prepare_model_inputs`` makes them."""
    lengths = torch.tensor([len(row) for row in rows])
    inputs: dict[str, Any] = {"input_ids": torch.cat(rows)[None], "attention_mask": None}
    inputs["position_ids"] = torch.cat([torch.arange(len(row), device=row.device) for row in rows])[None]
    if boundaries:
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        inputs |= {"cu_seqlens": ends.to(rows[0].device), "cu_seqlens_cpu": ends}
    logits = forward(network, dtype, **inputs)[0]
    return [scores(network, row, part) for row, part in zip(rows, logits.split(lengths.tolist()), strict=True)]


def run_padded(network: Network, rows: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Scores of each row, shape (tokens,), from one batch padded on the right."""
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    positions = (mask.cumsum(1) - 1) * mask
    logits = forward(network, dtype, input_ids=input_ids, attention_mask=mask, position_ids=positions)
    return [scores(network, row, part[: len(row)]) for row, part in zip(rows, logits, strict=True)]


def run_alone(network: Network, rows: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Scores of each row, shape (tokens,), from a batch of its own."""
    return [score for row in rows for score in run_packed(network, [row], dtype, boundaries=False)]


def forward(network: Network, dtype: torch.dtype, **inputs: Any) -> Tensor:
    """Logits, shape (rows, tokens, outputs), as verl computes them; in bf16 under autocast."""
    device = inputs["input_ids"].device.type
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        return network.module(**inputs, use_cache=False).logits


def scores(network: Network, row: Tensor, logits: Tensor) -> Tensor:
    """Log-probabilities of the second and later tokens, or the values of all, in fp32."""
    if network.kind != "policy":
        return logits[:, 0].float()
    return logits[:-1].float().log_softmax(-1).gather(-1, row[1:, None])[:, 0]


def judge(
    dtype: torch.dtype, packed: list[Tensor], leaking: list[Tensor], padded: list[Tensor], alone: list[Tensor]
) -> dict[str, Any]:
    """Differences of packed rows from padded ones, with and without boundaries, and what they say."""
    floor = _differences(padded, alone)
    given, missing = _differences(packed, padded), _differences(leaking, padded)
    limit = FP32_LIMIT if dtype == torch.float32 else max(FP32_LIMIT, BF16_TIMES_FLOOR * floor["largest"])
    if not given["largest"] <= limit:  # also not a number
        verdict = "FAIL: packed rows differ"
    elif not missing["largest"] > limit:
        verdict = "FAIL: a leak would not be seen"
    else:
        verdict = "pass"
    ratio = missing["largest"] / given["largest"] if given["largest"] else math.inf
    spread = torch.cat(padded).std().item()
    named = {"boundaries_given": given, "boundaries_missing": missing, "padded_against_alone": floor}
    return {**named, "ratio": ratio, "limit": limit, "spread_of_scores": spread, "verdict": verdict}


def compare_rule(dtype: torch.dtype, arguments: argparse.Namespace) -> dict[str, Any]:
    """The gated delta rule alone, on random tensors: packed against row by row, and against plain PyTorch in fp32."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    lengths = list(TINY_ROWS if arguments.tiny else ROWS)
    heads, size = 32, 128
    torch.manual_seed(0)
    with torch.device(arguments.device):
        query, key, value = (torch.randn(1, sum(lengths), heads, size).to(dtype) for _ in range(3))
        decay = -torch.empty(heads).uniform_(math.log(1e-3), 0.0).exp() * torch.rand(1, sum(lengths), heads)
        beta = torch.rand(1, sum(lengths), heads).to(dtype)
        ends = torch.tensor([0, *lengths]).cumsum(0)
    tensors = (query, key, value, decay, beta)

    def rows_of(outputs: Tensor) -> list[Tensor]:
        return list(outputs[0].float().split(lengths))

    def row_by_row(rule: Callable[..., Any], *parts: Tensor) -> list[Tensor]:
        rows = zip(*(whole.split(lengths, dim=1) for whole in parts), strict=True)
        return [rule(*row, use_qk_l2norm_in_kernel=True)[0][0].float() for row in rows]

    with torch.no_grad():
        options = {"use_qk_l2norm_in_kernel": True}
        given = chunk_gated_delta_rule(*tensors, cu_seqlens=ends, cu_seqlens_cpu=ends.cpu(), **options)[0]
        progress(f"delta rule, {_name(dtype)}: first call over")
        missing = chunk_gated_delta_rule(*tensors, **options)[0]
        alone = row_by_row(chunk_gated_delta_rule, *tensors)
        plain = row_by_row(torch_chunk_gated_delta_rule, *(tensor.float() for tensor in tensors))
    measured = judge(dtype, rows_of(given), rows_of(missing), alone, plain)
    progress(f"delta rule, {_name(dtype)}: {json.dumps(measured)}")
    return {"differences": {_name(dtype): measured}}


def _differences(rows: list[Tensor], others: list[Tensor]) -> dict[str, float]:
    """Largest and mean absolute difference over all rows; not a number if any score is none."""
    away = (torch.cat(rows) - torch.cat(others)).abs()
    return {"largest": away.max().item(), "mean": away.mean().item()}


# --- the report ---


def versions() -> dict[str, str | None]:
    """Versions of the packages that matter; None for one that is not there."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine(device: str) -> dict[str, Any]:
    """The processor that is measured."""
    if device != "cuda":
        return {"device": device, "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(0)
    capability = f"{properties.major}.{properties.minor}"
    precision = os.environ.get("TRITON_F32_DEFAULT", "tf32")
    return {"device": properties.name, "capability": capability, "cuda": torch.version.cuda, "triton_fp32": precision}


def render(report: dict[str, Any]) -> str:
    """The Markdown that goes into the documentation."""
    used = ", ".join(f"{name} {version or 'not there'}" for name, version in report["versions"].items())
    lines = [
        f"Rows of {', '.join(map(str, report['rows']))} tokens. {report['machine']}. {used}. {report['seconds']} s.",
        "",
    ]
    kernels: dict[str, str] = next((part["kernels"] for part in report["parts"].values() if "kernels" in part), {})
    lines += [f"- {name}: `{origin}`" for name, origin in kernels.items()]
    lines += [
        "",
        "| | type | packed − padded | without boundaries | ratio | padded − alone | limit | verdict | GiB | s |",
    ]
    lines += ["|---|---|---:|---:|---:|---:|---:|---|---:|---:|"]
    for name, result in report["parts"].items():
        cost = f"{result.get('peak_gib', '')} | {result['seconds']}"
        if "error" in result:
            lines.append(f"| {name} | | | | | | | ERROR: {result['error'].strip().splitlines()[-1]} | {cost} |")
        for dtype, measured in result.get("differences", {}).items():
            given, missing, floor = (
                measured[key]["largest"] for key in ("boundaries_given", "boundaries_missing", "padded_against_alone")
            )
            numbers = f"{given:.1e} | {missing:.1e} | {measured['ratio']:.0f} | {floor:.1e} | {measured['limit']:.1e}"
            lines.append(f"| {name.partition(',')[0]} | {dtype} | {numbers} | {measured['verdict']} | {cost} |")
    lines += [
        "",
        "Delta rule: packed − row by row, and in the place of padded − alone, row by row − plain PyTorch in fp32.",
    ]
    if report["kernel"] == "torch":
        lines += [
            "",
            "No verdict: transformers' PyTorch rule accepts `cu_seqlens` and ignores it. Never pack rows with it.",
        ]
    return "\n".join(lines)


def _failed(report: dict[str, Any]) -> bool:
    results = report["parts"].values()
    verdicts = [each["verdict"] for result in results for each in result.get("differences", {}).values()]
    return any("error" in result for result in results) or any(verdict.startswith("FAIL") for verdict in verdicts)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--kernel", choices=["fla", "torch", "rows"], help="default: fla on cuda, rows on a CPU")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--tiny", action="store_true", help="a million parameters and short rows")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
