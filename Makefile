# `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two steps of one environment: what the main job needs, and what development needs in addition.
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
INPUTS := pyproject.toml constraints.txt scripts/setup.sh hatch_build.py $(wildcard src/lanemq/_fast/*.p* src/lanemq/_fast/*.h)
# Tests run in more processes than there are cores, because most of their time is waiting. Tests that share a Spark session
# stay together.
JOBS ?= 4
PARALLEL := -n $(JOBS) --dist loadgroup
# Without byte code every process of a test run would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# What `make check` tests: what needs no server but a broker in its own process (CONTRIBUTING.md).
FAST := tests/core tests/wire tests/model tests/log tests/net tests/checker tests/fast tests/broker tests/client \
	tests/pipelines/declare tests/pipelines/stages tests/pipelines/checkpoint
# Where a function has a compiled twin, and what calls it.
HOT_PATHS := tests/core/sending tests/core/consuming tests/wire tests/log tests/client/producer tests/client/consumer \
	tests/client/test_codec.py tests/broker/handlers

# Spark finds its Java by this.
JAVA = JAVA_HOME="$$(bash scripts/java.sh --home)"

.DEFAULT_GOAL := help
.PHONY: help setup tools run test pure check format lint types contracts most fast slow extended browser screenshots bench bench-peers bench-spark-peers bench-check sim docs dist spark-proof spark-stores chaos effects soak abuse fuzz mirror-proof interop interop-cluster interop-coordinator clean spark-versions

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): $(INPUTS)
	@bash scripts/setup.sh "$(PYTHON)" "$(VENV)" main
	@touch $(READY)

$(TOOLS): $(INPUTS)
	@bash scripts/setup.sh "$(PYTHON)" "$(VENV)" tools
	@touch $(READY) $(TOOLS)

setup: $(READY) ## build .venv with the lanemq command in it, and what the main job needs

tools: $(TOOLS) ## add to .venv what tests, documents and benchmarks need

run: setup ## the main job: broker, consumers and a Spark pipeline, parts of it killed, the result checked
	@bash scripts/java.sh --home >/dev/null || bash scripts/java.sh
	@$(JAVA) $(BIN)/python -m lanemq.testing.demo

test: tools lint ## all tests except the extended ones; hot paths with and without the compiled module
	@bash scripts/java.sh || true
	@bash scripts/browser.sh --look
	@$(MAKE) --no-print-directory -j3 types contracts most
	@$(MAKE) --no-print-directory pure

most:
	@$(JAVA) $(BIN)/python -m tests.quick_spark
	@$(JAVA) $(BIN)/pytest tests -m "not extended" $(PARALLEL)

# A fifth of the examples of each property: `make test` has taken all of them with the compiled module.
pure: tools ## the tests of hot paths again, without the compiled module
	@LANEMQ_PURE=1 LANEMQ_FEWER_EXAMPLES=5 $(BIN)/pytest -q -m "not slow and not extended" $(PARALLEL) $(HOT_PATHS)

check: tools lint ## after each edit, about a minute: format, lint, types, import contracts, fast tests
	@$(MAKE) --no-print-directory -j3 types contracts fast

lint:
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .

types:
	@$(BIN)/mypy --no-error-summary

contracts:
	@$(BIN)/lint-imports --no-cache > var/contracts.txt 2>&1 || { cat var/contracts.txt; exit 1; }

# A fifth of the examples of each property; `make test` takes all.
fast:
	@LANEMQ_FEWER_EXAMPLES=5 $(BIN)/pytest $(FAST) -q -m "not slow and not extended" -p tests.fast_tests --maxfail=5 $(PARALLEL)

slow: tools ## only the slow tests
	@$(JAVA) $(BIN)/pytest tests -m "slow and not extended"

extended: tools ## tests that make test leaves out: the Spark benchmarks with tiny numbers, a short soak
	@$(JAVA) $(BIN)/pytest tests -m extended

browser: tools ## the console in a real browser
	@bash scripts/browser.sh
	@$(BIN)/pytest -q tests/console/test_browser.py

screenshots: tools ## the images of the console's guide, into docs/images; all screens in both schemes into var/screens
	@bash scripts/browser.sh
	@LANEMQ_SCREENSHOTS=1 $(JAVA) $(BIN)/pytest -q tests/console/test_screenshots.py

format: tools ## reformat and fix what ruff can fix
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: tools ## benchmarks, one JSON line each; those with Spark: make bench WHAT=spark
	@$(JAVA) $(BIN)/python -m benchmarks $(WHAT)

docs: tools ## the documents as a site, built offline; the console serves it under /docs
	@$(BIN)/python -m scripts.site.build

dist: tools docs ## sdist, compiled wheel and pure wheel in dist/, each wheel tried in a clean environment without a compiler
	@$(BIN)/python scripts/dist.py

bench-peers: tools ## LaneMQ beside Kafka, RocketMQ, Redis and NATS, about an hour: QUICK=1 takes minutes, PATHS=slow,latency keeps the rest
	@$(BIN)/python -m benchmarks.peers $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick) $(if $(PATHS),--paths $(PATHS) --append)

bench-spark-peers: tools ## LaneMQ's Spark source beside Spark's Kafka source, about 15 minutes: QUICK=1 takes two; MINUTES=8 ends it, APPEND=1 continues
	@$(JAVA) $(BIN)/python -m benchmarks.spark_peers $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(APPEND),--append)

bench-check: tools ## CPU time per message of client and broker against a committed baseline: fails beyond 15 %
	@$(BIN)/python -m benchmarks check

sim: tools ## the whole system on virtual time, a fault schedule per seed: make sim SEEDS=20000
	@$(BIN)/python -m lanemq.testing.sim --seeds $(or $(SEEDS),300) --jobs 2

spark-proof: tools ## order from producer to table with executor and driver killed: make spark-proof EVENTS=1000000
	@LANEMQ_PROOF_EVENTS=$(or $(EVENTS),1000000) $(JAVA) $(BIN)/pytest -s tests/pipelines/test_end_to_end.py

spark-stores: tools ## checkpoints and tables on a real HDFS, an S3 server and a REST catalog, drivers killed at every step: make spark-stores STORE=hdfs
	@$(JAVA) $(BIN)/pytest -m extended -k "$(or $(STORE),hdfs or s3 or rest-catalog)" tests/files tests/pipelines

spark-versions: tools ## one job on PySpark 4.0, 4.1, 4.2 and 4.3, each in an environment of its own: make spark-versions VERSIONS=4.0
	@$(JAVA) bash scripts/spark_versions.sh $(BIN)/python $(VERSIONS)

chaos: tools ## kill -9 and freezes of every process under load, round after round: make chaos ROUNDS=500
	@$(JAVA) LANEMQ_CHAOS_ROUNDS=$(or $(ROUNDS),500) $(BIN)/pytest -s tests/chaos/test_rounds.py

effects: tools ## each effect in a database once, with members killed and frozen: make effects TRIALS=1000 LEASES=short
	@LANEMQ_EFFECT_TRIALS=$(or $(TRIALS),1000) LANEMQ_EFFECT_LEASES=$(or $(LEASES),default) $(BIN)/pytest -s tests/effects/test_killed.py

soak: tools ## steady load, flat memory: make soak MINUTES=10
	@$(JAVA) LANEMQ_SOAK_SECONDS=$$(( $(or $(MINUTES),10) * 60 )) $(BIN)/pytest -s tests/load/test_soak.py

abuse: tools ## a good client beside clients that hurt the broker, 10,000 idle connections, disks filled, backups: make abuse SECONDS=5
	@LANEMQ_ABUSE_SECONDS=$(or $(SECONDS),5) LANEMQ_IDLE_CONNECTIONS=10000 $(BIN)/pytest -s tests/load/test_abuse.py tests/load/test_disk_cycles.py tests/load/test_backup_cycles.py tests/load/test_connections.py

fuzz: tools ## bad input: half of MINUTES for decoders and log reader, half for a running broker: make fuzz MINUTES=10
	@$(JAVA) LANEMQ_FUZZ_SECONDS=$$(( $(or $(MINUTES),10) * 30 )) $(BIN)/pytest -s tests/fuzz

mirror-proof: tools ## a mirror to Apache RocketMQ and back, killed again and again: make mirror-proof MESSAGES=1000000 KILLS=20
	@$(BIN)/python -m interop.maven
	@LANEMQ_MIRROR_MESSAGES=$(or $(MESSAGES),1000000) LANEMQ_MIRROR_KILLS=$(or $(KILLS),20) $(BIN)/pytest -s interop/mirror --backend apache

interop: tools ## every client against every broker: Java, Go, C++, Node and Rust clients, Apache RocketMQ
	@bash interop/run.sh

interop-cluster: tools ## a real Apache cluster whose processes are killed and frozen under load: make interop-cluster ROUNDS=20
	@LANEMQ_CLUSTER_ROUNDS=$(or $(ROUNDS),3) $(BIN)/python -m pytest -s -q --no-header interop/cluster
	@$(BIN)/python -m pytest -q --no-header interop/spark interop/mirror interop/console --backend cluster

interop-coordinator: tools ## a coordinator beside a real Apache cluster, with members and it itself killed: make interop-coordinator TRIALS=30 ROUNDS=100 BACKEND=apache49
	@LANEMQ_LOSS_TRIALS=$(or $(TRIALS),4) LANEMQ_CHAOS_ROUNDS=$(or $(ROUNDS),12) $(BIN)/python -m pytest -s -q --no-header interop/coordinator --backend $(or $(BACKEND),apache)
	@LANEMQ_PROMISES_BACKEND=coordinator $(BIN)/python -m pytest -q --no-header -n 0 tests/promises

clean: ## remove .venv and everything generated
	rm -rf $(VENV) var dist src/lanemq/console/documents .mypy_cache .ruff_cache .pytest_cache .hypothesis
