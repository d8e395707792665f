# SPDX-License-Identifier: Apache-2.0
# Everything below makes its own virtual environment first: a clone and Python are enough.

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
# A checkpoint directory; empty: the demo model, which is downloaded and converted once.
MODEL ?=
SERVED_NAME ?= smollm2
# A small server that is soon ready: in float32 nothing is compiled. Also, the demo model, small and
# once quantised, is so undecided that bfloat16 rounding changes its answers.
SERVE_ARGS ?= --dtype float32 --max-model-len 2048 --max-num-seqs 8 --max-num-batched-tokens 512 \
	--kv-cache-memory-bytes 1G
DEMO_ARGS ?= --dtype float32
PYTEST_ARGS ?=
BENCH_ARGS ?=
export PYTHON VENV
export VLLM_NO_USAGE_STATS ?= 1

BIN := $(VENV)/bin
# Prints the directory of the demo model on stdout, progress on stderr.
DEMO_MODEL := $(BIN)/python -m trnport.adapters.cli.demo_model
MODEL_DIRECTORY = $(or $(MODEL),$$($(DEMO_MODEL)))

.DEFAULT_GOAL := help
.PHONY: help setup model serve demo test test-fast lint format bench bench-peers bench-kernels
.PHONY: clean clean-all

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "variables: PYTHON VENV PORT MODEL SERVED_NAME SERVE_ARGS DEMO_ARGS PYTEST_ARGS BENCH_ARGS TORCH_INDEX"

setup: ## make the virtual environment (two to five minutes at first, then nothing)
	@bash scripts/setup.sh

model: setup ## fetch, check and convert the demo model (a minute at first)
	@$(DEMO_MODEL)

serve: setup ## start an OpenAI-compatible server with the demo model (or MODEL=directory)
	@model="$(MODEL_DIRECTORY)" && \
	echo "==> serving $$model as $(SERVED_NAME) on port $(PORT) (ready in about a minute)" && \
	exec $(BIN)/vllm serve "$$model" --served-model-name $(SERVED_NAME) --port $(PORT) $(SERVE_ARGS)

demo: setup ## chat with the demo model in the terminal, offline
	@model="$(MODEL_DIRECTORY)" && exec $(BIN)/trnport chat --model "$$model" $(DEMO_ARGS)

test: lint model ## everything CI runs: linters, the fast tests, then the slow ones
	$(BIN)/pytest -m "not slow" $(PYTEST_ARGS)
	$(BIN)/pytest -m slow $(PYTEST_ARGS)
	$(BIN)/pytest --compiler=inductor -m compiled $(PYTEST_ARGS)

test-fast: setup ## the tests to run while working
	$(BIN)/pytest -m "not slow" $(PYTEST_ARGS)

lint: setup ## ruff, mypy, the import contracts, shell syntax
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	for script in scripts/*.sh .ci/run; do bash -n "$$script" || exit 1; done

format: setup ## rewrite the sources in the formatter's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## decode speed next to Transformers, with the demo model (or MODEL=directory)
	@model="$(MODEL_DIRECTORY)" && \
	exec $(BIN)/python benchmarks/decode_vs_transformers.py --model "$$model" $(BENCH_ARGS)

bench-peers: setup ## one table against vLLM CPU, Transformers, llama.cpp (installs them at first)
	@model="$(MODEL_DIRECTORY)" && \
	exec $(BIN)/python -m benchmarks.compare --model "$$model" $(BENCH_ARGS)

bench-kernels: setup ## operators of the Kernels port, set against set (BENCH_ARGS="--sets a b")
	exec $(BIN)/pytest benchmarks/test_kernels.py --benchmark-enable --benchmark-max-time=0.3 \
		--benchmark-columns=min,median,iqr,rounds --benchmark-sort=name $(BENCH_ARGS)

clean: ## remove build outputs and tool caches (the demo model stays in the user's cache)
	rm -rf build dist *.egg-info src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## also remove the virtual environment
	rm -rf "$(VENV)"
