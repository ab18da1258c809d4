"""Tests of the check that every kernel of a chapter is launched, on a made-up listing."""

import test_chapter

SOURCE = """
template <typename T>
__global__ void first(const T* x) {}
template <typename V, bool kAligned>
__global__ void __launch_bounds__(V::kThreads* V::kRows, kAligned ? V::kBlocks : 0)
    second(V v) {}
void not_a_kernel() {}
"""
MANGLED = """\
0000 W _first_f
0010 W _first_h
0020 W _second_tile
0030 W _second_lambda
0040 T _not_a_kernel
0050 T _first_of_all
"""
PLAIN = """\
0000 W void fwd06::first<float>(float const*)
0010 W void fwd06::first<__half>(__half const*)
0020 W fwd06::second<V, true>(V)::tile
0030 W fwd06::second<V, true>(V)::{lambda(int)#1}::operator()(int) const
0040 T not_a_kernel()
0050 T fwd06::first_of_all(int)
"""


def test_names_of_kernels_past_their_launch_bounds():
    assert test_chapter.kernel_names(SOURCE) == {"first", "second"}


def test_an_instantiation_is_a_kernel_and_what_lies_inside_of_one_is_not():
    kernels = test_chapter.compiled_kernels(MANGLED, PLAIN, {"first", "second"})
    assert kernels == {"_first_f": "fwd06::first<float>(float const*)", "_first_h": "fwd06::first<__half>(__half const*)"}
