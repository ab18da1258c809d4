# The front door. `make help` says what it opens; the work is done in common/setup/ and CMakeLists.txt.

BACKEND      ?= auto
CH           ?=
LIB          ?=
FROM         ?=
FILE         ?=
ARGS         ?=
JSON         ?= notebooks/data/local.jsonl
PYTHON       ?= python3
CLANG_FORMAT ?= .venv/bin/clang-format
DATA         ?=
PARTS        ?=
TESTS        ?=
ARCHS        ?= 75;80;86;89;90;100;120
export PYTHON

setup := bash common/setup
tools := bash common/tools

# Which program (bin/chapters, or that of CH or LIB), which backend, set up what is missing, build.
prepare = program=$$($(PYTHON) -m common.tools.find_chapter '$(CH)' '$(LIB)') && \
          backend=$$($(setup)/backend.sh '$(BACKEND)' $1) && \
          $(setup)/setup.sh $$backend && $(setup)/build.sh $$backend $$program
program = build/$$backend/bin/$$program

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help new check run count race trace test test-all library wheel bench peers profile sanitize tables notebooks notebooks-run notebooks-strip \
        book compile-cuda format format-check lint clean

help:
	@$(tools)/help.sh

new:
	@$(PYTHON) -m common.tools.new_chapter '$(CH)' '$(FROM)'

run:
	@$(prepare) && $(program) $(ARGS)

# What the SIMT machine sees while it runs a kernel: a build of its own, without a GPU.
watch = case '$(BACKEND)' in auto|cpu) ;; *) echo "make $@ watches the SIMT machine, which runs on the CPU: leave out BACKEND=$(BACKEND)" >&2; exit 2;; esac && \
        case '$@ $(CH)$(LIB)' in 'trace ') echo "make trace shows one kernel: make trace CH=fwd02" >&2; exit 2;; esac && \
        program=$$($(PYTHON) -m common.tools.find_chapter '$(CH)' '$(LIB)') && $(setup)/setup.sh cpu && \
        $(setup)/build.sh cpu-watch $$program && \
        $(PYTHON) -m common.watch.$@ build/cpu-watch/bin/$$program $(ARGS)

# Of a .cu file from elsewhere, with its own main.
watch_file = $(setup)/setup.sh cpu && $(setup)/build.sh cpu-watch foreign_watch && \
             $(PYTHON) -m common.tools.check_file --$@ '$(FILE)' $(ARGS)

trace:
	@$(if $(FILE),$(watch_file),$(watch))

count:
	@$(if $(FILE),$(watch_file),$(watch))

race:
	@$(if $(FILE),$(watch_file),$(race))

race = program=$$($(PYTHON) -m common.tools.find_chapter '$(CH)' '$(LIB)') && \
       $(PYTHON) -m common.watch.race $$program --backend '$(BACKEND)' $(ARGS)

# A .cu file from elsewhere, with its own main; the sanitizers watch it.
check:
	@case '$(FILE)' in '') echo 'make check FILE=other.cu runs a .cu file with its own main' >&2; exit 2;; esac && \
	$(setup)/setup.sh cpu && $(setup)/build.sh cpu-asan foreign && $(PYTHON) -m common.tools.check_file '$(FILE)' $(ARGS)

bench:
	@$(prepare) && $(program) --set progression,sweep,large,wide,narrow,odd,fused,residual,parts,frozen,groups --json '$(JSON)' $(ARGS)

profile:
	@$(PYTHON) -m common.bench.profile_chapter --ready && \
	$(prepare) && $(PYTHON) -m common.bench.profile_chapter $(program) -- $(ARGS)

sanitize:
	@$(prepare) && $(tools)/sanitize.sh $$backend $$program $(ARGS)

library:
	@backend=$$($(setup)/backend.sh '$(BACKEND)') && $(setup)/setup.sh $$backend && \
	$(setup)/build.sh $$backend lnc && echo "$(CURDIR)/build/$$backend/lib/liblnc.so"

