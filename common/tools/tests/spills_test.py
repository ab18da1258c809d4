"""Tests of the check for spills, on made-up reports of ptxas."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from common.tools import spills

ALIGNED = "_ZN5fwd0618layer_norm_forwardIfLb1EEEvf"  # void fwd06::layer_norm_forward<float, true>(float)
OTHER = "_ZN5bwd0919layer_norm_backwardIfLi1ELb0EEEvf"  # …<float, 1, false>
WIDE = "_ZN17lib_bwd_registers19layer_norm_backwardIffLi32EEEvf"  # …<float, float, 32>


def entry(name, architecture="sm_90", stack=0, registers=40):
    return (f"ptxas info    : Compiling entry function '{name}' for '{architecture}'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {stack} bytes spill stores, {stack} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers, 528 bytes cmem[0]\n"
            "ptxas info    : Compile time = 12.3 ms\n")


class Spills(unittest.TestCase):
    def check(self, chapter, *entries):
        return spills.judge(chapter, spills.read_report("ptxas info    : 0 bytes gmem\n"
                                                        + "".join(entries)))

    def test_reads_a_report(self):
        kernels = spills.read_report(entry(ALIGNED, "sm_75", 8, 64) + entry(OTHER))
        self.assertEqual(kernels, [("sm_75", "fwd06::layer_norm_forward<float, true>", 64, 8),
                                   ("sm_90", "bwd09::layer_norm_backward<float, 1, false>", 40, 0)])

    def test_refuses_a_report_that_it_does_not_understand(self):
        with self.assertRaises(ValueError):
            spills.read_report(entry(ALIGNED).replace("Used", "Needs") + entry(OTHER))

    def test_no_spill_is_good(self):
        lines, good, _ = self.check("fwd06", entry(ALIGNED), entry(ALIGNED, "sm_80"))
        self.assertTrue(good)
        self.assertEqual(lines, ["fwd06: 1 kernels on sm_90, at most 40 registers"])

    def test_a_spill_is_not(self):
        lines, good, _ = self.check("fwd06", entry(ALIGNED, stack=8), entry(OTHER))
        self.assertFalse(good)
        self.assertEqual(lines[0], "SPILL  fwd06::layer_norm_forward<float, true>: 8 bytes")

    def test_other_architectures_are_shown(self):
        lines, good, _ = self.check("fwd06", entry(ALIGNED), entry(ALIGNED, "sm_80", stack=8))
        self.assertTrue(good)
        self.assertIn("some spill on sm_80", lines[-1])

    def test_a_known_spill_may_not_grow(self):
        for stack, expected in ((16, True), (24, False)):
            _, good, needed = self.check("lib_bwd_registers", entry(WIDE, stack=stack))
            self.assertEqual((good, len(needed)), (expected, 1))

    def test_a_report_without_the_judged_architecture_is_not_good(self):
        self.assertFalse(self.check("fwd06", entry(ALIGNED, "sm_80"))[1])

    def test_every_chapter_of_the_table_must_have_a_report(self):
        chapters = spills.dispatched(spills.load_catalogue())
        self.assertTrue(chapters)
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
            with self.assertRaisesRegex(SystemExit, "no report of"):
                spills.main(directory)
            for chapter in chapters:
                path = Path(directory) / f"CMakeFiles/{chapter}_kernel.dir/kernel.cu.o.ptxas"
                path.parent.mkdir(parents=True)
                path.write_text(entry(ALIGNED))
            with mock.patch.object(spills, "KNOWN", []):
                self.assertEqual(spills.main(directory), 0)
            unneeded = spills.Known("no such kernel", 8, "")
            with mock.patch.object(spills, "KNOWN", [unneeded]):
                self.assertEqual(spills.main(directory), 1)
