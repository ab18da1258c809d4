"""variance.py against the kernels that it follows, and against fwd04's laboratory."""

import platform
import subprocess
import tempfile
import unittest
from pathlib import Path

import lab
import numpy as np
import pytest
from lab import variance

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20


class Kernels(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def of_the_build(self, programs):
        self.programs = programs

    def test_the_kernels_err_as_the_table_says(self):
        for chapter, method in (("fwd03", variance.two_passes), ("fwd04", variance.welford_first_off)):
            for dtype in ("f32", "f16", "bf16"):
                for cols in (1, 37, 2000, 2048):
                    for offset in ("0.5", "1e3", "1e4"):
                        with self.subTest(f"{chapter} {dtype} {cols} columns, offset {offset}"):
                            self.compare(chapter, method, dtype, cols, offset)

    def compare(self, chapter, method, dtype, cols, offset):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [self.programs[chapter], "--rows", str(ROWS), "--cols", str(cols), "--dtype", dtype,
                 "--offset", offset, "--samples", "0", "--dump", folder], capture_output=True, text=True)
            if "no usable NVIDIA GPU" in result.stderr:
                self.skipTest(result.stderr.strip())
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            x, rstd = (np.load(f"{folder}/{name}.npy") for name in ("x", "rstd"))
        own = variance.round_to(dtype, np.float32(offset) + variance.random_x(ROWS, cols))
        np.testing.assert_array_equal(own, lab.as_numbers(x).astype(np.float32))
        # x86 rounds a product before it is added to something, as NumPy does.
        if "SIMT machine" in result.stdout and platform.machine() == "x86_64":
            np.testing.assert_array_equal(method(own), rstd)
        right = variance.exact(own)[1]
        self.assertLess(variance.relative_error(rstd, right),
                        10 * variance.relative_error(method(own), right) + 3e-7)


class Script(unittest.TestCase):
    def test_the_laboratory_of_fwd04_shows_its_table(self):
        page = (ROOT / "chapters/fwd04_welford/lab.md").read_text(encoding="utf-8")
        table = "\n".join(variance.table(variance.ROWS, variance.COLS))
        self.assertIn(f"\n\n{table}\n\n", page, "fwd04's laboratory shows another table; the script prints:\n" + table)

    def test_rounding_is_to_nearest_even(self):
        for dtype, x, rounded in (("bf16", 1 + 2**-8, 1), ("bf16", 1 + 3 * 2**-8, 1 + 2**-6),
                                  ("bf16", 10000, 9984), ("bf16", -10000, -9984), ("f16", 1 + 2**-11, 1),
                                  ("f16", 10003, 10000), ("f16", 65519, 65504), ("f16", 65520, np.inf)):
            with self.subTest(f"{dtype} {x}"):
                self.assertEqual(variance.round_to(dtype, np.array([x], np.float32))[0], rounded)
