# The front door: `make demo` shows the main job, `make test` passes the tests. Each target sets up what it needs.

CARGO      ?= cargo
E2E         = $(CARGO) run --quiet --package quorate-e2e --
TOOLS      := $(CURDIR)/.cache/cargo-tools
DENY        = $(TOOLS)/bin/cargo-deny
FUZZ        = $(TOOLS)/bin/cargo-fuzz
FUZZED      = $(basename $(notdir $(wildcard backup/fuzz/fuzz_targets/*.rs)))
FUZZ_SECONDS ?= 60
# Scenes at a time: each waits most of its time, and beside them two cores have to run three nodes.
JOBS       ?= 4
# Tests at a time: many wait for an etcd or a store of theirs, and leave the processor to others.
THREADS    ?= $(shell echo $$((2 * $$(nproc))))

# Debian packages that the build needs: a program or a file, and the package that has it. protoc finds the protobuf
# messages that etcd's import only with libprotobuf-dev, which its own package merely recommends.
NEEDED      = cc:gcc protoc:protobuf-compiler pkg-config:pkg-config setsid:util-linux \
              /usr/include/google/protobuf/descriptor.proto:libprotobuf-dev

# What needs the processor runs beside what waits, as two jobs of one make.
BESIDE      = $(MAKE) --no-print-directory --jobs=2
# At the lowest priority in a session of its own: Linux shares the processor out among sessions first (sched(7), autogroup).
LOW         = setsid sh -c '{ echo 19 > /proc/self/autogroup; } 2> /dev/null; exec nice -n 19 "$$0" "$$@"'

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit built crates model scenes e2e thorough every bench fuzz lint images crds deploy up down status clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what the build needs, or say what to install
	@missing=""; \
	for pair in $(NEEDED); do need="$${pair%%:*}"; [ -e "$$need" ] || command -v "$$need" > /dev/null || missing="$$missing $${pair#*:}"; done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing; \
	  else echo "missing, install first: apt-get install$$missing" >&2; exit 1; fi; \
	fi
	@command -v $(CARGO) > /dev/null || { echo "missing: Rust 1.95 or later (https://rustup.rs)" >&2; exit 1; }

demo: setup ## Show the main job on a real three-node Kubernetes, step by step
	$(E2E) demo

unit: built ## Unit, property and model tests, against etcd's own programs and servers of stores where they speak of those
	@$(BESIDE) crates model

test: built ## Unit, property and model tests, then a choice of scenes on a real Kubernetes
	@$(BESIDE) model scenes

# What the next three find built: two that build at a time would only wait for each other.
built: setup
	$(E2E) tools
	$(CARGO) test --quiet --workspace --no-run

# No backtraces: those of asynchronous tests are screens of the runtime's own frames, before what a failed test has to say.
crates:
	RUST_BACKTRACE=0 QUORATE_REAL_ETCD=required QUORATE_ETCD_BIN="$$(ls -d $(CURDIR)/.cache/tools/etcd-3.*/bin | paste -sd:)" \
	  QUORATE_REAL_STORES=required QUORATE_VERSITYGW="$$(ls $(CURDIR)/.cache/tools/versitygw-*/bin/versitygw)" \
	  QUORATE_AZURITE="$$(ls $(CURDIR)/.cache/tools/azurite-*/bin/azurite-blob)" \
	  QUORATE_BBOLT="$$(ls $(CURDIR)/.cache/tools/bbolt-*/bin/bbolt)" \
	  QUORATE_AGE="$$(ls $(CURDIR)/.cache/tools/age-*/bin/age)" \
	  RUST_TEST_THREADS=$(THREADS) $(CARGO) test --workspace --exclude quorate-statemachine

# It only computes, while the others wait for etcd and Kubernetes most of their time: it takes what they leave. What it
# found comes in one piece: a line for each world, and everything if a test failed.
FOUND       = ' states, depth |is caught after|^test result'
model: MODEL = --package quorate-statemachine -- --show-output
thorough: export QUORATE_MODEL = thorough
thorough: MODEL = --package quorate-statemachine --test model -- --include-ignored --show-output
model thorough:
	@echo "the model runs beside what follows, into .cache/$@.log"
	@trap 'kill -- -$$!' HUP INT TERM; $(LOW) $(CARGO) test $(MODEL) > .cache/$@.log 2>&1 & wait $$!; \
	  result=$$?; if [ $$result = 0 ]; then grep -E $(FOUND) .cache/$@.log; else cat .cache/$@.log; fi; exit $$result

scenes: crates
	$(E2E) test --jobs $(JOBS); result=$$?; $(E2E) down; exit $$result

e2e: $(if $(FILTER),setup,built) ## Every scene, every loop to its end, the model with more faults; FILTER=... for some scenes, ETCD=3.5.35 on that etcd
	@$(if $(FILTER),$(MAKE) --no-print-directory every,$(BESIDE) thorough every)

every:
	$(if $(FILTER),,$(CARGO) test --workspace --test up -- --nocapture)
	$(E2E) test --all --jobs $(JOBS) $(if $(ETCD),--etcd $(ETCD)) $(FILTER); result=$$?; $(E2E) down; exit $$result

bench: setup ## Measure how fast it is, as ratios to the same by hand; ROWS=... for some
	$(E2E) bench $(if $(ROWS),--only $(ROWS)); result=$$?; $(E2E) down; exit $$result
	$(if $(ROWS),,$(E2E) bench-backup)

fuzz: setup $(FUZZ) ## Fuzz each of the agent's parsers, FUZZ_SECONDS=60 each; what breaks one stays in .cache/fuzz
	@command -v c++ > /dev/null || { echo "missing, install first: apt-get install g++" >&2; exit 1; }
	cd backup && for target in $(FUZZED); do \
	  found=$(CURDIR)/.cache/fuzz/$$target; mkdir -p $$found/corpus; \
	  $(FUZZ) fuzz run --sanitizer none $$target $$found/corpus tests/fixtures tests/fixtures/databases -- \
	    -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$$found/ -verbosity=0 -print_final_stats=1 || exit 1; \
	done

lint: setup $(DENY) ## Formatting, clippy, generated files, dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --workspace --test cluster --test up -- -D warnings
	$(CARGO) clippy --manifest-path backup/fuzz/Cargo.toml --no-default-features --locked --target-dir target -- -D warnings
	$(CARGO) test --quiet --workspace --test generated
	@if $(DENY) fetch db > /dev/null 2>&1; then $(DENY) check; else \
	  echo "the advisory database can't be fetched: checking bans, licences and sources only"; \
	  $(DENY) check bans licenses sources; fi

$(DENY):
	$(CARGO) install --quiet --locked --root $(TOOLS) cargo-deny

$(FUZZ):
	$(CARGO) install --quiet --locked --root $(TOOLS) cargo-fuzz

images: setup ## Build the images and load them into the running cluster
	$(E2E) images

crds: setup ## Generate the CustomResourceDefinition and the API reference
	$(CARGO) run --quiet --package quorate-crds --bin crdgen

up: setup ## Bring up a real three-node Kubernetes
	$(E2E) up

deploy: up ## Build the operator and install it there
	$(E2E) deploy

status: ## Show what runs
	$(E2E) status

down: ## Take the cluster down; built tools and images stay
	$(E2E) down

clean: down ## Remove everything that was built
	rm -rf .cache target
