"""Tests of the chapters' budgets of seconds, on made-up logs."""

from common.tools import budget

NINJA_LOG = """# ninja log v5
0\t30000\t1\tCMakeFiles/bwd12_kernel.dir/chapters/bwd12_async_bulk/kernel.cu.o\tabc
100\t4100\t1\tCMakeFiles/fwd01_kernel.dir/chapters/fwd01_thread_per_row/kernel.cu.o\tabd
0\t90000\t1\tCMakeFiles/harness.dir/common/harness/options.cpp.o\tabe
40000\t48000\t1\tCMakeFiles/bwd12_kernel.dir/chapters/bwd12_async_bulk/kernel.cu.o\tabf
"""
CTEST = """
 1/47 Test #32: fwd02 ............................   Passed    0.31 sec
 2/47 Test #26: bwd12 ............................***Failed   12.80 sec
 3/47 Test #27: bwd12_complete ...................   Passed   90.00 sec
"""


def test_the_last_build_counts_and_only_that_of_kernels():
    assert budget.build_seconds(NINJA_LOG) == {"bwd12": 8.0, "fwd01": 4.0}


def test_the_quick_tests_count_and_not_the_complete_ones():
    assert budget.test_seconds(CTEST) == {"fwd02": 0.31, "bwd12": 12.8}


def test_a_chapter_over_its_budget_is_named_with_both_numbers():
    assert budget.over({"fwd02": 0.3, "bwd12": 12.8}, 10, "test") == [
        "budget: bwd12 takes 13 s to test, but its share is 10 s"]
