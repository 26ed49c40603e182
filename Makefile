# Needs make and Python 3.11 or newer; everything else is installed into .venv from requirements.lock.

PYTHON ?= python3
WORKERS ?= 4
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALLED := .venv/.installed

# A test in which a timeout has run out, as it may on a busy machine, or in which PostgreSQL let one of two statements
# give way, is run once more, and the closing lines tell of both attempts; one that found something wrong is not. What
# was skipped is named there, too, with the reason.
TIMED_OUT := QueryCanceled|LockNotAvailable|TimeoutError|did not hold within
GAVE_WAY := DeadlockDetected|SerializationFailure|tuple concurrently

# Without its byte code each server that a test starts would compile the whole program.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install wheel quickstart test test-long bench bench-quick docs figures lock clean

help:
	@echo "make install      install into .venv"
	@echo "make wheel        build the wheel, dist/headwater-VERSION-py3-none-any.whl"
	@echo "make quickstart   watch stream tables over real flights (ARGS=--keep leaves the server running)"
	@echo "make test         lint, type check and the tests"
	@echo "make test-long    the tests that take long"
	@echo "make bench        the benchmarks"
	@echo "make bench-quick  five minutes of them: ratios, beside those of the last release"
	@echo "make docs         the documentation as a site, in build/site"
	@echo "make figures      how large the parts of the program are, and how they hang together"
	@echo "make lock         pin the newest versions that pyproject.toml allows"
	@echo "make clean        remove .venv and what tools have left"

install: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; Python 3.11 or newer is needed: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@# uv installs in a third of pip's time, but does not read pip's own configuration: where it fails, pip goes on.
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock >.venv/uv.lock
	$(PIP) --require-hashes -r .venv/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock \
		|| { echo "make: uv could not install the packages, as it says above; pip does" >&2; \
			$(PIP) --require-hashes -r requirements.lock; }
	$(PIP) --no-deps --no-build-isolation --editable .
	@# The byte code of what a server loads: a shell with PYTHONDONTWRITEBYTECODE would have it compiled at each start.
	@$(BIN)/python -c 'import deltalake, pandas, pyarrow.dataset, pysail.spark, pyspark.sql.connect.session, server.commands.serve'
	@touch $@

wheel: install
	$(BIN)/python -m hatchling build --target wheel

quickstart: install
	@$(BIN)/headwater quickstart $(ARGS)

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	@# Beside the type checker all tests are compiled, once: else each of the processes below would do that.
	@$(BIN)/pytest -m "not long" --collect-only -q >/dev/null 2>&1 & $(BIN)/mypy; checked=$$?; wait; exit $$checked
	$(BIN)/pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		--reruns 1 --only-rerun '$(TIMED_OUT)|$(GAVE_WAY)' --rerun-show-tracebacks -rfERs $(ARGS)

test-long: install
	$(BIN)/pytest -m long $(ARGS)

bench: install
	@for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

bench-quick: install
	$(BIN)/python bench/quick.py $(ARGS)

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

figures: install
	@$(BIN)/python -m tests.structure.figures

COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links

lock:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) uv
	$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	echo hatchling | $(COMPILE) --constraint requirements.lock --output-file deploy/image/build.lock -
	for extras in "off" "sail --extra sail --extra iceberg" "spark --extra spark --extra iceberg"; do \
		set -- $$extras; name=$$1; shift; \
		$(COMPILE) --extra otel --extra console "$$@" --constraint requirements.lock --output-file deploy/image/$$name.lock pyproject.toml \
			|| exit 1; \
	done
	cd integrations/dbt && $(subst $(BIN),../../$(BIN),$(COMPILE)) --extra dev --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis integrations/*/.mypy_cache
