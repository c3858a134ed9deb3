# harken: set up, try, test. Everything happens in .venv; `make help` lists the targets.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# a stamp says that this pyproject.toml and these constraints are installed: a second call does nothing
HASH := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
SETUP := $(VENV)/.setup-$(HASH)
LIGHT := $(VENV)/.demo-$(HASH)
# two processes side by side, one thread each: threads that compete for the same cores are many times slower
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: help setup demo test test-fast check bench lectures

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name what; do printf '%-18s %s\n' "$$name" "$$what"; done

setup: $(SETUP) ## .venv with everything the tests need

demo: $(if $(wildcard $(SETUP)),,$(LIGHT)) ## a light .venv, then a first success: learn to translate in four minutes
	$(BIN)/harken demo

test: $(SETUP) ## the whole default suite, then check; this is what CI runs
	$(PYTEST)
	$(MAKE) check

test-fast: $(SETUP) ## what needs no other process and no other library
	$(PYTEST) -m "not slow and not gpu and not net and not process and not oracle"

check: $(SETUP) ## style, types (mypy --strict on src), generated docs up to date
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate_docs.py --check

bench: $(SETUP) ## the measured sizes of the house; benchmarks/sweep.py DATA TRIALS compares settings
	$(BIN)/python benchmarks/sizes.py

lectures: $(SETUP) ## every row of docs/lectures.md, into lectures.html
	$(BIN)/python scripts/lectures.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(SETUP): | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev,text,look]"
	@command -v g++ >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q g++; } \
		|| echo "no g++: the tests that compile models will say so"
	@rm -f $(VENV)/.setup-* $(VENV)/.demo-*
	@touch $@

$(LIGHT): | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[text,look]"
	@rm -f $(VENV)/.setup-* $(VENV)/.demo-*
	@touch $@
