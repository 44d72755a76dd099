# The two commands a newcomer needs: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
LISTEN ?= 127.0.0.1:8787
DATA   ?= .data
PORT   ?= 8787
VENV   := .venv
BIN    := $(VENV)/bin
# The top-level folder `wheel` must not shadow the distribution of that name.
export PYTHONSAFEPATH = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start hundreds of processes; without bytecode files each would compile every module again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help run cluster cluster-down quick test test-all check bench docs dist test-dist schedules chaos chaos-short chaos-hour delayed power prose sdk redrive relay-kill abuse fuzz install install-dev clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: install ## start duemq on the embedded bus and show a short live demonstration (LISTEN=HOST:PORT DATA=DIR)
	@$(BIN)/duemq demo --data "$(DATA)" --listen "$(LISTEN)"

cluster cluster-down: DATA = .cluster
chaos-hour: MINUTES ?= 60
chaos-hour: SEED ?= 1
chaos-hour: OUT ?= hour.json

cluster: install-dev ## start three Kafka brokers, three ZooKeeper servers, three nodes and two proxies (PORT=8787 DATA=.cluster)
	@$(BIN)/duemq dev-cluster up --data "$(DATA)" --port "$(PORT)" $(ARGS)

cluster-down: install-dev ## stop what `make cluster` started; its data stays (DATA=.cluster)
	@$(BIN)/duemq dev-cluster down --data "$(DATA)"

PYTEST := $(BIN)/python -m pytest -q
# Failed tests are run once more, alone: on a busy machine two workers sometimes starve each other for minutes.
# pytest exits with 1 if tests failed, and with 5 if none were selected.
define pytest
$(PYTEST) -m "$(1)" -n 2 --dist loadgroup $(ARGS) || case $$? in \
	1) $(PYTEST) -m "$(1)" --last-failed --last-failed-no-failures none $(ARGS);; \
	5) ;; \
	*) exit 1;; esac
endef

# Two tests at a time wait longer: tests/support/patience.py.
test test-all: export TEST_SLOW ?= 2

# Idle servers take half of a small machine: tests that need none run first.
test: install-dev ## unit, contract (on every server), functional and end to end on the embedded bus
	@$(call pytest,not servers and not slow and not chaos)
	@$(call pytest,servers and smoke and not slow and not chaos)

# Chaos next to other tests runs on a busy machine.
test-all chaos-short: export CHAOS_SLOW ?= 4

test-all: install-dev ## all tests: also on Kafka, ZooKeeper, Valkey and Spark, and the short forms of chaos
	@$(call pytest,not servers and not chaos)
	@$(call pytest,servers and not chaos)
	@$(call pytest,chaos and smoke)

quick: install-dev ## what to run while writing: ruff, import-linter and the quick unit tests (a minute, no server)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(PYTEST) -m "not heavy and not servers and not slow" -n 2 --hypothesis-profile quick --ignore tests/unit/bench tests/unit $(ARGS)

check: install-dev ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: install-dev ## the pages of docs/ as a site with search, in build/site (ARGS=serve: on 127.0.0.1:8000, and again at each change)
	@$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build)

sdk: install-dev ## generate the SDK's blocking client from the asynchronous one (client/http/aio)
	@PYTHONPATH=. $(BIN)/python -m tests.support.house.blocking_client

prose: install-dev ## phrases that read as translated, per 1,000 words of each folder and page (ARGS=--record)
	@PYTHONPATH=. $(BIN)/python -m tests.support.house.prose $(ARGS)

schedules: SEEDS ?= 1000
schedules: install-dev ## random schedules of a shard, checked by the oracles: many more than `make test` runs (SEEDS=1000)
	@SEEDS=$(SEEDS) $(BIN)/python -m pytest -n 2 -q tests/functional -k "random_schedule" $(ARGS)

redrive: install-dev ## redrive 100,000 dead letters at 2,000/s next to 2,000/s, kill the server in the middle (quiet machine)
	@REDRIVE_LETTERS=100000 REDRIVE_RATE=2000 REDRIVE_FLOW=2000 $(BIN)/python -m pytest -q -s tests/e2e/test_redrive.py $(ARGS)

relay-kill: install-dev ## relay 100,000 messages to each system, kill the relay and then the other side in the middle (quiet machine)
	@RELAY_MESSAGES=100000 $(BIN)/python -m pytest -q -s tests/e2e/test_relay_kill.py $(ARGS)

