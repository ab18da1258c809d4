#!/usr/bin/env python3
"""How many digits of y are right where the mean of x is large: this project's kernels and PyTorch's.

    make library && python3 -m common.campaign.digits           # a minute on a GPU
    python3 -m common.campaign.digits --shapes 64x2048 --means 1e2,1e4

x is float, random, of deviation 1 about each of the means; layer norm, forward. A record has the error
of y in norm against double precision from the same x. `two-sums` is E[x²] - E[x]² in PyTorch's float.
Nothing is timed. Notebook 4 draws what is in notebooks/data/digits_h100.csv, or in local_digits.jsonl.
"""

import argparse
import sys
from pathlib import Path

import torch

from common.bench.compare_peers import LIBRARY, Journal, load_all, made_by, one_line
from common.bench.peer_checks import chunks, forward_reference
from common.bench.peer_providers import EPS, PEERS, Provider, make_inputs, own_providers, versions
from common.results.peers import DISPATCH, missing_lines, parse_names, parse_shapes, rounded
from common.results.problems import ROOT
from common.results.records import SCHEMA

JSON = Path("notebooks/data/local_digits.jsonl")
SHAPES = "f32:4096x64,f32:1024x2048,f32:64x16384,f32:16x65536"
MEANS = "0,1,1e1,1e2,1e3,1e4,1e5"
PROVIDERS = ("dispatch,torch,torch.compile,two-sums,fwd03,fwd04,lib_fwd_registers,lib_fwd_ring,lib_fwd_cluster_ring,"
             "lib_fwd_narrow")


def two_sums(_, inputs):
    """prepare() of the variance as the difference of two means."""
    def run():
        mean = inputs.x.mean(1, keepdim=True)
        variance = (inputs.x * inputs.x).mean(1, keepdim=True) - mean * mean
        return ((inputs.x - mean) * torch.rsqrt(variance + EPS) * inputs.weight + inputs.bias,)
    return run


def inputs_about(mean, problem, device):
    """The peers' inputs with another mean of x."""
    inputs = make_inputs("layer", problem, device)
    inputs.x.add_(mean - 0.5)
    return inputs


def error_of(y, inputs):
    """In norm, relative; NaN where any element is."""
    off = size = 0.0
    for rows in chunks(*inputs.x.shape):
        right = forward_reference(inputs, rows)
        off += float((y[rows].detach().double() - right).square().sum())
        size += float(right.square().sum())
    return (off / size) ** 0.5


def measure(prepares, problems, means, made, journal, device):
    """Adds a record for each provider that takes a problem. Returns {(provider, sentence)} of the others."""
    notes = set()
    for problem in problems:
        for mean in means:
            inputs = inputs_about(mean, problem, device)
            for name, prepare in prepares.items():
                try:
                    run = prepare("forward", inputs)
                    error = error_of(run()[0], inputs)
                except Exception as failure:  # a provider that takes no such problem
                    notes.add((name, f"{problem}: {one_line(failure)}"))
                    continue
                record = {"schema": SCHEMA, "provider": name, "direction": "forward",
                          "problem": {"kind": "layer", "dtype": problem.dtype, "rows": problem.rows,
                                      "cols": problem.cols, "eps": EPS, "seed": inputs.seed,
                                      "options": {"offset": mean}},
                          **made, "rel_err": rounded(error, 3)}
                if name in DISPATCH:
                    record["chosen"] = run.chapter
                journal.add(record)
    return sorted(notes)


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES, metavar="SHAPE,…", help=f"ROWSxCOLS, of float ({SHAPES})")
    parser.add_argument("--means", default=MEANS, metavar="MEAN,…", help=f"of x ({MEANS})")
    parser.add_argument("--providers", default=PROVIDERS, metavar="NAME,…", help=f"({PROVIDERS})")
    parser.add_argument("--json", type=Path, default=ROOT / JSON, metavar="FILE", help=f"appended to ({JSON})")
    parser.add_argument("--library", type=Path, default=ROOT / LIBRARY, metavar="FILE", help=f"({LIBRARY})")
    return parser.parse_args(argv)


def main(argv):
    options = parse_arguments(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    providers, missing = [*PEERS, Provider("two-sums", lambda: two_sums, "torch", "pytorch.org")], []
    try:
        providers += own_providers(options.library, device)
    except Exception as error:
        missing.append(("this project's kernels", one_line(error), "make library"))
    known = [*(provider.name for provider in providers), *PROVIDERS.split(",")]
    names = parse_names(options.providers, known, "provider")
    prepares, absent = load_all([provider for provider in providers if provider.name in names])
    made = made_by(torch, versions(prepares))
    journal = Journal(options.json)
    means = [float(mean) for mean in options.means.split(",")]
    notes = measure(prepares, parse_shapes(options.shapes, "f32"), means, made, journal, device)
    for record in journal.records:
        problem = record["problem"]
        print(f"{problem['rows']} x {problem['cols']}, mean {problem['options']['offset']:g}: "
              f"{record['provider']} {record['rel_err']}")
    print("\n".join([*missing_lines(missing + absent), *(f"{name}, {sentence}" for name, sentence in notes),
                     f"Records written: {len(journal.records)}, to {options.json}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
