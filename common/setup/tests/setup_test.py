"""Tests of the front door: which backend, what is there. They install nothing."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from packaging.requirements import Requirement

from common.setup import has_group

SETUP = Path(__file__).resolve().parents[1]
ROOT = SETUP.parents[1]


class WithTools(unittest.TestCase):
    """A directory of pretended programs, before everything else in PATH."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def tool(self, name, output="", status=0):
        path = self.directory / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {status}\n")
        path.chmod(0o755)

    def bash(self, *command, **environment):
        return subprocess.run(
            ["bash", *command],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{self.directory}:{os.environ['PATH']}", **environment},
            capture_output=True,
            text=True,
        )

    def backend(self, *arguments):
        result = self.bash(str(SETUP / "backend.sh"), *arguments)
        return result.returncode, result.stdout.strip(), result.stderr.strip()


def least_nvcc():
    return re.search(r"^least_nvcc=(.*)", (SETUP / "cuda.sh").read_text(encoding="utf-8"), re.MULTILINE)[1]


class Backend(WithTools):
    GPU = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"
    NVCC = "Cuda compilation tools, release 13.0, V13.0.88"

    def test_cpu_where_asked(self):
        self.assertEqual(self.backend("cpu"), (0, "cpu", "backend: cpu (BACKEND=cpu)"))

    def test_refuses_an_unknown_one(self):
        status, chosen, reason = self.backend("foo")
        self.assertEqual((status, chosen), (2, ""))
        self.assertIn("BACKEND=foo is not a backend", reason)

    def test_cuda_where_gpu_and_nvcc_are(self):
        self.tool("nvidia-smi", self.GPU)
        self.tool("nvcc", self.NVCC)
        expected = (0, "cuda", "backend: cuda (NVIDIA H100 80GB HBM3)")
        for arguments in (["auto"], ["cuda"], ["cuda", "test"], ["auto", "sanitize"]):
            self.assertEqual(self.backend(*arguments), expected)
        self.assertEqual(self.backend("auto", "test")[1], "cpu cuda")
        self.assertEqual(self.backend("cpu", "test")[1], "cpu")

    def test_an_old_nvcc_is_none(self):
        self.tool("nvidia-smi", self.GPU)
        for release in ("11.8", "12.0", "12.7"):
            self.tool("nvcc", f"Cuda compilation tools, release {release}, V{release}.89")
            self.assertEqual(self.backend("auto")[:2], (0, "cpu"))
            self.assertEqual(self.backend("cuda")[:2], (2, ""))

    def test_the_least_nvcc_and_later_ones_will_do(self):
        self.tool("nvidia-smi", self.GPU)
        for release in (least_nvcc(), "12.10", "13.0", "20.1"):
            self.tool("nvcc", f"Cuda compilation tools, release {release}, V{release}.89")
            self.assertEqual(self.backend("cuda")[:2], (0, "cuda"), release)

    def test_everyone_names_the_same_least_nvcc(self):
        self.tool("nvidia-smi", self.GPU)
        self.tool("nvcc", "Cuda compilation tools, release 12.0, V12.0.140")
        missing = f"no nvcc {least_nvcc()} or newer in PATH, CUDA_HOME or /usr/local/cuda"
        for arguments in ("auto", "cuda"):
            self.assertIn(missing, self.backend(arguments)[2])
        set_up = self.bash(str(SETUP / "setup.sh"), "cuda")
        self.assertEqual(set_up.returncode, 2)
        self.assertIn(missing, set_up.stderr)
        for path in (SETUP / "README.md", *SETUP.glob("*.sh"), *(ROOT / "common/tools").glob("*.sh")):
            for asked in re.findall(r"(?:nvcc|CUDA Toolkit) (\d+\.\d+)", path.read_text(encoding="utf-8")):
                self.assertEqual(asked, least_nvcc(), path)

    @unittest.skipIf(os.path.exists("/dev/nvidia0"), "this machine has a GPU")
    def test_no_gpu(self):
        self.tool("nvidia-smi", "No devices were found")
        self.assertEqual(self.backend("auto"), (0, "cpu", "backend: cpu (no NVIDIA GPU found)"))
        for arguments in (["cuda"], ["cuda", "test"]):
            self.assertEqual(self.backend(*arguments)[:2], (2, ""))


