"""Kernels' names as the source spells them, from what nvcc, ptxas and Nsight Compute call them."""

import itertools
import subprocess


def demangle(names):
    """Names as the source spells them, with their parameters. Raises OSError or
    subprocess.CalledProcessError where c++filt, which comes with g++, does not run."""
    if not any(name.startswith("_Z") for name in names):
        return names
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def without_parameters(name):
    """'void fwd02::layer_norm_forward<float>(int)' -> 'fwd02::layer_norm_forward<float>'"""
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    depth = itertools.accumulate((c == "<") - (c == ">") for c in name)  # template arguments may hold a '('
    end = next((i for i, (c, opened) in enumerate(zip(name, depth)) if c == "(" and opened == 0), None)
    return name[:end].removeprefix("void ")
