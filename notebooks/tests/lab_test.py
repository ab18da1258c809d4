"""lab: kernels on the CPU backend, and sums and quotients in narrow types."""

import unittest

import lab
import numpy as np

DOUBLES = r"""
#include <cstdio>
#include "common/kernel/launch.h"
__global__ void doubled(int* out) { out[threadIdx.x] = 2 * atomicAdd(&out[32], 1); }
int main() {
  int out[33] = {};
  lnc::launch(doubled, {1, 32}, out);
  std::printf("%d %d\n", out[0], out[31]);
}
"""


class Kernels(unittest.TestCase):
    def test_a_chapter_returns_its_inputs_and_outputs(self):
        for dtype in ("f32", "f16", "bf16"):
            with self.subTest(dtype):
                result = lab.run("bwd05", "--rows", 5, "--cols", 40, "--dtype", dtype)
                self.assertEqual(result["dx"].shape, (5, 40))
                self.assertEqual(result["mean"].shape, (5,))
                dbias = result["dy"].astype(float).sum(axis=0)
                np.testing.assert_allclose(result["dbias"].astype(float), dbias, atol=0.02)

    def test_a_refusal_is_an_error_in_words(self):
        with self.assertRaisesRegex(lab.LabError, "there is no kind"):
            lab.run("bwd05", "--kind", "batch")

    def test_an_own_kernel_runs_in_the_schedule_that_is_asked_for(self):
        path = lab.compile_kernel("lab_test", DOUBLES)
        self.assertEqual(lab.run_kernel(path), "0 62\n")
        self.assertEqual(lab.run_kernel(path, "reverse"), "62 0\n")

    def test_a_compiler_s_error_is_shown(self):
        with self.assertRaisesRegex(lab.LabError, "wrong.cu:1:.* error: .*nonsense"):
            lab.compile_kernel("wrong", "nonsense x;")


class Numbers(unittest.TestCase):
    def test_ones_stop_adding_up_where_the_next_number_is_two_away(self):
        ones = np.ones((3000, 1))
        for dtype, end in (("f32", 3000), ("f16", 2048), ("bf16", 256)):
            with self.subTest(dtype):
                sums = lab.running_sums(dtype, ones)[:, 0]
                self.assertEqual(sums[-1], end)
                np.testing.assert_array_equal(sums[:end], np.arange(1, end + 1))

    def test_a_weight_near_0_is_clamped_with_its_sign(self):
        for weight, xhat in ((2.0, 1.5), (-2.0, -1.5), (1e-9, 3e5), (-1e-9, -3e5), (0.0, 3e5)):
            with self.subTest(weight):
                self.assertAlmostEqual(lab.xhat_from_y(np.float32(4), weight, 1, 1e-5) / xhat, 1, places=5)

    def test_bfloat16_is_read_from_its_bits(self):
        np.testing.assert_array_equal(lab.as_numbers(np.array([0x3F80, 0xC040], np.uint16)), [1, -3])