class Find(WithTools):
    def find(self, call, **environment):
        return self.bash("-c", f". common/setup/find.sh && {call}", **environment).returncode == 0

    def test_prefixes_split_at_colon_and_semicolon(self):
        for file in ("include/some_library/header.h", "lib/some-machine/libsome.a"):
            (self.directory / file).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / file).touch()
        for path in ("{0}", "/nowhere:{0}", "/nowhere;{0}", "{0}:"):
            path = path.format(self.directory)
            self.assertTrue(self.find("find_header some_library/header.h", CMAKE_PREFIX_PATH=path))
            self.assertTrue(self.find("find_library some", CMAKE_PREFIX_PATH=path))
        self.assertFalse(self.find("find_header some_library/header.h", CMAKE_PREFIX_PATH=""))
        self.assertFalse(self.find("find_library some", CMAKE_PREFIX_PATH="/nowhere"))

    def test_set_up_says_what_to_run_where_it_may_not_install(self):
        # A user without root, on a Debian machine that has only a compiler that is too old.
        self.tool("g++", "9.4.0")
        self.tool("id", "1000")
        self.tool("sudo", status=1)
        self.tool("apt-get")
        result = self.bash(str(SETUP / "setup.sh"), "cpu", CXX="")
        self.assertEqual(result.returncode, 2)
        self.assertIn("missing: g++ 11 or newer", result.stderr)
        self.assertIn("sudo apt-get install -y g++", result.stderr)

    def test_a_python_has_a_group_if_it_has_each_package_of_it_and_of_those_it_includes(self):
        (self.directory / "common/setup").mkdir(parents=True)
        shutil.copy(SETUP / "has_group.py", self.directory / "common/setup")
        (self.directory / "pyproject.toml").write_text("""[dependency-groups]
            nothing = []
            here = ["pytest>=1"]
            newer = [{include-group = "here"}, "pytest>=1000"]
            absent = [{include-group = "here"}, "no-such-module-anywhere"]
            includes = [{include-group = "absent"}, "pytest"]""")
        script = f". {SETUP}/find.sh && cd {self.directory} && has_group"
        for group, has in {"nothing": 1, "here": 1, "newer": 0, "absent": 0, "includes": 0, "unknown": 0}.items():
            self.assertEqual(self.bash("-c", f"{script} {sys.executable} {group}").returncode == 0, has, group)
        self.tool("python3", status=1)
        self.assertNotEqual(self.bash("-c", f"{script} python3 nothing").returncode, 0)


class SaidTwice(unittest.TestCase):
    """What two files must say alike."""

    def read(self, path):
        return (ROOT / path).read_text(encoding="utf-8")

    def test_the_container_has_the_packages_that_set_up_would_install(self):
        asked = set(re.findall(r"lacks ([a-z0-9+-]+) ", self.read("common/setup/setup.sh")))
        installed = re.search(r"apt-get install.*?rm -rf", self.read(".devcontainer/Dockerfile"), re.DOTALL)[0]
        listed = set(re.findall(r"^ {8}([a-z0-9+-]+) ", installed, re.MULTILINE))
        self.assertEqual(listed - asked, {"ca-certificates", "git", "make", "python3"})
        self.assertEqual(asked - listed, set())

    def test_each_group_has_the_versions_of_the_constraints(self):
        pinned = {line.partition("==")[0] for line in self.read("common/setup/constraints.txt").splitlines()}
        for group, entries in has_group.GROUPS.items():
            if not group.startswith(("torch", "cuda")):  # the newest PyTorch, which comes with headers of its own
                names = {Requirement(entry).name for entry in entries if isinstance(entry, str)}
                self.assertLessEqual(names, pinned, f"{group}: the head of constraints.txt has the command that adds it")