chaos: install-dev ## break everything under load and reconcile (half an hour; CHAOS_ROUNDS CHAOS_SEED CHAOS_OUT=FILE)
	@$(BIN)/python -m pytest -q -m chaos tests/chaos $(ARGS)

power: install-dev ## cut the power under load, 200 times the bus and 50 times a node (needs gcc; POWER_SEED)
	@POWER_ROUNDS=200 $(BIN)/python -m pytest -q -s tests/power/test_layer.py tests/power/test_bus.py tests/power/test_embedded.py $(ARGS)
	@POWER_ROUNDS=50 $(BIN)/python -m pytest -q -s tests/power/test_node.py $(ARGS)
	@$(BIN)/python -m pytest -q tests/power/test_files.py tests/power/test_rebuild.py $(ARGS)

chaos-short: install-dev ## one breakage of each kind on one broker under load, reconciled at the end
	@$(BIN)/python -m pytest -q tests/chaos/test_short.py $(ARGS)

chaos-hour: install-dev ## random breakages for an hour, reconciled by the senders and by the Spark audit (MINUTES SEED OUT=FILE)
	@PYTHONPATH=. $(BIN)/python -m tests.chaos.hour --minutes "$(MINUTES)" --seed "$(SEED)" --out "$(OUT)" $(ARGS)

delayed: ROUNDS ?= 200
delayed: SEED ?= 1
delayed: OUT ?= delayed.json
delayed: install-dev ## Kafka requests that reach the broker up to a minute late, each round reconciled (ROUNDS=200 SEED OUT=FILE)
	@PYTHONPATH=. $(BIN)/python -m tests.chaos.delayed --rounds "$(ROUNDS)" --seed "$(SEED)" --out "$(OUT)" $(ARGS)

abuse: MINUTES ?= 10
abuse: SEED ?= 1
abuse: OUT ?= abuse.json
abuse: install-dev ## abuse a server next to an honest client: memory, lateness, exactness (MINUTES SEED OUT=FILE; quiet machine)
	@PYTHONPATH=. $(BIN)/python -m tests.abuse --minutes "$(MINUTES)" --seed "$(SEED)" --out "$(OUT)" $(ARGS)

fuzz: MINUTES ?= 10
fuzz: SEED ?= 1
fuzz: install-dev ## fuzz with requests from the OpenAPI document, raw bytes, and bytes for each decoder, MINUTES each (MINUTES SEED)
	@PYTHONPATH=. $(BIN)/python -m tests.fuzz.fuzz_api --minutes "$(MINUTES)" --seed "$(SEED)"
	@PYTHONPATH=. $(BIN)/python -m tests.fuzz.fuzz_http --minutes "$(MINUTES)" --seed "$(SEED)"
	@PYTHONPATH=. $(BIN)/python -m tests.fuzz.fuzz_decoders --minutes "$(MINUTES)" --seed "$(SEED)"

bench: install-dev ## measure the figures of docs/explain/benchmarks.md (about ten minutes)
	@$(BIN)/duemq bench all $(ARGS)

dist: install-dev ## build and check wheels and source distributions of the three packages, into dist/
	@rm -rf dist
	@PYTHONPATH=. $(BIN)/python -m tests.support.house.distributions

test-dist: install-dev ## install the wheels with the lowest and the newest versions allowed, and run them and the examples
	@$(BIN)/python -m pytest -q tests/e2e/test_packaging.py tests/e2e/test_dependencies.py $(ARGS)

install: $(VENV)/.installed ## create .venv with the packages that a server needs
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "duemq needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Editable: the code of all three is imported from src/. `compat` is a line in a .pth file; a finder would delay each start.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --config-settings editable_mode=compat
DESCRIPTIONS := pyproject.toml constraints.txt $(wildcard src/duemq/__init__.py packages/*/pyproject.toml packages/*/setup.py)

$(VENV)/.installed: $(DESCRIPTIONS) | $(VENV)/bin/python
	@echo "installing duemq"
	@$(PIP_INSTALL) --editable '.[server,http]' --editable packages/duemq-dev
	@touch $@

$(VENV)/.installed-dev: $(DESCRIPTIONS) | $(VENV)/bin/python
	@echo "installing duemq and its test tools"
	@$(PIP_INSTALL) --editable '.[dev]' --editable 'packages/duemq-dev[bench]' --editable 'packages/duemq-spark[connect]'
	@touch $@ $(VENV)/.installed

clean: ## remove the environment and caches (never your data)
	@rm -rf $(VENV) build dist packages/*/build packages/*/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
