# make demo: a devnet, two workers that train one model, a live table, and what the chain says about it.
# make test: everything the gate asks for. Both set up what is missing first.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-gpu test-soak format bench bench-chain bench-da bench-training clean distclean

# The first Python 3.11 or newer; `make PYTHON=/path/to/python` overrides.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
VENV_PYTHON := .venv/bin/python
BIN := .venv/bin

# What pytest is asked to run; `make test TESTS=tests/da` runs one part.
TESTS ?= tests
# A person's own text to train on: make demo DATA=file.txt
DATA ?=
# Leave the devnet up after the demo: KEEP=1 make demo
KEEP ?=

help:
	@echo "make demo        train one model with two workers on a local chain and store: about a minute and a half"
	@echo "                 on two idle cores; KEEP=1 leaves the devnet up afterwards; DATA=file trains on your own text"
	@echo "make test        the gate: format, lint, types, layers, generated files, all tests"
	@echo "make test-fast   only the tests that start no processes"
	@echo "make test-gpu    the CPU's roots bit for bit on CUDA; skips, naming what is missing, where there is none"
	@echo "make test-soak   minutes to half an hour: twenty kills, five hundred rounds, a chain that stands still, README pasted; TESTS=path for one"
	@echo "make bench       the benchmarks; results as tables and in benchmarks/results/*.json"
	@echo "make bench-training  quality, bytes and speed of training schemes side by side, over shaped links, and"
	@echo "                 beside torchft; FULL=1 for all of them; RATES=1 for half and twice each method's rate"
	@echo "make bench-chain the chain beside CometBFT's kvstore: throughput, finality, reads, memory; FULL=1 repeats"
	@echo "                 and watches memory over a million transactions"
	@echo "make bench-da    only data availability: coding, dispersal, reading and repair over four real nodes; FULL=1: a 10 GB object"
	@echo "make setup       only what the others need: .venv, packages, CometBFT"
	@echo "make format      format the code and mend what ruff can mend"
	@echo "make clean       remove caches, the devnet's home and outputs; keep .venv and CometBFT"
	@echo "make distclean   the same, and .venv and CometBFT too"

setup:
	@if [ -z "$(PYTHON)" ]; then \
		echo "set-up failed at: find Python"; \
		echo "  why:  none of python3, python3.11, python3.12, python3.13, python3.14 is 3.11 or newer"; \
		echo "  next: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv), or: make PYTHON=/path/to/python"; \
		exit 1; fi
	@$(PYTHON) localnet/bootstrap.py

demo: setup
	@$(VENV_PYTHON) -m localnet.demo $(if $(filter-out 0 no false,$(KEEP)),--keep) $(if $(DATA),--data "$(DATA)")

test: setup
	@$(VENV_PYTHON) -m localnet.gate $(TESTS)

test-fast: setup
	@$(BIN)/pytest -q -m "not integration and not slow" $(TESTS)

test-gpu: setup
	@$(BIN)/pytest -q -m gpu tests/training

test-soak: setup
	@$(BIN)/pytest -q -m soak $(TESTS)

format: setup
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: setup
	@set -e; for file in $$(grep -l "__main__" benchmarks/*.py); do \
		name=$$(basename "$$file" .py); echo "== benchmark: $$name"; $(VENV_PYTHON) -m "benchmarks.$$name"; done

bench-training: setup
	@FULL="$(FULL)" RATES="$(RATES)" $(VENV_PYTHON) -c 'from benchmarks.training_parts import main; main()'

bench-chain: setup
	@FULL="$(FULL)" $(VENV_PYTHON) -m benchmarks.chain

bench-da: setup
	@$(VENV_PYTHON) -m benchmarks.da $(if $(filter-out 0 no false,$(FULL)),--full)

clean:
	@if [ -x $(BIN)/localnet ]; then for home in .cache/devnet .cache/demo/devnet; do \
		$(BIN)/localnet down --quiet --home $$home || true; done; fi
	rm -rf .cache/devnet .cache/demo demo-output build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .cache *.egg-info
