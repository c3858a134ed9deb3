# harken: set up, try, test. Everything happens in .venv; `make help` lists the targets.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# the stamp file records that this pyproject.toml and these constraints are installed; a second call does nothing
HASH := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
SETUP := $(VENV)/.setup-$(HASH)
LIGHT := $(VENV)/.demo-$(HASH)
# two processes with one thread each: threads that compete for the same cores are many times slower
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: help setup demo test test-fast test-slow coverage check bench lectures pictures

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name what; do printf '%-18s %s\n' "$$name" "$$what"; done

setup: $(SETUP) ## create .venv with everything the tests need

demo: $(if $(wildcard $(SETUP)),,$(LIGHT)) ## create a small .venv and train a translator in about five minutes
	$(BIN)/harken demo

test: $(SETUP) ## the default test suite, then check; CI runs this
	$(PYTEST)
	$(MAKE) check

test-fast: $(SETUP) ## tests without subprocesses and other libraries
	$(PYTEST) -m "not slow and not gpu and not net and not process and not oracle"

test-slow: $(SETUP) ## the long tests: trainings to a number, fuzzing, leaks
	$(PYTEST) -m "slow and not gpu and not net" --timeout 3600

coverage: $(SETUP) ## line coverage of the default suite, per module
	$(PYTEST) --cov=src/harken --cov-report=term:skip-covered

check: $(SETUP) ## ruff, mypy --strict, generated pages
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate_docs.py --check

bench: $(SETUP) ## code sizes
	$(BIN)/python benchmarks/sizes.py

lectures: $(SETUP) ## run every row of docs/lectures.md, write lectures.html
	$(BIN)/python scripts/lectures.py

pictures: $(SETUP) ## draw the pictures of the lectures into docs/pictures
	$(BIN)/python scripts/pictures.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(SETUP): | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev,text,plot]"
	@command -v g++ >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q g++; } \
		|| echo "no g++: tests that compile models are skipped with a message"
	@rm -f $(VENV)/.setup-* $(VENV)/.demo-*
	@touch $@

$(LIGHT): | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[text,plot]"
	@rm -f $(VENV)/.setup-* $(VENV)/.demo-*
	@touch $@
