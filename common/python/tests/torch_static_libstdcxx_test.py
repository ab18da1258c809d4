"""The binding linked with -static-libstdc++, as some toolchains do on their own: every error of the package survives.

A C++ library of its own would have streams, locales and exceptions of its own, which PyTorch must not be handed. So the
binding takes these from the shared libstdc++, which PyTorch has too, whatever the compiler is told.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.tools.pytest_fixtures import import_torch

torch = import_torch()
ROOT = Path(__file__).resolve().parents[3]
STATIC = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL")
# What raises errors: arguments of every wrong kind, chapters, devices, transforms, and what in-place passes refuse.
ERRORS = ("torch_package_test.py", "torch_tensor_kinds_test.py", "torch_api_test.py", "torch_enable_test.py")
NAMES = "Errors or refused or wrong or named or said or directly or views or stays or own_samples or gradients_of_gradients"


def linked_again(build, target, path):
    """Runs the command by which Ninja links a library of the build, with STATIC, for another path."""
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True, check=True)
    link = re.search(rf": && (.* -o )lib/{path.name} (.*?) && :$", commands.stdout, re.MULTILINE)
    assert link, f"Ninja has no command that links {path.name}"
    subprocess.run([*shlex.split(link[1]), path, *shlex.split(link[2]), *STATIC], cwd=build, check=True)


@pytest.fixture(scope="module")
def static_build(build, library, tmp_path_factory):
    """A build's directory, as far as the tests ask for one, whose libraries are linked with STATIC."""
    if not shutil.which("ninja"):
        pytest.skip("the build's libraries are linked again by Ninja, and it is not there")
    static = tmp_path_factory.mktemp("static")
    (static / "lib").mkdir()
    linked_again(build, "lnc", static / "lib" / library.name)
    linked_again(build, "lnc_torch", static / "lib/liblnc_torch.so")
    (static / "CMakeCache.txt").write_text((build / "CMakeCache.txt").read_text(encoding="utf-8"), encoding="utf-8")
    return static


def symbols(path, *options):
    return subprocess.run(["nm", "-DC", *options, path], capture_output=True, text=True, check=True).stdout


def test_streams_and_exceptions_are_the_shared_library_s(static_build):
    binding = static_build / "lib/liblnc_torch.so"
    needed = subprocess.run(["readelf", "-d", binding], capture_output=True, text=True, check=True).stdout
    assert re.search(r"NEEDED.*libstdc\+\+\.so\.6", needed)
    wanted = symbols(binding, "--undefined-only")
    assert "__cxa_throw" in wanted and "std::basic_ostream" in wanted
    own = symbols(binding, "--defined-only")
    assert "__cxa_throw" not in own and "std::locale" not in own and "std::ostream::" not in own


def test_our_messages_hand_no_stream_to_pytorch(static_build):
    """PyTorch's headers have two of their own, in messages about a library's declaration, which ours is not given."""
    wanted = symbols(static_build / "lib/liblnc_torch.so", "--undefined-only")
    streamed = set(re.findall(r"U ((?:c10|at|torch)::operator<<\(.*\))$", wanted, re.MULTILINE))
    assert streamed <= {"c10::operator<<(std::ostream&, c10::DeviceType)", "c10::operator<<(std::ostream&, c10::OperatorName const&)"}


def test_every_error_of_the_package(static_build):
    tests = [str(Path(__file__).with_name(name)) for name in ERRORS]
    run = subprocess.run([sys.executable, "-B", "-m", "pytest", "-q", "--build", static_build, "-k", NAMES, *tests], cwd=ROOT,
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    passed = int(re.search(r"(\d+) passed", run.stdout)[1])
    assert passed > 45, run.stdout[-300:]


LOADING = """
import sys, torch
torch.ops.load_library(sys.argv[1] + "/lib/liblnc_torch.so")
x = torch.randn(3, 8)
for call in (lambda: torch.ops.layernorm_chapters.norm(x, [8], None, None, 1e-5, False),
             *(lambda path=path: torch.ops.layernorm_chapters.load(path) for path in sys.argv[2:])):
    try:
        call()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


def test_errors_of_loading_the_kernels(static_build, compiler, tmp_path):
    (tmp_path / "old.c").write_text("int lnc_abi(void) { return 1; }\n")
    old, empty = tmp_path / "old.so", tmp_path / "empty.so"
    (tmp_path / "empty.c").write_text("int nothing;\n")
    for library in (old, empty):
        subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", library.with_suffix(".c"), "-o", library], check=True)
    run = subprocess.run([sys.executable, "-c", LOADING, static_build, "/nowhere.so", empty, old], capture_output=True, text=True,
                         env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    lines = run.stdout.splitlines()
    assert len(lines) == 4, run.stderr
    for line, words in zip(lines, ("has loaded no library of kernels yet", "/nowhere.so cannot be loaded",
                                   "has no function lnc_abi", "has version 1 of the interface")):
        assert words in line
