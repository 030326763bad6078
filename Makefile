# Each target works alone on a fresh clone: it makes .venv first when that is missing or old.

SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
ACCELERATOR := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
# Written last, so that a set-up that was broken off is done again.
INSTALLED := .venv/.installed-$(ACCELERATOR)
# Of vLLM: beside the version in .venv, the one that has no build for CPUs yet.
NEXT := 0.33.0
NEXT_BIN := .venv-vllm-$(NEXT)/bin
NEXT_INSTALLED := .venv-vllm-$(NEXT)/.installed-$(ACCELERATOR)
CLIENTS := .clients/.installed
# The tests of LangGraph's API, and those of the chat page, which makes the parts even. They start no
# engine core, so that this group imports vLLM for no server of forks.
LANGGRAPH := tests/serving/langgraph tests/serving/chat
# Those that share nothing with others: Ray's, those of whole commands, services and servers.
APART := $(addprefix tests/engine/test_,ray.py bench_gpu.py differential.py stack.py cli_process.py script.py openai_server.py)
# Those with engines, which share one and start in two seconds where vLLM has been imported.
ENGINES := tests/engine tests/techniques tests/contexts/test_real_engine.py tests/test_contexts_page.py tests/executors/transformers/test_contexts.py tests/benchmarks/test_techniques.py tests/journal/test_kill_real.py tests/benchmarks/test_memory.py
# Those of tools, commands and records, which mostly wait for processes, and those of servers.
COMMANDS := tests/integrations tests/clients tests/cli tests/interrupts tests/journal
SERVERS := tests/serving
# Where groups of `make test` note that tests failed; .ci/test-group runs these once more.
FAILED := .pytest_cache/failed
# For tests that take longer than one of `make test` may.
PATIENT := --timeout 3600 --override-ini faulthandler_timeout=0

.PHONY: check docs docs-serve coverage test-differential record-reference help setup setup-next demo test test-engine test-needs test-langgraph test-apart test-servers test-commands test-rest test-next fuzz mutate lint wheels format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml .ci/setup .ci/pip-settings .ci/excluded-on-cpu.txt
	@.ci/setup $(ACCELERATOR)
	@touch $@

$(CLIENTS): $(wildcard .ci/*clients*) .ci/pip-settings | $(INSTALLED)
	@.ci/setup-clients
	@touch $@

setup: $(INSTALLED) ## Make .venv with agentrt, an engine for this machine and the tools

$(NEXT_INSTALLED): pyproject.toml .ci/setup .ci/pip-settings .ci/excluded-on-cpu.txt
	@.ci/setup $(ACCELERATOR) $(NEXT)
	@touch $@

setup-next: $(NEXT_INSTALLED) ## Make an environment with the next version of vLLM

demo: $(INSTALLED) ## Run an agent program on a real engine
	$(BIN)/agentrt run demos/react.py

# Six at once on two cores: starts of engines, restarts of servers and browsers wait a lot.
test: $(INSTALLED) ## Check the style, the types and the layers, and run all tests
	@rm -rf $(FAILED)
	@FAILED=$(FAILED) $(MAKE) --no-print-directory --jobs 6 --keep-going --output-sync=target \
		lint test-engine test-langgraph test-servers test-commands test-rest test-apart
	@FAILED=$(FAILED) .ci/test-group --again

test-engine: $(CLIENTS) test-needs
	.ci/test-group engine $(ENGINES) $(addprefix --ignore ,$(LANGGRAPH) $(APART))

test-langgraph: $(CLIENTS) test-needs
	.ci/test-group langgraph $(LANGGRAPH)

test-apart: $(CLIENTS) test-needs
	.ci/test-group apart $(APART)

test-servers: $(CLIENTS) test-needs
	.ci/test-group servers $(SERVERS) $(addprefix --ignore ,$(LANGGRAPH) $(APART) $(ENGINES))

test-commands: $(CLIENTS) test-needs
	.ci/test-group commands $(COMMANDS) $(addprefix --ignore ,$(LANGGRAPH) $(APART) $(ENGINES))

test-rest: $(CLIENTS) test-needs
	.ci/test-group rest $(addprefix --ignore ,$(SERVERS) $(COMMANDS) $(LANGGRAPH) $(APART) $(ENGINES))

# Compiled here, since tests start hundreds of processes, and PYTHONDONTWRITEBYTECODE may be set.
test-needs: $(INSTALLED)
	@.ci/setup-tests
	@$(BIN)/python -m compileall -q agentrt benchmarks tests

test-differential: $(INSTALLED) ## Compare with vLLM's own server once more, with a larger model (7 minutes)
	DIFFERENTIAL_MODEL=embedded $(BIN)/pytest $(PATIENT) tests/engine/test_differential.py

# URL: LangGraph's own server, fresh; docs/langgraph-reference.md.
record-reference: $(INSTALLED)
	$(BIN)/python -m tests.serving.langgraph.corpus $(URL)

test-next: $(NEXT_INSTALLED) $(CLIENTS) test-needs ## Run the tests of the code that uses vLLM, with the next version of vLLM
	$(NEXT_BIN)/pytest tests/executors tests/serving tests/contexts tests/integrations/langchain tests/lab/engine tests/engine

# TESTS=tests/graph measures the tests of one package. Tests that fail do not keep the report back.
coverage: $(CLIENTS) test-needs ## Run all tests and report which lines and branches they miss
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

fuzz: $(INSTALLED) ## Run the tests with random inputs, with more of these inputs than make test
	AGENTRT_EXAMPLES=20000 $(BIN)/pytest $(PATIENT) tests/serving/frontend/test_any_bodies.py tests/serving/frontend/test_joined_tokens.py tests/serving/frontend/test_response_fuzz.py tests/serving/test_any_order.py tests/serving/langgraph/test_fuzz.py tests/executors/vllm/entrypoints/test_cut_off.py

# ONLY='agentrt.graph.*' tries one package. A second run tries the mutants that survived; see docs/results/mutation.md.
mutate: $(INSTALLED) ## Count the mutants that the tests of the pure packages miss
	$(BIN)/python -m benchmarks mutation $(ONLY)

lint: $(INSTALLED) ## Check the style, the types and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pure packages use no engine, no server and no process. Their tests take a minute.
PURE := tests/scheduler tests/graph tests/program tests/router tests/tracking tests/test_layout.py
check: $(INSTALLED) ## Do what make lint does, and run the tests of the pure packages (3 minutes at most)
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest -q $(PURE)

docs: $(CLIENTS) ## Build the documentation site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/site/mkdocs.yml

docs-serve: $(CLIENTS) ## Show the site while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --config-file docs/site/mkdocs.yml

wheels: $(INSTALLED) ## Build agentrt and agentrt-scheduler into dist
	source .ci/pip-settings && hand_on_pip_settings $(BIN)/python && \
		for project in . packages/agentrt-scheduler; do $(BIN)/uv build --quiet --out-dir dist $$project || exit 1; done

format: $(INSTALLED) ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, .venv-vllm-*, .clients, what was built, and the caches of tools
	rm -rf .venv .venv-vllm-* .clients build dist mutants *.egg-info packages/*/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
