# One-word wishes. Every target sets up what it needs; CI calls exactly these.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check laws crash distributed interop bench docs slow clean

help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(READY)  ## a virtual environment in .venv with everything the other targets need

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

demo: setup      ## the main job, from nothing: corpus, tokens, training that is killed and goes on
	$(BIN)/python -m examples.demo

test: setup      ## everything a newcomer runs
	$(BIN)/python -m pytest -n 2

check: setup     ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

laws: setup      ## the laws with 100 times the examples
	$(BIN)/python -m pytest tests/laws -n 2 --hypothesis-profile=laws --timeout=1500

crash: setup     ## SIGKILL at every write, fsync, rename and unlink
	$(BIN)/python -m pytest tests/crash -m crash -n 2 --timeout=1500 -s

distributed: setup  ## torchrun with 4, then 2, then 3 ranks
	$(BIN)/python -m pytest tests/distributed -m distributed --timeout=600

slow: setup      ## the slow tests that belong to no suite of their own
	$(BIN)/python -m pytest -m "slow and not crash and not distributed and not interop" --timeout=900

clean:           ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
