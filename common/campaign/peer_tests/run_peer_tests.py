#!/usr/bin/env python3
"""The tests that other packages have for their norms, run against ours.

    make library
    git clone https://github.com/linkedin/Liger-Kernel && git clone https://github.com/Dao-AILab/quack
    python3 -m common.campaign.peer_tests.run_peer_tests --liger Liger-Kernel --quack quack

Their test files import a package that stands in for theirs and calls layernorm_chapters: liger_shim.py and
quack_shim.py. Neither package needs to be installed. Without a GPU the tests run on the CPU backend, where those with
large tensors are left out. Prints how many tests passed, and of those that were left out, why.

Exit status 1 where a test failed, 2 where there is nothing that could be run.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "python"
ROOT = HERE.parents[2]
FAILED, NOTHING_TO_RUN = 1, 2


def refuse(sentence):
    print(f"run_peer_tests.py: {sentence}", file=sys.stderr)
    sys.exit(NOTHING_TO_RUN)


def load_kernels():
    """The backend of the library that is there."""
    try:
        from layernorm_chapters import LibraryError, operators
        operators.load()
    except ModuleNotFoundError as error:
        refuse(f"this needs PyTorch: {error}")
    except LibraryError as error:
        refuse(error)
    return operators.library().backend


def check(folder, shim):
    for file in shim.FILES:
        if not (folder / file).is_file():
            refuse(f"{folder} is no checkout of {shim.REPOSITORY} that has the tests known here: "
                   f"there is no {folder / file}")


def run(name, folder, shim, more):
    """Whether the tests passed."""
    paths = [str(path) for path in (folder, PACKAGE, ROOT)] + [os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads and the CPU library's
    adapter = "common.campaign.peer_tests.peer_adapter"
    command = [sys.executable, "-B", "-m", "pytest", "-q", "--tb=short", "-p", adapter,
               "--peer", name, "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "--rootdir", str(folder),
               *more, *shim.FILES]
    return subprocess.run(command, cwd=folder, env=environment).returncode == 0


def main():
    from common.python import from_tree  # noqa: F401, I001  finds layernorm_chapters, which the shims import
    from common.campaign.peer_tests import liger_shim, quack_shim

    shims = {"liger": liger_shim, "quack": quack_shim}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, shim in shims.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=f"a checkout of {shim.REPOSITORY}")
    options, more = parser.parse_known_args()  # what is left is pytest's: -k, -x, --durations
    given = {name: getattr(options, name).resolve() for name in shims if getattr(options, name)}
    if not given:
        refuse("name a checkout: --liger DIR, --quack DIR, or both")
    for name, folder in given.items():
        check(folder, shims[name])
    print(f"Tests of {' and '.join(shims[name].REPOSITORY for name in given)} on the {load_kernels()} backend")
    sys.stdout.flush()
    passed = [run(name, folder, shims[name], more) for name, folder in given.items()]
    sys.exit(0 if all(passed) else FAILED)


if __name__ == "__main__":
    main()
