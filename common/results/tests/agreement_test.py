"""The committed counts against the committed measurements, and that the comparison can fail."""

import json
import re
from pathlib import Path

import pytest

from common.results import agreement
from common.results import store

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "common/watch/agreement.md"
UNALIGNED = "1001"  # columns of float
NARROW = {"bwd14", "bwd19", "fwd10", "fwd15", "lib_bwd_tiles", "lib_fwd_tiles"}  # take none of these widths


@pytest.fixture(scope="module")
def cells():
    return [cell for cell in agreement.cells() if not cell.empty]


@pytest.fixture(scope="module")
def cells_of_programs():
    return [cell for cell in agreement.cells_of_programs() if not cell.empty]


def test_at_least_nine_cells_in_ten_agree(cells, cells_of_programs):
    for found in (cells, cells_of_programs):
        assert sum(cell.agrees for cell in found) >= 0.9 * len(found)


def test_every_cell_that_differs_has_a_reason_and_every_reason_a_cell(cells, cells_of_programs):
    differing = [cell for cell in cells + cells_of_programs if not cell.agrees]
    assert [cell for cell in differing if cell.reason is None] == []
    for number, pattern in agreement.REASONS:
        assert any(cell.reason == number and re.fullmatch(pattern + ".*", cell.words) for cell in differing), pattern


def test_both_sides_of_a_program_are_of_the_same_launches():
    counted, measured = (store.read(ROOT / path) for path in (agreement.PROGRAMS_COUNTED, agreement.PROGRAMS_MEASURED))
    sides = [[(record["program"], agreement.base_name(record["kernel"]), numbers(record["grid"]), numbers(record["block"]))
              for record in side] for side in (counted, measured)]
    assert sides[0] == sides[1]
    assert len({program for program, *_ in sides[0]}) == 8


def numbers(shape):
    """Of '(4, 3, 1)' or [4, 3, 1]."""
    return re.findall(r"\d+", str(shape))


def test_every_reason_is_told_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for number, _ in agreement.REASONS:
        assert f"\n### {number}. " in text


def test_all_chapters_that_are_profiled_are_compared_on_three_problems(cells):
    chapters = {record["chapter"] for record in agreement.read(ROOT / "notebooks/data/h100_profile.csv")}
    catalogue = json.loads((ROOT / "notebooks/data/chapters.json").read_text(encoding="utf-8"))
    aligned_only = {kernel["id"] for kernel in catalogue["chapters"] + catalogue["library"] if kernel["needs_aligned"]}
    problems = {cell.problem for cell in cells}
    assert len(problems) == len(agreement.PROBLEMS) == 3
    for problem in problems:
        compared = {cell.chapter for cell in cells if cell.problem == problem}
        assert compared >= chapters - NARROW - (aligned_only if UNALIGNED in problem else set())


def test_a_wrong_count_is_a_cell_that_differs(tmp_path):
    data = tmp_path / "notebooks/data"
    data.mkdir(parents=True)
    measured, counted = (store.read(ROOT / path)[0] for path in (agreement.MEASURED, agreement.COUNTED))
    counted["totals"]["load requests"] *= 1.06
    store.write(tmp_path / agreement.MEASURED, [measured])
    store.write(tmp_path / agreement.COUNTED, [counted])
    wrong = [cell for cell in agreement.cells(tmp_path) if not cell.agrees]
    assert [cell.quantity for cell in wrong] == ["load requests", "sectors a load request"]
    assert wrong[0].reason is None
    rows = agreement.table_rows(wrong)
    assert "(?)" in str(rows)
