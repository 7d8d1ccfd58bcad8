# make mini    run the miniature of the whole chain on this machine
# make test    run the tests
# Each makes the environment (.venv) first when it is absent or its lock has changed.

.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
ENV_STAMP := $(VENV)/.made-from-lock
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
CODE := workflow tests docs envs
SNAKEFILES := Snakefile rules

.PHONY: help env mini test soak check docs lock clean
help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

env: $(ENV_STAMP) ## make the environment
$(ENV_STAMP): envs/mini.lock envs/make_env.sh envs/vllm-metadata/pyproject.toml envs/cpu-runtime/pyproject.toml pyproject.toml
	PYTHON=$(PYTHON) envs/make_env.sh $(VENV)
	@touch $@

mini: env ## run the miniature of the whole chain
	snakemake --profile profiles/mini
	@# The same pictures in Snakemake's own report, with its statistics of the jobs.
	snakemake --profile profiles/mini --report results/report/mini/snakemake.html 2>results/logs/mini/snakemake_report.log \
	  || { cat results/logs/mini/snakemake_report.log; exit 1; }
	@echo "Snakemake's report: results/report/mini/snakemake.html"

test: env ## run the tests
	pytest -m "not soak"

soak: env ## run the long trials too (kill series, full sizes)
	pytest -m soak

check: env ## lint, types, formats, schema in step with the models
	ruff check $(CODE)
	ruff format --check $(CODE)
	mypy
	snakefmt --check $(SNAKEFILES)
	python docs/generate.py --check
	snakemake --lint --configfile config/mini.yaml
	snakemake --lint --configfile config/config.yaml

docs: env ## write the generated files again: config/schema.json, the table in config/README.md, docs/errors.md, docs/study.md
	python docs/generate.py

lock: env ## resolve envs/*.in, write the conda environments; pins that stand stay (UPGRADE=1: all may move; TORCH_LINKS: a folder with the CPU wheel of torch)
	python envs/make_locks.py $(if $(TORCH_LINKS),--find-links $(TORCH_LINKS)) $(if $(UPGRADE),--upgrade)

clean: ## remove results (the environment stays)
	rm -rf results .snakemake
