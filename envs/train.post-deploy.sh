#!/usr/bin/env bash
# Written by `make lock` from train.lock. Snakemake runs it inside the environment that it has just made from train.yaml;
# by hand: activate the environment, then `bash envs/train.post-deploy.sh`. What the build needs: docs/environments.md.
set -euo pipefail
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
cat >"$pins" <<'END'
flash-attn==2.8.3 --hash=sha256:1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d
END
export FLASH_ATTENTION_FORCE_BUILD=TRUE
python -m pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes --requirement "$pins"