# Kernels for the GPU that is here, or ARCHITECTURES="80;90"; their binding for this Python's PyTorch.
wheel:
	@$(PYTHON) -m pip wheel --no-deps --wheel-dir build/wheels \
	  $(if $(ARCHITECTURES),-C cmake.define.CMAKE_CUDA_ARCHITECTURES='$(ARCHITECTURES)') . && ls build/wheels/*.whl

peers: JSON = notebooks/data/local_peers.jsonl
peers:
	@$(PYTHON) -m common.bench.compare_peers --ready $(ARGS) && $(setup)/setup.sh cuda && \
	$(setup)/build.sh cuda lnc && $(setup)/build.sh cuda lnc_clock && \
	$(PYTHON) -m common.bench.compare_peers --json '$(JSON)' $(ARGS)

# All quick tests; with CH=… or LIB=… those of one kernel, which need no Python. TESTS are options of ctest.
test:
	@kernel=$$($(PYTHON) -m common.tools.find_chapter '$(CH)' '$(LIB)') && \
	backends=$$($(setup)/backend.sh '$(BACKEND)' test) && $(setup)/setup.sh $$backends && \
	if [ $$kernel = chapters ]; then \
	  target=all; tests='--label-exclude complete'; \
	  $(setup)/setup.sh --with-tests || echo "test: without them the Python tests are skipped" >&2; \
	elif [ $$kernel = library_kernels ]; then \
	  target=library_kernel_tests; tests='--tests-regex ^lib_ --label-exclude complete'; \
	else \
	  target=$${kernel}_test; tests="--tests-regex ^$$kernel$$"; \
	fi && \
	for backend in $$backends; do $(setup)/build.sh $$backend $$target && $(tools)/test.sh $$backend $$tests $(TESTS) || exit; done

test-all:
	@backends=$$($(setup)/backend.sh '$(BACKEND)' test) && $(setup)/setup.sh $$backends && \
	$(tools)/test_all.sh "$$backends" '$(PARTS)' $(TESTS)

tables:
	@backend=$$($(setup)/backend.sh cpu) && $(setup)/setup.sh $$backend && \
	for program in chapters library_kernels; do \
	  $(setup)/build.sh $$backend $$program && build/$$backend/bin/$$program --list --json >build/list_of_$$program.json || exit; \
	done && \
	$(PYTHON) -m common.tools.committed_list build/list_of_chapters.json build/list_of_library_kernels.json >build/chapters.json && \
	cmp -s build/chapters.json notebooks/data/chapters.json || cp build/chapters.json notebooks/data/chapters.json
	@$(setup)/python.sh -m common.results.tables
	@$(setup)/python.sh -m common.campaign.target_tables

notebooks:
	@LNC_DATA='$(DATA)' $(setup)/python.sh --with-notebooks -m common.tools.run_notebooks --open $(ARGS)

notebooks-run:
	@LNC_DATA='$(DATA)' $(setup)/python.sh --with-notebooks -m common.tools.run_notebooks $(ARGS)

# The hook fails where it has changed a notebook, and not the second time.
strip = .venv/bin/pre-commit run nbstripout --all-files
notebooks-strip:
	@$(setup)/setup.sh --with-lint && { $(strip) >/dev/null || $(strip); }

book:
	@$(setup)/setup.sh cpu && LNC_DATA='$(DATA)' $(setup)/python.sh --with-book -m common.book.make_book $(ARGS)

compile-cuda:
	@$(setup)/setup.sh cuda && $(setup)/build.sh cuda-all all '-DCMAKE_CUDA_ARCHITECTURES=$(ARCHS)' && \
	$(PYTHON) -m common.tools.spills build/cuda-all

format: mode = -i
format-check: mode = --dry-run --Werror
format format-check:
	@$(setup)/setup.sh --with-format && find chapters common reference_cpu -path 'chapters/my*' -prune -o \
	  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -print0 | xargs -0 $(CLANG_FORMAT) --style=file $(mode)

lint:
	@$(setup)/setup.sh --with-lint && .venv/bin/pre-commit run --show-diff-on-failure $(or $(ARGS),--all-files)

clean:
	rm -rf build
