"""What the Python tests share, a plug-in that .pytest.ini names: the built programs, and a line for each skip.

A test takes `programs`, `library`, … by naming them as its arguments. --build says which build they are of.
"""

import os
import re
from pathlib import Path

import pytest

from common.tools.find_chapter import is_own, known_chapters

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77  # the exit status by which ctest knows it


os.environ.setdefault("OMP_NUM_THREADS", "1")  # ctest runs a test on each core
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # a compiled model of another build is no test of this


def pytest_addoption(parser):
    parser.addoption("--build", default="build/cpu", metavar="DIRECTORY",
                     help="the build to test, relative to the repository's root (default: %(default)s)")


def pytest_configure(config):
    os.environ["LNC_LIBRARY"] = str((ROOT / config.getoption("--build") / "lib/liblnc.so").resolve())


def built(directory, path, target):
    """The file of a build. Fails the test with the command that brings it."""
    if not (directory / path).exists():
        pytest.fail(f"{directory / path} does not exist; `bash common/setup/build.sh {directory.name} {target}` "
                    "builds it, and `make test` whatever the tests need", pytrace=False)
    return directory / path


class Programs:
    """programs["fwd01"]: the path of a built program. Where the reader has chapters of their own, which may be
    unfinished, programs["chapters"] is one without them."""

    def __init__(self, directory):
        self.directory = directory

    def __getitem__(self, name):
        if name == "chapters" and any(map(is_own, known_chapters())):
            name = "committed_chapters"
        return built(self.directory, f"bin/{name}", name)


@pytest.fixture(scope="session")
def build(pytestconfig):
    return (ROOT / pytestconfig.getoption("--build")).resolve()


@pytest.fixture(scope="session")
def programs(build):
    return Programs(build)


@pytest.fixture(scope="session")
def library(build):
    return built(build, "lib/liblnc.so", "lnc")


@pytest.fixture(scope="session")
def compiler(build):
    """The C++ compiler of the build."""
    cache = built(build, "CMakeCache.txt", "all").read_text(encoding="utf-8")
    return re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)", cache, re.MULTILINE)[1]


def import_torch():
    """PyTorch. Without it, skips the file that asks."""
    return pytest.importorskip("torch", reason="this Python has no PyTorch; `bash common/setup/setup.sh --with-torch` "
                                               "installs one into .venv-torch (5 GB)")


@pytest.fixture(scope="session")
def torch_device(library):
    """Where PyTorch's tensors must be for the library: "cpu" or "cuda"."""
    from layernorm_chapters.library import Library

    backend = Library(library).backend
    if backend == "cuda" and not import_torch().cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return backend


# --- What was skipped, on lines that test.sh collects ---


def only_skips(stats):
    ran = {outcome for outcome, reports in stats.items() if reports} - {"", "deselected", "warnings"}
    return ran == {"skipped"}


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter and only_skips(reporter.stats):
        session.exitstatus = SKIPPED


def pytest_terminal_summary(terminalreporter):
    reasons = {}
    for report in terminalreporter.stats.get("skipped", []):
        why = " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
        reasons.setdefault(why, []).append(report.nodeid.rpartition("::")[2])
    for why, (name, *others) in reasons.items():
        who = "" if only_skips(terminalreporter.stats) else name + f" and {len(others)} more" * bool(others) + ": "
        terminalreporter.write_line(f"skipped: {who}{why}")
