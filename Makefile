# Thin names for scripts/*, which install what they need into .venv. PYTHON=... chooses the interpreter.

PROMPT =
ARGS =
export PROMPT

.PHONY: help run test test-slow test-amx test-sanitized test-aarch64 check format native wheel bench-step clean
.NOTPARALLEL:

help:  ## list these targets
	@echo 'Usage: make TARGET [PYTHON=/path/to/python] [ARGS="flags passed on"]'
	@sed -n 's/^\([a-z0-9-]*\):  ## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
		printf '  %-14s %s\n' "$$name" "$$what"; done

run:  ## let the default model answer; PROMPT="..." asks something else
	@scripts/run "$$PROMPT" $(ARGS)

test:  ## the tests that every change must pass
	@scripts/test $(ARGS)

test-slow:  ## the exhaustive variants
	@scripts/test -m slow $(ARGS)

test-amx:  ## the level amx with its instructions emulated, where the processor has AVX-512 only
	@scripts/test-amx $(ARGS)

test-sanitized:  ## the native operators' tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/test-sanitized $(ARGS)

test-aarch64:  ## the operators' tests on an emulated 64-bit ARM processor
	@scripts/test-aarch64 $(ARGS)

check:  ## lint, formatting, types, import rules
	@scripts/check

format:  ## format everything in place
	@scripts/format

native:  ## compile what has changed in native/, for use in place
	@scripts/setup

wheel:  ## a wheel to give away, and the source distribution, in dist/
	@scripts/wheel

bench-step:  ## what a step costs besides the model
	@scripts/setup
	@.venv/bin/python benchmarks/step_overhead.py $(ARGS)

clean:  ## remove caches and build outputs; .venv stays
	@rm -rf build dist src/pelton/ops/cpu/lib .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -path ./.venv -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +
