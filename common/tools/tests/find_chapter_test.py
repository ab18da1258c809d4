"""Tests of the front door: which chapter is meant."""

import re
import tempfile
import unittest
from pathlib import Path

from common.tools.committed_list import committed
from common.tools.find_chapter import find_chapter, find_program, known_chapters, library_kernels, retired

CHAPTERS = {
    "copy00": "copy00_machine",
    "fwd01": "fwd01_thread_per_row",
    "fwd04": "fwd04_welford",
    "bwd01": "bwd01_thread_per_row",
    "bwd02": "bwd02_warp_per_row",
}


class FindChapter(unittest.TestCase):
    def test_accepts_id_directory_and_path(self):
        for asked in ("bwd02", "bwd02_warp_per_row", "chapters/bwd02_warp_per_row/"):
            self.assertEqual(find_chapter(asked, CHAPTERS), "bwd02")

    def test_suggests_the_nearest_and_lists_all(self):
        for asked, nearest in (("bwd2", "bwd02"), ("FWD01", "fwd01"), ("welfrod", "fwd04"),
                               ("machine", "copy00")):
            with self.assertRaises(LookupError) as caught:
                find_chapter(asked, CHAPTERS)
            self.assertIn(f"did you mean CH={nearest}?", str(caught.exception))
            self.assertIn("copy00 fwd01 fwd04 bwd01 bwd02", str(caught.exception))

    def test_a_number_without_its_nought_means_that_chapter_and_none_past_the_ninth(self):
        with self.assertRaises(LookupError) as caught:
            find_chapter("fwd2", {"fwd02": "fwd02_warp_per_row", "fwd12": "fwd12_residual"})
        self.assertIn("did you mean CH=fwd02?", str(caught.exception))

    def test_suggests_nothing_where_nothing_is_near(self):
        with self.assertRaises(LookupError) as caught:
            find_chapter("zzz", CHAPTERS)
        self.assertNotIn("did you mean", str(caught.exception))

    def test_the_option_that_was_wrong_is_named(self):
        with self.assertRaises(LookupError) as caught:
            find_chapter("bwd2", CHAPTERS, "FROM")
        self.assertIn("FROM=bwd2 is not a chapter (did you mean FROM=bwd02?)", str(caught.exception))

    def test_the_machine_comes_first_then_forward_and_the_reader_s_own_last(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("my01_from_fwd01", *reversed(CHAPTERS.values()), "no_chapter"):
                (Path(directory) / name).mkdir()
                (Path(directory) / name / "kernel.cu").touch()
            (Path(directory) / "fwd09_without_a_kernel").mkdir()
            self.assertEqual(list(known_chapters(Path(directory)).items()),
                             [*CHAPTERS.items(), ("my01", "my01_from_fwd01")])

    def test_what_is_committed_names_none_of_the_reader_s_own(self):
        listed = {"version": "0", "chapters": [{"id": "fwd01"}, {"id": "my01"}], "types": []}
        of_library = {"library": [{"id": "lib_fwd_ring"}]}
        self.assertEqual(committed(listed, of_library), {"version": "0", "chapters": [{"id": "fwd01"}], "types": [], **of_library})

    def test_a_kernel_of_the_library_is_found_by_name_id_or_path(self):
        for asked in ("bwd_ring", "lib_bwd_ring", "common/library/kernels/bwd_ring.cu"):
            self.assertEqual(find_program("", asked), "lib_bwd_ring")
        self.assertEqual((find_program("", "all"), find_program("", ""), find_program("bwd02", "")),
                         ("library_kernels", "chapters", "bwd02"))
        for chapter, library, why in (("bwd02", "bwd_ring", "not both"), ("", "bwd_rin", "did you mean LIB=bwd_ring?"),
                                      ("", "nothing", "the kernels are ")):
            with self.assertRaisesRegex(LookupError, re.escape(why)):
                find_program(chapter, library)

    def test_a_retired_chapter_s_id_says_what_took_its_place(self):
        for identifier, kernel in retired().items():
            self.assertIn(kernel, library_kernels())
            with self.assertRaisesRegex(LookupError, rf"no longer a chapter; its kernel is LIB={kernel[4:]}\."):
                find_chapter(identifier, CHAPTERS)
