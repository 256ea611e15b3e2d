# The few commands that people type; `make help` lists them. Settings are in pyproject.toml.
#
# .venv is made by python3, and .venv-NAME by `make PYTHON=NAME`. One whose Python has another version by now is made
# anew. What is installed in it are the lock files: `run` needs requirements.lock only, `gateway` has
# requirements-gateway.lock on top, `community` requirements-communities.lock, `postgres` requirements-postgres.lock,
# `compact` requirements-export.lock, everything else requirements-dev.lock on top of all. A stamp is written last and removed first, so an install that was
# interrupted is done again.

PYTHON ?= python3
ARGS ?=

VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install -q --disable-pip-version-check
# A lock has all that is needed. If pip resolved dependencies, it would take a requirement with an extra, such as
# coverage[toml], from a newer release than the lock pins, and then refuse it.
INSTALL_LOCKED = $(INSTALL) --no-deps --require-hashes
RUNTIME := $(VENV)/.runtime-installed
GATEWAY := $(VENV)/.gateway-installed
COMMUNITIES := $(VENV)/.communities-installed
POSTGRES := $(VENV)/.postgres-installed
EXPORT := $(VENV)/.export-installed
DEV := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.NOTPARALLEL: # two installs must not meet in one .venv
.PHONY: run postgres gateway community compact test unit others compiled coverage floors dev check docs site page demo faults fuzz soak crowd bench java node lock audit clean help anew

run: $(RUNTIME) ## start the mailserver: make run ARGS="--config FILE"
	@$(BIN)/waku-mailserver run $(ARGS)

postgres: $(POSTGRES) ## start it on PostgreSQL: make postgres ARGS="--store postgresql://USER@HOST/DATABASE"
	@$(BIN)/waku-mailserver run $(ARGS)

gateway: $(GATEWAY) ## serve light clients of Waku v2 beside it: make gateway ARGS="--data-dir DIR"
	@$(BIN)/waku-mailserver gateway $(ARGS)

community: $(COMMUNITIES) ## histories of communities, over BitTorrent: make community ARGS="serve --data-dir DIR"
	@$(BIN)/waku-mailserver community $(ARGS)

compact: java $(EXPORT) ## archive the store: make compact ARGS="--store data/mailserver.db --archive DIR"
	@$(BIN)/spark-export compact $(ARGS)

demo: java $(EXPORT) ## two mailservers, a stream of posts, a compaction: look around, then Ctrl-C
	@$(BIN)/python -m docs.demo

# Processes share the tests, see tests/conftest.py. On two cores three: tests wait for disks, containers and daemons. More
# would get in the way of tests that judge times. All tests are one run, in which the unit tests come last: they keep
# each process at work until the end, and 16,000 tests are collected once. If a process dies, the run ends: xdist would
# wait for it until CI's time is over.
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder --max-worker-restart 0
UNIT = not spark and not docker and not browser and not fuzz and not integration and not slow

# With a Python named, only the unit tests: what needs daemons, Spark or containers does not depend on it.
test: java $(DEV) ## run the tests: make test ARGS="tests/waku -k bloom"; the unit tests on another Python: PYTHON=python3.13
ifneq ($(ARGS),)
	@$(BIN)/python -m pytest $(ARGS)
else ifeq ($(origin PYTHON),command line)
	@$(PYTEST) -n $(WORKERS) -m "$(UNIT)"
else
	@$(PYTEST) -n $(WORKERS) $(MEASURED)
endif

unit: $(DEV) ## run the unit tests: two minutes
	@$(PYTEST) -n $(WORKERS) -m "$(UNIT)"

others: java $(DEV) ## run all other tests: daemons, Spark, containers, faults
	@$(PYTEST) -n $(WORKERS) -m "not ($(UNIT))"

# What is wrong with tests that cannot be collected, `make test` says.
compiled: $(DEV) ## compile the tests as pytest does, so that processes that share them need not
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true

