# One command per act. `make demo` is the shortest way to see it work; `make help` lists the rest.
#
#   PYTHON=python3.12   the Python that .venv is made with (3.11 to 3.13)
#   EXTRA=gpu           engines for a GPU instead of the CPU; .venv remembers it
#   ARGS='...'          more arguments: for pytest, `headrace up` (demo) or the benchmarks
#   WORKERS=2           processes among which `make test` shares the files of tests; whole runs take several GB each

SHELL := bash
PYTHON ?=
EXTRA ?=
ARGS ?=
WORKERS ?= 2
BIN := .venv/bin
BENCHMARKS := $(filter-out __init__ report runs trials,$(patsubst bench/%.py,%,$(patsubst %/__main__.py,%.py,$(wildcard bench/*.py bench/*/__main__.py))))
SETUP := $(or $(PYTHON),python3) -m tools.setup $(if $(PYTHON),--python-chosen) $(if $(EXTRA),--extra $(EXTRA))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-real test-compose check bench chaos clean

help:  ## these targets
	@grep -E '^[a-z-]+:.*##' Makefile | awk -F ':.*## *' '{printf "  make %-12s %s\n", $$1, $$2}'

setup:  ## make .venv with everything needed; nothing to do when nothing changed
	@$(SETUP)

demo: setup  ## train the tiny model by asynchronous RL, some minutes on two cores
	@$(BIN)/headrace up configs/demo.toml --set run.name=demo-$$(date +%Y%m%d-%H%M%S) $(ARGS)

test: setup  ## all tests but those that train a real language model, and those of the containers
	$(BIN)/python -m pytest -m "not real and not compose" -n $(WORKERS) --dist loadfile $(ARGS)

test-real: setup  ## the tests that train a real language model (slow, downloads 98 MB)
	$(BIN)/python -m pytest -m real $(ARGS)

test-compose: setup  ## the tests of the containers (slow, needs a Docker engine; signals processes as root)
	$(BIN)/python -m pytest -m compose -s -x tests/compose $(ARGS)

check: setup  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict -p tools.setup

bench: setup  ## all benchmarks, one after the other (an hour and a half)
	@for each in $(BENCHMARKS); do echo "== $$each"; $(BIN)/python -m bench.$$each $(ARGS) || exit 1; done

bench-%: setup
	@$(BIN)/python -m bench.$* $(ARGS)

# The processes that die, and the one that is stopped for two minutes in their middle, are chosen by SEED.
# Each process in turn is stopped by KILLS=0 PAUSES=all; PAUSE_S=15 makes it short.
chaos: setup  ## kill processes of a run KILLS times, stop PAUSES (SEED, ENGINE=stand-in|vllm), then prove its log
	$(BIN)/python -m tests.chaos.run --kills $(or $(KILLS),25) --seed $(or $(SEED),7) --engine $(or $(ENGINE),vllm) \
	  --pauses $(or $(PAUSES),1) --pause-s $(or $(PAUSE_S),120)

clean:  ## remove .venv, caches and builds; runs/ and models/ stay
	rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
