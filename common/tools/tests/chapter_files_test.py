"""A chapter's two files say the same: ids, titles, remark numbers, sections, links.

Usage: chapter_files_test.py [unittest options]
"""

import functools
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SECTIONS = ["The idea", "Derivation", "Reading the kernel", "Cost", "Pitfalls", "Try it", "Sources"]
TOP_LEVEL = {"chapters", "common", "notebooks", "reference_cpu", "CMakeLists.txt", "Makefile",
             "README.md", "LICENSE"}
LONGEST_TOP_COMMENT = 12
# What a kernel of Hopper's includes, itself or through another of these.
NEEDS_HOPPER = {"common/kernel/hopper.h", "common/kernel/bulk_rows.h", "common/kernel/ring.h"}


def prose(markdown):
    """Markdown without code and formulas: what looks like a heading or a link there is none."""
    for code in (r"^ *```.*?^ *```", r"`[^`\n]*`", r"\$\$.*?\$\$", r"\$[^$\n]*\$"):
        markdown = re.sub(code, "", markdown, flags=re.MULTILINE | re.DOTALL)
    return markdown


class Chapter:
    def __init__(self, directory):
        self.directory = directory
        self.id = directory.name.split("_")[0]

    @functools.cached_property
    def kernel(self):
        return (self.directory / "kernel.cu").read_text()

    @functools.cached_property
    def notes(self):
        return (self.directory / "notes.md").read_text()

    def section(self, title):
        """The notes under the heading `## title`, up to the next heading of that level."""
        parts = re.split(r"^## (.*)\n", prose(self.notes), flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2])).get(title, "")


CHAPTERS = [Chapter(path) for path in sorted((ROOT / "chapters").iterdir()) if path.is_dir()]


def of_each_chapter(test):
    """Runs a test once for each chapter, past those that fail."""

    @functools.wraps(test)
    def tests(self):
        self.assertTrue(CHAPTERS, "there are no chapters")
        for chapter in CHAPTERS:
            with self.subTest(chapter.directory.name):
                test(self, chapter)

    return tests


class ChapterFilesTest(unittest.TestCase):
    @of_each_chapter
    def test_a_chapter_is_two_files(self, chapter):
        files = sorted(path.name for path in chapter.directory.iterdir())
        self.assertEqual(files, ["kernel.cu", "notes.md"])
        self.assertRegex(chapter.directory.name, r"^[fb]wd\d\d(_[a-z0-9]+)+$")

    @of_each_chapter
    def test_one_id_and_title_everywhere(self, chapter):
        match = re.match(r"// (\w+) · (.*\S)\n", chapter.kernel)
        self.assertTrue(match, "kernel.cu does not begin with a comment '// id · Title'")
        identifier, title = match.groups()
        self.assertEqual(identifier, chapter.id)
        for pattern, expected in [(r"^namespace (\w+) \{$", identifier),
                                  (r'^ *\.id = "(.*)",$', identifier),
                                  (r'^ *\.title = "(.*)",$', title)]:
            self.assertEqual(re.findall(pattern, chapter.kernel, re.MULTILINE), [expected])
        self.assertEqual(chapter.notes.splitlines()[0], f"# {identifier} · {title}")

    @of_each_chapter
    def test_the_notes_have_their_sections_in_order(self, chapter):
        headings = re.findall(r"^## (.*)$", prose(chapter.notes), re.MULTILINE)
        self.assertEqual([h for h in headings if h in SECTIONS], SECTIONS)

    @of_each_chapter
    def test_the_remarks_of_kernel_and_notes_match(self, chapter):
        def in_order_of_first_mention(pattern, text):
            return list(dict.fromkeys(int(number) for number in re.findall(pattern, text)))

        comments = "\n".join(re.findall(r"//.*", chapter.kernel))
        in_kernel = in_order_of_first_mention(r"(?<!\w)\[(\d+)\]", comments)
        in_notes = in_order_of_first_mention(r"\*\*\[(\d+)\]\*\*",
                                             chapter.section("Reading the kernel"))
        rising = list(range(1, max(in_kernel, default=1) + 1))
        self.assertEqual(in_kernel, rising, "the remarks of kernel.cu, by their first mention")
        self.assertEqual(in_notes, rising, "the remarks of notes.md")

    @of_each_chapter
    def test_a_kernel_stands_alone(self, chapter):
        lines = re.findall(r"^\s*#\s*include\s+(.*\S)", chapter.kernel, re.MULTILINE)
        includes = {line.strip('"') for line in lines}
        for line in lines:
            self.assertRegex(line, r'^"common/kernel/\w+\.h"$')
        self.assertIn("common/kernel/chapter.h", includes)
        needs_hopper = bool(includes & NEEDS_HOPPER)
        self.assertEqual(".min_architecture = 90," in chapter.kernel, needs_hopper)
        used = set(re.findall(r"\b([fb]wd\d\d)::", re.sub(r"//.*", "", chapter.kernel)))
        self.assertEqual(used - {chapter.id}, set())

    @of_each_chapter
    def test_the_top_comment_is_short(self, chapter):
        lines = chapter.kernel.splitlines()
        top_comment = next(i for i, line in enumerate(lines) if not line.startswith("//"))
        self.assertLessEqual(top_comment, LONGEST_TOP_COMMENT, "lines of the top comment")

    def test_relative_links_lead_somewhere(self):
        for page in [ROOT / "README.md", *(c.directory / "notes.md" for c in CHAPTERS)]:
            with self.subTest(str(page.relative_to(ROOT))):
                text = prose(page.read_text())
                links = re.findall(r"\]\(<?([^)\s>]+)", text)
                links += re.findall(r"^\[[^\]]+\]:\s*<?([^\s>]+)", text, re.MULTILINE)
                links += re.findall(r"""(?:src|href)=["']([^"']+)""", text)
                for link in links:
                    if re.match(r"[a-z]+:|#", link):
                        continue
                    target = (page.parent / link.partition("#")[0]).resolve()
                    self.assertTrue(target.exists(), f"{link} leads nowhere")
                    self.assertTrue(target.is_relative_to(ROOT), f"{link} leaves the repository")

    def test_the_top_level_holds_nothing_else(self):
        if not (ROOT / ".git").exists():
            self.skipTest("this copy has no .git")
        try:
            listing = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True,
                                     text=True)
        except FileNotFoundError:
            self.skipTest("git is not installed")
        if listing.returncode != 0 or not listing.stdout:
            self.skipTest(listing.stderr.strip() or "nothing is committed yet")
        entries = {path.split("/")[0] for path in listing.stdout.split("\0") if path}
        self.assertEqual({e for e in entries if not e.startswith(".")} - TOP_LEVEL, set())


if __name__ == "__main__":
    unittest.main()
