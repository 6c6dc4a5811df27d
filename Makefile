# The commands of this project. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo overload test test-unit test-oldest lint wheel clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e .
	touch $@

setup: .venv/.ready ## make the virtual environment

demo: setup ## run the payments demo on real services; it checks itself
	$(BIN)/python -m examples.payments.demo

overload: setup ## run the overload experiment, three quarters of an hour; writes docs/overload
	$(BIN)/python -m benchmarks.overload

test: setup ## run all tests on real services: the newest, then the oldest where they are installed
	$(BIN)/pytest
	@if [ -n "$$CI" ] || command -v rabbitmq-server >/dev/null; then $(MAKE) test-oldest; \
	else echo "rabbitmq-server is not installed here: the oldest services were not tested"; fi

test-oldest: setup ## run the service tests on the machine's own RabbitMQ and Postgres
	$(BIN)/pytest -m "integration or acceptance" --consumer-services=local \
		--ignore=tests/integration/test_services.py --ignore=tests/acceptance/test_wheel.py \
		--ignore=tests/acceptance/test_overload_bench.py

test-unit: setup ## run the tests that need no services
	$(BIN)/pytest tests/unit tests/property

lint: setup ## check style, types and import direction
	$(BIN)/ruff check .
	$(BIN)/mypy --strict consumer
	$(BIN)/mypy examples benchmarks
	$(BIN)/lint-imports

wheel: setup ## build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist . >/dev/null

clean: ## stop the services and remove what the commands made
	-$(BIN)/consumer services down
	rm -rf .venv dist .consumer