coverage: ## run the tests; a package of which they run less than tests/coverage_floors.py says is an error
	@rm -rf .coverage
	@$(MAKE) --silent test MEASURED="-p tests.measuring"
	@$(MAKE) --silent floors

floors: $(DEV) ## compare the coverage that was measured last with tests/coverage_floors.py
	@$(BIN)/python -m tests.coverage_floors

dev: $(DEV)

check: $(DEV) ## check format, lint, types, and that the locks have all that their packages ask for
	@$(BIN)/python -m pip check --disable-pip-version-check
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(DEV) ## write what docs say of settings and of recorded runs
	@$(BIN)/python -m docs.settings
	@$(BIN)/python -m docs.evidence

# A warning is an error: a link that leads nowhere, a diagram that cannot be drawn.
site: $(DEV) ## build the docs as a site, with search, in dist/site
	@$(BIN)/python -m sphinx -W --keep-going -q -c docs/site . dist/site
	@echo "dist/site/index.html"

page: node ## build docs/examples/light-client.html, a page that is a client of the gateway, in dist/page
	@npm run page --prefix tests/gateway/js --silent -- --outdir=$(CURDIR)/dist/page --log-level=warning
	@echo "dist/page/light-client.html"

faults: java $(DEV) ## kills, power cuts, full disks, hostile peers...: make faults ARGS="--quick kills"
	@$(BIN)/python -m tests.faults $(ARGS)

fuzz: $(DEV) ## fuzz decoders, try properties: make fuzz ARGS="--seconds 60 codec-rlp properties-mail"
	@$(BIN)/python -m tests.fuzz $(ARGS)

soak: java $(DEV) ## a simulated month, in half an hour: make soak ARGS="--quick"
	@$(BIN)/python -m tests.soak $(ARGS)

crowd: $(DEV) ## light clients come and go for an hour: make crowd ARGS="--minutes 5"
	@$(BIN)/python -m tests.crowd $(ARGS)

bench: java $(DEV) ## measure: make bench ARGS="--runs 3 busy idle"
	@$(BIN)/python -m bench $(ARGS)

# The packages of Node.js that tests and the page need, by their lock files; no script of theirs runs. npm writes the
# stamp last.
NODE_FOLDERS := tests/gateway/js tests/libp2p/oracle tests/reconcile/oracle

node: ## install js-waku and others in Node.js: some tests are skipped without them
	@installs=; for folder in $(NODE_FOLDERS); do \
		[ $$folder/node_modules/.package-lock.json -nt $$folder/package-lock.json ] || { \
			npm ci --prefix $$folder --ignore-scripts --loglevel error --no-fund --no-audit >/dev/null & installs="$$installs $$!"; }; \
	done; for install in $$installs; do wait $$install || exit; done

java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || { \
		echo "Java 17 or newer is needed for Spark, and $${JAVA_HOME:+$$JAVA_HOME/bin/}java is not:" \
			"on Debian, apt-get install openjdk-17-jre-headless" >&2; exit 1; }

# An existing lock is a preference, so this changes only what pyproject.toml asks for. The development lock is held to
# the versions of the other one.
LOCK = "$$tmp/bin/uv" pip compile -q pyproject.toml --group build --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(ARGS)

lock: ## write the lock files again: make lock ARGS="--upgrade"
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT INT TERM && \
	$(PYTHON) -m venv "$$tmp" && "$$tmp/bin/python" -m pip install -q --disable-pip-version-check "uv>=0.9" && \
	$(LOCK) -o requirements.lock && \
	$(LOCK) --extra export -c requirements.lock -o requirements-export.lock && \
	$(LOCK) --extra archive -c requirements-export.lock -o requirements-archive.lock && \
	$(LOCK) --extra gateway -c requirements-archive.lock -o requirements-gateway.lock && \
	$(LOCK) --extra communities -c requirements-gateway.lock -o requirements-communities.lock && \
	$(LOCK) --extra postgres -c requirements-communities.lock -o requirements-postgres.lock && \
	$(LOCK) --extra leveldb -c requirements-postgres.lock -o requirements-leveldb.lock && \
	$(LOCK) --extra export --extra gateway --extra communities --extra postgres --extra leveldb --group dev \
		-c requirements-export.lock -c requirements-gateway.lock -c requirements-communities.lock \
		-c requirements-postgres.lock -c requirements-leveldb.lock -o requirements-dev.lock

