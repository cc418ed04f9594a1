# Thin on purpose: each target says what it does and calls a script that can be run without make.
.PHONY: help demo check test bench lint fuzz docs install package dist
.DEFAULT_GOAL := help
CARGO ?= cargo
PREFIX ?= /usr/local

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build, serve a small file set, put 10 s of load on it, show the loop's blocking record
	@scripts/demo

check: ## a fast loop while you work: texts, formatting, clippy, unit tests, quick suites; needs no privilege
	@scripts/test --quick

test: ## run every test and every check of lint; the last line says how many passed, failed and were skipped
	@scripts/test

bench: ## measure against nginx, lighttpd, h2o and Apache; evidence goes to bench/runs/
	@bench/all

lint: ## the checks alone: scripts/prose (house words, long sentences), rustfmt, clippy, rustdoc, cargo-deny, shellcheck, clang-format
	@scripts/lint

fuzz: ## run each fuzz target for 60 s (HEADWAY_FUZZ_SECONDS)
	@scripts/fuzz

docs: ## build the guide into target/book and the research book into target/research
	@scripts/setup docs
	@PATH="$$PATH:$${CARGO_HOME:-$$HOME/.cargo}/bin" sh -c "mdbook build docs && mdbook build docs/research"

install: ## build a release (or take BUILT=DIR) and install it with man pages and C libraries under DESTDIR, PREFIX (/usr/local); WITH_LAB=1 adds headway-lab
	@scripts/install "$(PREFIX)"

package: ## make a Debian package, an RPM, a container image and a tarball in target/package, with checksums and a bill of materials
	@scripts/package

dist: package ## another name of package
