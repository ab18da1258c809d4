"""lab: kernels on the CPU backend, and sums and quotients in narrow types."""

import ast
import contextlib
import io
import json
import unittest
from pathlib import Path
from unittest import mock

import lab
import numpy as np
from matplotlib.figure import Figure

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
        lab.compile_kernel("lab_test", DOUBLES)
        self.assertEqual(lab.run_kernel("lab_test"), "0 62\n")
        self.assertEqual(lab.run_kernel("lab_test", "reverse"), "62 0\n")

    def test_a_cell_that_begins_with_kernel_is_compiled_under_its_name(self):
        magics = {}
        shell = mock.Mock()
        shell.register_magic_function = lambda function, kind, name: magics.update({(kind, name): function})
        lab.load_ipython_extension(shell)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            magics["cell", "kernel"](" lab_cell ", DOUBLES)
        self.assertRegex(out.getvalue(), r"lab_cell is compiled, in \d")
        self.assertEqual(lab.run_kernel("lab_cell"), "0 62\n")

    def test_a_kernel_that_does_not_compile_is_not_run_as_it_was_before(self):
        lab.compile_kernel("lab_broken", DOUBLES)
        with self.assertRaises(lab.LabError):
            lab.compile_kernel("lab_broken", DOUBLES.replace("atomicAdd", "atomicSubtract"))
        with self.assertRaisesRegex(lab.LabError, "begins with %%kernel lab_broken"):
            lab.run_kernel("lab_broken")

    def test_a_build_says_its_last_step_and_a_failed_one_all_it_said(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(lab.follow("printf", "[1/3] a\n[2/3] b\n[3/3] c\n"), 3)
        self.assertEqual(out.getvalue().strip().splitlines()[-1].strip(), "step 3 of 3")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(lab.follow("printf", "[0/2] Re-checking globbed directories\n"), 2)
        self.assertEqual(out.getvalue(), "")
        with self.assertRaisesRegex(lab.LabError, "out of luck"):
            lab.follow("bash", "-c", "echo out of luck; exit 1")

    def test_a_compiler_s_error_is_shown(self):
        with self.assertRaisesRegex(lab.LabError, "wrong.cu:1:.* error: .*nonsense"):
            lab.compile_kernel("wrong", f"nonsense x; {DOUBLES}")


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


class Figures(unittest.TestCase):
    def test_a_figure_has_its_title_and_words_for_those_who_do_not_see_it(self):
        figure = Figure(figsize=(2, 1))
        figure.suptitle("Up\non a GPU")
        data = lab.in_words_too(figure, alt='A line that "rises".')
        self.assertIn('alt="Up; on a GPU. A line that &quot;rises&quot;."', data["text/html"])
        self.assertEqual(data["text/plain"], 'Up; on a GPU. A line that "rises".')
        self.assertIn(data["image/png"], data["text/html"])

    def test_what_was_not_drawn_is_not_shown(self):
        self.assertIsNone(lab.show(None, alt="nothing"))

    def test_zero_is_white_in_a_signed_matrix_and_words_can_be_read_on_every_shade(self):
        axes = Figure().subplots()
        mesh = lab.draw_matrix(axes, [[-0.4, 0, 0.4]], -0.4, 0.4, [["a", "b", "c"]])
        shades = mesh.cmap(mesh.norm([-0.4, 0.0, 0.4]))
        np.testing.assert_allclose(shades[1][:3], 1, atol=0.01)
        self.assertEqual([text.get_color() for text in axes.texts], ["white", "black", "white"])
        self.assertGreater(shades[2][0], shades[2][2])  # orange above 0
        self.assertGreater(shades[0][2], shades[0][0])  # violet below

    def test_arcs_go_from_the_lane_that_is_read_to_the_one_that_reads(self):
        axes = Figure().subplots()
        lab.draw_exchange(axes, np.array([[1, 2], [3, 4]]), np.array([[1, 1]]), 4)
        ends = [tuple(line.get_xdata()[[0, -1]]) for line in axes.lines]
        self.assertEqual(ends, [(1, 0), (1, 1)])
        self.assertEqual([line.get_color() for line in axes.lines], ["black", "#D55E00"])
        self.assertEqual([text.get_text() for text in axes.texts], ["1", "2", "3", "4"])


def code_cells():
    for path in sorted((Path(__file__).resolve().parents[1]).glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and not source.startswith("%%"):
                yield path.name, cell["id"], "\n".join(line for line in source.split("\n") if not line.startswith("%"))


class Notebooks(unittest.TestCase):
    def test_every_figure_has_words_for_those_who_do_not_see_it(self):
        shown = 0
        for name, identifier, source in code_cells():
            for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
                function = ast.unparse(call.func)
                self.assertNotEqual(function, "plt.show", (name, identifier))
                if function == "lab.show":
                    words = [keyword.value for keyword in call.keywords if keyword.arg == "alt"]
                    self.assertTrue(words and len(ast.literal_eval(words[0])) > 40, (name, identifier))
                    shown += 1
        self.assertGreater(shown, 20)

    def test_each_begins_with_something_to_change(self):
        first = {}
        for name, _, source in code_cells():
            first.setdefault(name, source)
        for name, source in first.items():
            assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
            self.assertGreaterEqual(len(assigned), 2, name)
            self.assertTrue(all(ast.unparse(target).isupper() or isinstance(target, ast.Tuple)
                                for node in assigned for target in node.targets), name)
