# Everything runs in .venv, which `setup` makes and remakes when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
GENERATED := protos/triptych/v1/.generated
PROTO_FILES := $(wildcard protos/triptych/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help setup protos fmt lint type test check demo docs mutants soak bench bench-render clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) $(GENERATED) ## make .venv, install everything, generate the protos' code (also done by each target)

$(INSTALLED): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[render,scheduler,worker,dev]'
	@touch $@

protos: $(GENERATED) ## generate the protos' code

$(GENERATED): $(PROTO_FILES) protos/generate.py $(INSTALLED)
	$(BIN)/python protos/generate.py
	@touch $@

fmt: setup ## format Python and protos
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/buf format --write protos

lint: setup ## ruff, import rules, buf lint, buf format, buf breaking
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos
	@tag=$$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null); \
	if [ -n "$$tag" ]; then echo "buf breaking against $$tag"; $(BIN)/buf breaking protos --against ".git#tag=$$tag,subdir=protos"; \
	else echo "buf breaking: skipped, there is no release tag yet"; fi

type: setup ## mypy
	$(BIN)/mypy

test: setup ## all tests
	$(BIN)/python -m pytest

check: lint type test ## what a change must pass, as .ci/run

demo: setup ## three processes on this machine answer a conversation, streamed, with the embedded model
	$(BIN)/python -m services.cli.demo

docs: setup ## write the tables of settings into the services' READMEs
	$(BIN)/python -m services.cli.config_table

mutants: setup ## does the suite catch deliberate faults in the pass? (minutes; prints a table for tests/bench/LOG.md)
	$(BIN)/python -m tests.qualification.mutants

soak: setup ## half an hour (or MINUTES=…) of mixed load while processes die: every answer right, nothing left over
	$(BIN)/python -m tests.e2e.soak $(if $(MINUTES),--minutes $(MINUTES))

bench: setup ## speed, memory and start time, on this machine, alone (prints tables for tests/bench/LOG.md)
	$(BIN)/python -m tests.bench

bench-render: setup ## speed, memory and start time of render alone; PEERS=/path/to/vllm measures that too
	$(BIN)/python -m tests.bench.render $(if $(PEERS),--peers $(PEERS))

clean: ## remove .venv, caches and generated code
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f protos/triptych/v1/*_pb2*.py protos/triptych/v1/*_pb2*.pyi $(GENERATED)
