#!/usr/bin/env bash
# Make (or complete) the one virtual environment of the miniature, the tests and a laptop, from envs/mini.lock.
# Usage: envs/make_env.sh [FOLDER]   (default .venv). Needs Python 3.11 with venv, and reaches the package index once.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
lock=envs/mini.lock
# Where a CPU build of torch is found when pip, as this machine has set it up, finds none.
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || {
    echo "error: $python is not on the PATH" >&2
    echo "Hint: install Python 3.11 (with its venv module), or name it: make PYTHON=/path/to/python3.11 ..." >&2
    exit 2
}
pinned() { grep -m1 -oE "^$1==[^ ;]+" "$lock"; }

echo "Making $venv from $lock: a minute or two of downloads (about 1 GB), then a minute of compiling."
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
uv() { VIRTUAL_ENV="$PWD/$venv" "$venv/bin/uv" "$@"; }
[ "$venv" = "${venv#/}" ] || uv() { VIRTUAL_ENV="$venv" "$venv/bin/uv" "$@"; }

"$venv/bin/python" -c 'import uv' 2>/dev/null || pip install "$(pinned uv)"
# Everything but torch comes from the package index; its CPU build comes from where pip is told to look, or from PyTorch's index.
"$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit("torch==" + m.version("torch") != sys.argv[1])' "$(pinned torch)" 2>/dev/null ||
    pip install --no-deps --no-compile "$(pinned torch)" 2>/dev/null ||
    pip install --no-deps --no-compile --index-url "$torch_index" "$(pinned torch)"
# The lock is complete, and some of its pins go against a package's own wishes (envs/mini.overrides), so nothing is resolved here.
uv pip install --quiet --no-deps --require-hashes -r "$lock"
uv pip install --quiet --no-deps --no-build-isolation ./envs/vllm-metadata ./envs/cpu-runtime
uv pip install --quiet --no-deps --no-build-isolation --editable .
# Without bytecode a verl launch takes twice as long, and some machines set PYTHONDONTWRITEBYTECODE. Templates and files for
# other Pythons do not compile; that is no fault.
"$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" workflow >/dev/null || true
"$venv/bin/python" -c 'import importlib.metadata as m; print("ready: " + ", ".join(f"{p} {m.version(p)}" for p in ("snakemake", "verl", "vllm", "torch")))'
