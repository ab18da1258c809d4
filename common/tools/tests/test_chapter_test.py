"""Tests of the check that every kernel of a chapter is launched, on a made-up listing."""

from common.tools import test_chapter

MANGLED = """\
0000 W _first_f
0010 W _first_h
0020 W _second_tile
0030 W _second_lambda
0040 T _not_a_kernel
0050 T _first_of_all
"""
PLAIN = """\
0000 W void fwd06::first[abi:kernel]<float>(float const*)
0010 W void fwd06::first[abi:kernel]<__half>(__half const*)
0020 W fwd06::second[abi:kernel]<V, true>(V)::tile
0030 W fwd06::second[abi:kernel]<V, true>(V)::{lambda(int)#1}::operator()(int) const
0040 T not_a_kernel()
0050 T fwd06::first_of_all(int)
"""


def test_an_instantiation_is_a_kernel_and_what_lies_inside_of_one_is_not():
    kernels = test_chapter.compiled_kernels(MANGLED, PLAIN)
    assert kernels == {"_first_f": "fwd06::first<float>(float const*)", "_first_h": "fwd06::first<__half>(__half const*)"}
