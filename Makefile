# `make` lists what there is to make. `make test` and `make demo` set up all they need on a fresh Debian 12 or 13.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/solo5-systemd
DEPENDENCIES := sed -n '/^dependencies = /,/^]/p; /^check = /,/^]/p' pyproject.toml
VENV := $(CACHE)/venv-$(shell { $(DEPENDENCIES); cat /etc/debian_version; } 2>/dev/null | sha256sum | head -c 16)
BOOT := tests/machine/boot
BACKEND ?= container
PROTOS := $(wildcard src/solo5_systemd/*/proto/*.proto)
MESSAGES := $(PROTOS:.proto=_pb2.py)
REPORTS := build/reports
TIERS := nomad vm container contract short bookworm beside bare-bookworm bare-trixie cluster  # long ones first; vm beside the one that mostly waits
export PYTHONDONTWRITEBYTECODE := 1
export PYTHONPATH := $(CURDIR)/src

# $(call pytest_in_machine,TIER,OPTIONS OF boot,ARGUMENTS OF pytest); the report of each tier is kept in $(REPORTS).
pytest_in_machine = $(BOOT) $(2) --copy-out /tmp/report.json:$(REPORTS)/$(1).json -- \
    /srv/tests/run-pytest /tmp/report.json $(3)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: test
test: setup ## every check there is, several tiers at once
	rm -rf $(REPORTS)
	python3 -m tests.tiers $(TIERS)
	tests/check-ran $(REPORTS)/bare-bookworm/collected.json $(REPORTS)  # no test that ran nowhere

.PHONY: demo
demo: setup ## show the main job in throw-away machines
	tests/demo --backend $(BACKEND)

.PHONY: lint
lint: proto ## style, types, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

TESTS ?= tests/fast
.PHONY: fast
fast: proto ## tests that need no machine: a minute or two; TESTS=tests/fast/cli for some of them, WITHOUT=MARK
	PATH="$(VENV)/bin:$$PATH" tests/run-pytest $(REPORTS)/fast.json --timeout=60 $(if $(WITHOUT),-m 'not $(WITHOUT)') $(TESTS)

.PHONY: covered
covered: proto ## the fast tests, and that they execute every line of the pure files; half as long again before Python 3.12
	COVERAGE=build/coverage PATH="$(VENV)/bin:$$PATH" tests/run-pytest $(REPORTS)/fast.json --timeout=60 tests/fast
	PATH="$(VENV)/bin:$$PATH" tests/pure-coverage build/coverage

DURATION ?= 3600
IMAGES ?= 10000
EXAMPLES ?= 1000
.PHONY: fuzz
fuzz: proto ## hostile images and property tests for DURATION=3600 seconds, with new seeds; SEED= for the same again
	PATH="$(VENV)/bin:$$PATH" python3 -m tests.hostile --duration $(DURATION) --images $(IMAGES) \
	    --examples $(EXAMPLES) $(if $(SEED),--seed $(SEED))

.PHONY: collected
collected: proto # the names of all tests there are, for check-ran
	PATH="$(VENV)/bin:$$PATH" tests/run-pytest $(REPORTS)/collected.json --collect-only --quiet --quiet tests

.PHONY: tables
tables: proto ## the tables of settings in the manuals and in units/solo5.toml, from src/
	$(VENV)/bin/python3 -m tests.tables

.PHONY: proto
proto: $(MESSAGES) ## the protobuf messages, beside their .proto files

$(MESSAGES) &: $(PROTOS) setup.py $(VENV)/ready
	$(VENV)/bin/python3 -W ignore setup.py --quiet proto  # setuptools 77 warns of what 66 needs in pyproject.toml

.PHONY: pip
pip: $(VENV)/ready ## that `pip install .` gives a working solo5ctl
	tests/pip-install $(VENV)/bin/python3

.PHONY: bare
bare: bare-bookworm bare-trixie ## lint, fast and pip where nothing is installed but by `make setup`: Debian 12 and 13

# lint reads sources, and mypy with the types of its Python's library: once, with the oldest Python that will do. The
# values that properties are tried with are the same for each Python.
.PHONY: bare-bookworm bare-trixie
bare-bookworm: IN_BARE := lint fast WITHOUT=hypothesis pip collected
bare-trixie: IN_BARE := help clean covered pip
bare-bookworm bare-trixie: bare-%: setup
	tests/machine/bare --release $* --copy-out $(REPORTS):$(REPORTS)/$@ -- make $(IN_BARE)

.PHONY: container
container: setup ## tests on a machine at native speed: all but Nomad, and the limits of cgroup v2
	$(call pytest_in_machine,$@,--backend container --packages xfsprogs,--timeout=300 -m 'not vm' \
	    --ignore=/srv/tests/machine/nomad --ignore=/srv/tests/machine/beside /srv/tests/machine)

.PHONY: beside
beside: setup ## the same beside Docker, podman, firewalld, ufw, libvirt, NetworkManager and systemd-networkd
	$(call pytest_in_machine,$@,--backend container --with beside,--timeout=300 /srv/tests/machine/beside)

.PHONY: contract
contract: setup ## one service with one real peer: a bus, a network namespace, a tender
	$(call pytest_in_machine,$@,--backend container,--timeout=300 $(addprefix /srv/tests/, guests contract \
	    fast/goplugin/test_plugin.py))  # the last with Debian's gRPC, which is an older one
	$(BOOT) --backend container --copy-out /tmp/report.json:$(REPORTS)/$@-dbus-next.json -- \
	    env PYTHONPATH=/srv/tests/support/without_dbus_fast /srv/tests/run-pytest /tmp/report.json --timeout=300 \
	    /srv/tests/contract/bus  # the library that is used where dbus-fast is not installed

.PHONY: nomad
nomad: setup ## the same under a Nomad agent; NOMAD=FILE: under this one
	$(call pytest_in_machine,$@,--backend container --with nomad --packages xfsprogs,--timeout=300 -m 'not vm' \
	    /srv/tests/machine/nomad)

CLUSTER := server,client1,client2,client3
.PHONY: cluster
cluster: setup ## several machines: a Nomad server and three clients
	$(call pytest_in_machine,$@,--backend container --with nomad --machines $(CLUSTER), \
	    --timeout=400 -rP /srv/tests/cluster)

REBOOTS ?= 10
DECLARED ?= 50
DORMANT ?= 1000
IN_VM ?= $(DECLARED)
.PHONY: reboots
reboots: setup ## reboots of a vm with declared tasks; of a container, beside as many bare units; REBOOTS=10, DECLARED=50, DORMANT=1000, IN_VM=50 or 0
	$(if $(filter-out 0,$(IN_VM)),$(BOOT) --reboot --packages xfsprogs --timeout 7200 -- env PYTHONPATH=/srv \
	    python3 -m tests.machine.reboots --reboots $(REBOOTS) --tasks $(IN_VM))
	$(BOOT) --backend container --machines server,client1 --timeout 7200 -- env PYTHONPATH=/srv \
	    python3 -m tests.cluster.reboots --reboots $(REBOOTS) --tasks $(DECLARED) --dormant $(DORMANT)

OPERATIONS ?= 1000
.PHONY: chaos
chaos: setup ## random operations against a model: OPERATIONS=1000, and SEED= for the same ones again
	$(BOOT) --backend container --with nomad --packages xfsprogs -- env PYTHONPATH=/srv \
	    python3 -m tests.machine.chaos --operations $(OPERATIONS) $(if $(SEED),--seed $(SEED))

UPDATES ?= 50
RATE ?= 2000
.PHONY: updates
updates: setup ## updates and rollbacks under load, and as many restarts: failed requests; UPDATES=50 of each, RATE=2000 a second
	$(BOOT) --backend container -- env UPDATES=$(UPDATES) RATE=$(RATE) python3 -m pytest -rP --timeout=7200 \
	    -k test_no_request_fails /srv/tests/machine/test_updates.py

RACES ?= 10000
.PHONY: races
races: setup ## packets in the moment in which a task falls asleep, each of which is answered at once: RACES=10000
	$(BOOT) --backend container -- env RACES=$(RACES) python3 -m pytest --timeout=3600 -k moment_of_falling_asleep \
	    /srv/tests/contract/test_network_sleep.py

SNAPSHOTS ?= 1000
.PHONY: snapshots
snapshots: setup ## snapshots of a guest that writes: each is of one instant, and how long the pauses are; SNAPSHOTS=1000
	$(BOOT) --backend container --packages xfsprogs -- env SNAPSHOTS=$(SNAPSHOTS) python3 -m pytest -rP \
	    -m vm --timeout=3600 /srv/tests/machine/test_snapshots.py

MANY ?= 1050
.PHONY: many
many: setup ## so many guests of one network, each of which answers: MANY=1050
	$(BOOT) --backend container -- env MANY=$(MANY) python3 -m pytest -rP --timeout=7200 \
	    /srv/tests/machine/test_many_guests.py

attack_in = env PYTHONPATH=/srv FLOOD_S=10 python3 -m tests.attacks $1 --only '$(ONLY)'

.PHONY: attack
attack: proto ## the attacks of docs/security-tests.md, a line for each; ONLY=TEXT of the row, VM=1 for those of a vm, too
	PATH="$(VENV)/bin:$$PATH" python3 -m tests.attacks host --only '$(ONLY)'
	$(BOOT) --backend container --with nomad --packages xfsprogs -- $(call attack_in,container)
	$(if $(VM),$(BOOT) --with nomad --packages xfsprogs -- $(call attack_in,vm))

# Tests of its files that depend on none of those.
NEW_ENOUGH := one_that_changes_the_sandbox or lines_of_any_bytes or user_without_permission or looks_empty or \
    waits_for_a_line or no_other_task_has_the_address
.PHONY: bookworm
bookworm: setup ## on Debian 12, with the oldest systemd and libraries that will do: what depends on those
	$(call pytest_in_machine,$@,--release bookworm --backend container --packages xfsprogs,--timeout=300 -m 'not vm' \
	    -k 'not ($(NEW_ENOUGH))' /srv/tests/contract/bus $(addprefix /srv/tests/machine/test_,run.py outcome.py \
	        confinement.py journal_storage.py declared_format.py declared_conflicts.py \
	        $(addprefix declared.py::test_, a_file_is_a_unit_that_is_enabled_started_and_shown \
	            what_systemctl_edit_mask_and_disable_do the_sandbox_is_that_of_every_task \
	            a_started_again_task_has_the_same_addresses a_wrong_argument_is_not_tried_again \
	            a_restart_that_cannot_help_is_withheld_and_a_manual_start_is_not \
	            a_refused_file_is_a_unit_that_shows_why \
	            the_name_of_another_unit_is_refused_also_of_one_that_another_generator_makes \
	            a_disk_has_one_writer_whoever_starts_it files_and_private_copies_come_anew_with_each_start \
	            a_stopped_task_has_not_failed a_removed_file_stops_nothing_and_leaves_nothing \
	            a_task_whose_file_is_gone_is_not_started_again_by_restart \
	            what_clears_up_after_a_task_may_be_killed_once a_killed_preparation_leaves_nothing_and_the_next_succeeds \
	            a_task_that_was_not_started_has_no_outcome_and_one_whose_preparation_failed_names_it) \
	        activation.py::test_nothing_runs_and_the_first_request_starts_it \
	        activation.py::test_a_stop_takes_it_out_of_waiting_and_a_start_starts_it_now \
	        ipv6.py::test_a_guest_has_both_addresses_and_its_port_answers_at_both \
	        relay.py::test_last_line_is_delivered_when_drain_returns relay.py::test_relay_runs_only_while_it_is_needed \
	        storage.py::test_a_disk_is_created_by_the_first_start_of_a_task \
	        storage.py::test_each_task_has_its_own_copy_and_writes_of_it_vanish \
	        archives.py::test_the_guest_reads_the_files_and_its_writes_change_none \
	        archives.py::test_a_secret_is_nowhere_but_in_the_guests_disk \
	        archives.py::test_an_encrypted_credential_is_decrypted_in_memory \
	        templates.py::test_one_file_has_three_instances_that_are_tasks_like_others \
	        templates.py::test_systemctl_reload_updates_each_instance_to_the_changed_file \
	        network.py::test_published_ports_answer_from_outside_from_here_and_by_loopback \
	        network.py::test_guest_reaches_the_outside_by_the_machines_address \
	        block.py::test_a_task_that_is_started_without_its_locks_does_not_run))

.PHONY: vm
vm: setup ## tests on a virtual machine with a kernel of its own; LONG=1: also those that take a minute or more
	$(call pytest_in_machine,$@,--backend vm $(if $(LONG),--with nomad )--packages xfsprogs,--timeout=900 -m '(vm or everywhere)$(if $(LONG),, and not long)' /srv/tests/machine)

ROUNDS ?= 20
TASKS ?= 1 100 500
.PHONY: bench
bench: build/floor ## figures beside their floor, and plots, in build/; TASKS="1 2000", ROUNDS=10, ONLY="disks paths", SHORT=1
	$(BOOT) --backend container --with nomad --packages xfsprogs --copy build/floor:/usr/local/bin/floor \
	    --copy-out /tmp/bench.json:build/bench.json -- env PYTHONPATH=/srv BENCH_SHORT=$(SHORT) \
	    python3 -m tests.bench.bench --rounds $(ROUNDS) --tasks $(TASKS) --json /tmp/bench.json \
	    $(if $(ONLY),--only $(ONLY))
	$(MAKE) plots

PLOTS ?= build/plots
.PHONY: plots
plots: setup ## draw build/bench.json as SVG in build/plots; PLOTS=docs/plots
	rm -rf $(PLOTS)
	$(BOOT) --backend container --bare --packages python3-matplotlib --copy build/bench.json:/tmp/bench.json \
	    --copy-out /tmp/plots:$(PLOTS) -- env PYTHONPATH=/srv python3 -m tests.bench.plots /tmp/bench.json /tmp/plots

build/floor: tests/bench/floor.c | setup
	mkdir -p build
	gcc -std=gnu17 -D_GNU_SOURCE -O2 -g0 -Wall -Wextra -Wshadow -Werror -pthread -o $@ $< -lsystemd

.PHONY: deb
deb: setup ## the Debian package, in dist/
	packaging/build-deb dist

# Each target that no tier is, or has: tests/fast/test_tiers.py compares.
.PHONY: short
short: setup ## every other target in its shortest form: it starts, measures or tests something, and ends
	$(MAKE) demo deb tables
	$(MAKE) fuzz DURATION=0 IMAGES=100 EXAMPLES=5
	$(MAKE) chaos OPERATIONS=5
	$(MAKE) updates UPDATES=1 RATE=300
	$(MAKE) snapshots SNAPSHOTS=10
	$(MAKE) bench SHORT=1 ROUNDS=4 TASKS=1
	$(MAKE) reboots REBOOTS=1 DECLARED=10 DORMANT=10 IN_VM=0
	$(MAKE) attack ONLY='MAC address of solo5-networkd'
	$(MAKE) many MANY=10
	$(MAKE) races RACES=10

.PHONY: setup
setup: ## what this machine needs to build and boot another
	tests/machine/setup

$(VENV)/ready: | setup
	mkdir -p $(CACHE)
	find $(CACHE) -maxdepth 1 -name 'venv-*' -mtime +7 -exec rm -rf {} +  # other checkouts have some of their own
	python3 -m venv $(VENV)
	python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*p["dependencies"], *p["optional-dependencies"]["check"], sep="\n")' >$(VENV)/requirements.txt
	$(VENV)/bin/python3 -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/requirements.txt
	touch $@

.PHONY: clean
clean: ## what was built here (caches stay: see HACKING.md)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
