"""The package without PyTorch and without a library: its version, its names, what it says where something is missing."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "common/python/layernorm_chapters"
VERSION = re.search(r"^project\(\w+ VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def python(code, path, **environment):
    """Runs code with the folder in the path, in a Python that believes that there is no PyTorch."""
    code = f"import sys; sys.modules['torch'] = None\n{code}"
    clean = {name: value for name, value in os.environ.items() if name != "LNC_LIBRARY"}
    return subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True,
                          env={**clean, "PYTHONPATH": str(path), **environment})


class Package(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.site = Path(directory.name) / "lib/python3/site-packages"

    def install(self):
        """What pip puts there, as far as the package sees it."""
        shutil.copytree(PACKAGE, self.site / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        info = self.site / "layernorm_chapters-9.8.7.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: layernorm-chapters\nVersion: 9.8.7\n")

    def test_a_checkout_has_the_version_of_cmake(self):
        result = python("import layernorm_chapters as l; print(l.__version__)", PACKAGE.parent)
        self.assertEqual(result.stdout.strip(), VERSION, result.stderr)

    def test_citation_and_changelog_have_the_version_of_cmake(self):
        self.assertIn(f"\nversion: {VERSION}\n", (ROOT / "CITATION.cff").read_text())
        newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
        self.assertEqual(newest, VERSION)

    def test_an_installed_copy_has_its_own_version(self):
        self.install()
        result = python("import layernorm_chapters as l; print(l.__version__)", self.site)
        self.assertEqual(result.stdout.strip(), "9.8.7", result.stderr)

    def test_only_what_needs_pytorch_asks_for_it(self):
        code = "import layernorm_chapters as l, layernorm_chapters.library; print('imported')\nl.{}"
        for name, words in (("LayerNorm", "LayerNorm needs PyTorch"), ("rms_norm", "rms_norm needs PyTorch"),
                            ("nothing", "has no attribute 'nothing'")):
            result = python(code.format(name), PACKAGE.parent)
            self.assertEqual(result.stdout, "imported\n")
            self.assertIn(words, result.stderr.splitlines()[-1])

    def test_an_installed_copy_says_where_kernels_come_from(self):
        self.install()
        result = python("from layernorm_chapters.library import library_path; library_path('cpu')", self.site)
        last = result.stderr.splitlines()[-1]
        self.assertIn("'pip install .' or 'make library BACKEND=cpu' in", last)
        self.assertIn("in the repository's checkout", last)

    def test_a_library_is_taken_from_where_the_variable_says(self):
        self.install()
        code = "from layernorm_chapters.library import library_path; print(library_path('cpu'))"
        self.assertEqual(python(code, self.site, LNC_LIBRARY=__file__).stdout.strip(), __file__)
