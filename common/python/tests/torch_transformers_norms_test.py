"""Every class of transformers whose name ends in Norm: replaced, it gives the same outputs and gradients at several
magnitudes, types and numbers of dimensions; or it is left alone, for a reason."""

import collections
import contextlib
import copy
import importlib
import inspect
import itertools
import os
import pkgutil
import warnings
from pathlib import Path

import pytest

from common.python.tests.norms import error, lnc, torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers", reason="this Python has no transformers; `bash common/setup/setup.sh "
                                                          "--with-torch` installs one into .venv-torch")

COLS = 64


def norm_classes():
    """{name: class}"""
    classes = {}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        for path in sorted((Path(transformers.models.__path__[0]) / package.name).glob("modeling_*.py")):
            if "Norm(" not in path.read_text(encoding="utf-8"):
                continue
            module = importlib.import_module(f"transformers.models.{package.name}.{path.stem}")
            for name, found in vars(module).items():
                if (inspect.isclass(found) and issubclass(found, torch.nn.Module) and name.endswith("Norm")
                        and found.__module__ == module.__name__):
                    classes[f"{package.name}.{name}"] = found
    return classes


class Config:
    """A model's configuration, whatever it is asked."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if "eps" in name:
            return 1e-6
        if any(part in name for part in ("layers", "heads", "groups", "rank")):
            return 2
        return COLS if any(part in name for part in ("size", "dim", "n_", "d_model", "width", "channels")) else None


ARGUMENTS = (((COLS,), {}), ((COLS, 1e-6), {}), ((COLS,), {"eps": 1e-6}), ((), {"hidden_size": COLS}), ((), {}), ((Config(),), {}),
             (((2, COLS),), {}), ((2, COLS), {}), ((COLS, COLS, 2), {}), ((COLS, COLS, 2, 0.0), {}), ((COLS, (2,)), {}),
             ((), {"num_groups": 2, "num_channels": COLS}))


def configurations_of(of):
    """Those of the class's model, with one layer."""
    package = of.__module__.split(".")[2]
    module = importlib.import_module(f"transformers.models.{package}.configuration_{package}")
    for found in vars(module).values():
        if inspect.isclass(found) and issubclass(found, transformers.PretrainedConfig) and found.__module__ == module.__name__:
            with contextlib.suppress(ValueError):  # of one that refuses what it does not know
                yield found(num_hidden_layers=1)


def made(of):
    """A module of the class, or why there is none."""
    for arguments, named in itertools.chain(ARGUMENTS, (((c,), {}) for c in configurations_of(of))):
        try:
            return of(*arguments, **named)
        except Exception as error:
            why = error
    return f"{type(why).__name__}: {why}"


def compare(original, replaced, device):
    """What is wrong with a replaced module, in words."""
    for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        one, other = (copy.deepcopy(module).to(dtype) for module in (original, replaced))
        for magnitude in (1e-3, 1.0, 1e3):
            for shape in ((2, 5, COLS), (7, COLS), (2, 3, 2, COLS)):
                rows = (magnitude * (torch.randn(*shape, device=device) + 1.0)).to(dtype)
                x, z = rows.clone().requires_grad_(), rows.clone().requires_grad_()
                try:
                    right = one(z)
                except Exception:
                    continue  # it does not take such rows; then nor does its replacement
                y, dy = other(x), torch.randn_like(right)
                if y.dtype != right.dtype or y.shape != right.shape:
                    return f"{dtype} {shape}: {y.dtype} {list(y.shape)}"
                found = torch.autograd.grad(y, [x, *other.parameters()], dy)
                expected = torch.autograd.grad(right, [z, *one.parameters()], dy)
                for ours, theirs in zip((y, *found), (right, *expected)):
                    if not error(ours, theirs) < limit:
                        return f"{dtype} {shape} of {magnitude}: off by {error(ours, theirs):.1e}"
    return ""


def test_every_norm_of_transformers(device):
    counts, wrong, unmade = collections.Counter(), [], {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classes = norm_classes()
        for name, of in sorted(classes.items()):
            norm = made(of)
            if isinstance(norm, str):
                unmade[name] = norm
                continue
            norm = norm.to(device)
            for parameter in norm.parameters():
                torch.nn.init.normal_(parameter, 1.0, 0.5)
            original = copy.deepcopy(norm)
            replaced = lnc.replace_norms(norm)
            if "" not in replaced.names:
                why = replaced.left_alone[""].split(":")[0].split(",")[0]
                counts[f"left alone: {why}"] += 1
                continue
            counts["replaced"] += 1
            if problem := compare(original, norm, device):
                wrong.append(f"{name}: {problem}")
    for what, count in counts.most_common():
        print(f"{count:4} {what}")
    print(f"{len(unmade):4} not made, of {len(classes)} in transformers {transformers.__version__}: {unmade}")
    assert not wrong, "\n".join(wrong)
    assert counts["replaced"] > 200 and len(unmade) < 3
