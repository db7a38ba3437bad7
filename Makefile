# Two commands matter: `make study` and `make test`. Each makes the environment it needs (.venv).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PRESET ?= smoke

# One thread a test process: two workers on two cores would otherwise fight over them, and a fit's
# bits depend on the number of threads.
TESTS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: help study test test-fast test-slow lint reference lock clean environment

help:
	@echo "make study    environment, then the first study at preset smoke on real returns"
	@echo "make test     environment, then all tests (fast, then slow)"
	@echo "make lint     ruff and mypy"
	@echo "make reference  the API reference as pages, in reference/"
	@echo "make lock     resolve requirements.lock anew (TORCH=version)"
	@echo "make clean    remove .venv, caches and built files; results elsewhere stay"

# The first Python of 3.13, 3.12, 3.11 that can make a virtual environment; PYTHON=... overrules it.
$(READY): requirements.lock pyproject.toml
	@chosen="$${PYTHON:-}"; \
	if [ -z "$$chosen" ]; then \
	  for candidate in python3.11 python3.12 python3.13 python3 python; do \
	    if $$candidate -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	      2>/dev/null; then chosen=$$candidate; break; fi; \
	  done; \
	fi; \
	if [ -z "$$chosen" ]; then \
	  echo "fints needs Python 3.11, 3.12 or 3.13 with venv; none was found on the PATH." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; \
	fi; \
	echo "environment: $(VENV) with $$($$chosen --version) (about 2 GB; minutes when nothing is cached)"; \
	$$chosen -m venv --clear $(VENV)
	@echo "environment: installing the $$(grep -c == requirements.lock) packages of requirements.lock"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$(grep '^torch==' requirements.lock)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "environment: ready; activate it with: source $(BIN)/activate"

environment: $(READY)

study: $(READY)
	@echo "study: residual_by_depth, preset $(PRESET)"
	@$(BIN)/python studies/residual_by_depth.py run --preset $(PRESET)
	@echo
	@echo "fints is $(BIN)/fints, or plain fints after: source $(BIN)/activate"

test: test-fast test-slow

test-fast: $(READY)
	@echo "tests: the fast suite, budget 5 minutes on 2 cores"
	@$(TESTS) -m "not slow"

test-slow: $(READY)
	@echo "tests: the slow suite, budget 20 minutes on 2 cores"
	@$(TESTS) -m slow

lint: $(READY)
	@echo "lint: ruff check, ruff format --check, mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

REFERENCE ?= reference
reference: $(READY)
	@echo "reference: a page a package, from the docstrings"
	@$(BIN)/python docs/build_reference.py --out $(REFERENCE)

TORCH ?= $(shell sed -n 's/^torch==//p' requirements.lock)
lock: $(READY)
	@echo "lock: resolving on $$($(BIN)/python --version) with torch $(TORCH)"
	@$(BIN)/python .ci/lock.py $(TORCH)

clean:
	@echo "clean: .venv, caches, dist, reference"
	@rm -rf $(VENV) dist reference .pytest_cache .ruff_cache .mypy_cache .hypothesis