audit: ## look up the locked versions among known vulnerabilities; asks a service of PyPI, or ARGS="-s osv"
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT INT TERM && \
	$(PYTHON) -m venv "$$tmp" && "$$tmp/bin/python" -m pip install -q --disable-pip-version-check "pip-audit>=2.9" && \
	"$$tmp/bin/pip-audit" --strict --disable-pip --require-hashes --progress-spinner off \
		-r requirements.lock -r requirements-archive.lock -r requirements-gateway.lock \
		-r requirements-communities.lock -r requirements-postgres.lock -r requirements-leveldb.lock \
		-r requirements-export.lock -r requirements-dev.lock $(ARGS)

clean: ## remove what was installed, and every cache
	rm -rf .venv .venv-* $(NODE_FOLDERS:%=%/node_modules) .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list these commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf 'make %-9s %s\n' "$$target" "$$text"; done
	@echo 'PYTHON=... names another Python than python3, 3.11 or newer; it has a .venv of its own.'

# The versions of .venv and of its Python. Where they differ, .venv is made anew.
HAS := $(shell sed -n 's/^version *= *\([0-9]*\.[0-9]*\).*/\1/p' $(VENV)/pyvenv.cfg 2>/dev/null)
WANTED := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

$(VENV)/.made: $(if $(filter-out $(HAS),$(WANTED)),anew)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is not: try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(RUNTIME): $(VENV)/.made requirements.lock pyproject.toml
	@rm -f $(RUNTIME) $(GATEWAY) $(COMMUNITIES) $(POSTGRES) $(EXPORT) $(DEV)
	@echo "Installing requirements.lock in $(VENV)"
	@$(INSTALL_LOCKED) -r requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $(RUNTIME)

# The versions are those of requirements-dev.lock, too: what is installed beside them stays.
$(GATEWAY): $(RUNTIME) requirements-gateway.lock
	@echo "Installing requirements-gateway.lock in $(VENV)"
	@$(INSTALL_LOCKED) -r requirements.lock -r requirements-gateway.lock
	@touch $(GATEWAY)

$(COMMUNITIES): $(RUNTIME) requirements-communities.lock
	@echo "Installing requirements-communities.lock in $(VENV)"
	@$(INSTALL_LOCKED) -r requirements.lock -r requirements-communities.lock
	@touch $(COMMUNITIES)

$(POSTGRES): $(RUNTIME) requirements-postgres.lock
	@echo "Installing requirements-postgres.lock in $(VENV)"
	@$(INSTALL_LOCKED) -r requirements.lock -r requirements-postgres.lock
	@touch $(POSTGRES)

$(EXPORT): $(VENV)/.made requirements.lock requirements-export.lock pyproject.toml
	@rm -f $(RUNTIME) $(GATEWAY) $(COMMUNITIES) $(POSTGRES) $(EXPORT) $(DEV)
	@echo "Installing requirements-export.lock in $(VENV)"
	@$(INSTALL_LOCKED) -r requirements.lock -r requirements-export.lock
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $(RUNTIME) $(EXPORT)

$(DEV): $(VENV)/.made requirements.lock requirements-export.lock requirements-dev.lock pyproject.toml
	@rm -f $(RUNTIME) $(GATEWAY) $(COMMUNITIES) $(POSTGRES) $(EXPORT) $(DEV)
	@echo "Installing requirements-dev.lock in $(VENV)"
	@$(INSTALL_LOCKED) -r requirements.lock -r requirements-export.lock -r requirements-dev.lock
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $(RUNTIME) $(GATEWAY) $(COMMUNITIES) $(POSTGRES) $(EXPORT) $(DEV)
