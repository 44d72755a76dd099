# The two commands a newcomer needs: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
LISTEN ?= 127.0.0.1:8787
DATA   ?= .data
VENV   := .venv
BIN    := $(VENV)/bin
# A top-level folder called `wheel` must not shadow the distribution of that name.
export PYTHONSAFEPATH = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help run test test-fast check bench install install-dev clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: install ## start duemq on the embedded bus and show a short live demonstration (LISTEN=HOST:PORT DATA=DIR)
	@$(BIN)/duemq serve --data "$(DATA)" --listen "$(LISTEN)" --demo

test: install-dev ## everything: unit, contract, functional, end to end
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -q $(ARGS)

test-fast: install-dev ## only what needs no server
	@$(BIN)/python -m pytest -q tests/unit tests/contract $(ARGS)

check: install-dev ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: install ## the figures of docs/benchmarks.md (about ten minutes)
	@$(BIN)/duemq bench all $(ARGS)

install: $(VENV)/.installed ## make .venv with duemq and what `duemq bench` needs
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "duemq needs Python 3.11 or newer; say PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing duemq"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing duemq and its test tools"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed

clean: ## remove the environment and caches (never your data)
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
