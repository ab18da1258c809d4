"""liblnc.so through ctypes: the structs and functions of common/library/lnc.h, which explains them.

Needs no PyTorch.
"""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]  # of the checkout, unless this is an installed copy
OWN_LIBRARY = Path(__file__).with_name("lib") / "liblnc.so"  # of an installed copy
ABI = 4
KINDS = {"layer": 0, "rms": 1}
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}


class LibraryError(RuntimeError):
    """The library is not there, or it refused a call; the message is a sentence that says why."""


class Problem(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("dtype", c_int32), ("parameter_dtype", c_int32),
                ("eps", c_float), ("rows", c_int64), ("cols", c_int64), ("batch_invariant", c_int32)]


class Rows(ctypes.Structure):
    _fields_ = [("row_stride", c_int64), ("group_rows", c_int64), ("group_stride", c_int64)]


class FusedForward(ctypes.Structure):
    _fields_ = [*((name, c_void_p) for name in ("rowscale", "seeds", "x1", "rowscale1", "seeds1", "residual", "sum",
                                                "weight1", "bias1", "y1")),
                ("dropout", c_float), ("float_residual", c_int32)]


class FusedBackward(ctypes.Structure):
    _fields_ = [*((name, c_void_p) for name in ("rowscale", "seeds", "rowscale1", "seeds1", "sum", "dsum", "dy1",
                                                "weight1", "dx1", "dresidual", "dweight1", "dbias1")),
                ("dropout", c_float), ("float_residual", c_int32), ("has_residual", c_int32)]


class ForwardArgs(ctypes.Structure):
    _fields_ = [("chapter", c_char_p), ("problem", Problem), ("x", c_void_p), ("weight", c_void_p),
                ("bias", c_void_p), ("y", c_void_p), ("mean", c_void_p), ("rstd", c_void_p),
                ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("stream", c_void_p),
                ("fused", POINTER(FusedForward)), ("x_rows", POINTER(Rows))]


class BackwardArgs(ctypes.Structure):
    _fields_ = [("chapter", c_char_p), ("problem", Problem), ("dy", c_void_p), ("x", c_void_p),
                ("y", c_void_p), ("weight", c_void_p), ("bias", c_void_p), ("mean", c_void_p),
                ("rstd", c_void_p), ("dx", c_void_p), ("dweight", c_void_p), ("dbias", c_void_p),
                ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("stream", c_void_p),
                ("fused", POINTER(FusedBackward)), ("x_rows", POINTER(Rows)), ("dy_rows", POINTER(Rows))]


class Plan(ctypes.Structure):
    _fields_ = [("chapter", c_char_p), ("workspace_bytes", c_size_t), ("because", c_char_p),
                ("measured_on", c_char_p), ("measured_here", c_int32)]


class _Chapter(ctypes.Structure):
    _fields_ = [("id", c_char_p), ("title", c_char_p), ("backward", c_int), ("from_y", c_int),
                ("deterministic", c_int)]


class Chapter(NamedTuple):
    id: str
    title: str
    backward: bool
    from_y: bool  # a backward pass that starts from y, as memory_efficient=True has it
    deterministic: bool


class Library:
    """One liblnc.so, loaded. Any number of threads may use it."""

    def __init__(self, path):
        self.path = Path(path)
        try:
            self._functions = functions = ctypes.CDLL(str(path))
            abi = functions.lnc_abi()
        except (OSError, AttributeError) as error:
            raise LibraryError(f"{path} cannot be loaded: {error}") from None
        if abi != ABI:
            raise LibraryError(f"{path} has version {abi} of the interface, and this package is "
                               f"written for version {ABI}: run 'make library' in {_checkout()}")
        for name, args in (("forward", ForwardArgs), ("backward", BackwardArgs)):
            getattr(functions, f"lnc_{name}").argtypes = [POINTER(args)]
            getattr(functions, f"lnc_{name}_plan").argtypes = [POINTER(args), POINTER(Plan)]
        functions.lnc_list.argtypes = [POINTER(_Chapter), c_size_t]
        functions.lnc_list.restype = c_size_t
        functions.lnc_last_error.restype = functions.lnc_backend.restype = c_char_p
        self.backend = functions.lnc_backend().decode()

    def chapters(self):
        """Every kernel of the library: the chapters', then its own, each forward before backward."""
        count = self._functions.lnc_list(None, 0)
        found = (_Chapter * count)()
        self._functions.lnc_list(found, count)
        return [Chapter(c.id.decode(), c.title.decode(), bool(c.backward), bool(c.from_y),
                        bool(c.deterministic)) for c in found]

    def plan(self, args):
        """The Plan for ForwardArgs or BackwardArgs. Raises LibraryError."""
        plan, functions = Plan(), self._functions
        forward = isinstance(args, ForwardArgs)
        self._check((functions.lnc_forward_plan if forward else functions.lnc_backward_plan)(
            args, plan))
        return plan

    def run(self, args):
        """Puts the pass on its stream. Raises LibraryError."""
        functions = self._functions
        forward = isinstance(args, ForwardArgs)
        self._check((functions.lnc_forward if forward else functions.lnc_backward)(args))

    def _check(self, status):
        if status != 0:
            raise LibraryError(self._functions.lnc_last_error().decode())


def _checkout():
    return ROOT if (ROOT / "CMakeLists.txt").exists() else "the repository's checkout"


def library_path(backend):
    """LNC_LIBRARY, or the package's own, or where `make library` puts that of a backend. Raises LibraryError."""
    asked = os.environ.get("LNC_LIBRARY")
    if asked:
        if Path(asked).exists():
            return Path(asked)
        raise LibraryError(f"LNC_LIBRARY is {asked}, and there is no such file")
    path = OWN_LIBRARY
    if not path.exists() and _checkout() is ROOT:
        path = ROOT / "build" / backend / "lib" / "liblnc.so"
    if path.exists():
        return path
    raise LibraryError(f"the kernels are not built, there is no {path}: run 'pip install .' or "
                       f"'make library BACKEND={backend}' in {_checkout()}")


def binding_path(library):
    """The operators for PyTorch that belong to a library: a file beside it. Raises LibraryError."""
    path = library.with_name("liblnc_torch.so")
    if path.exists():
        return path
    raise LibraryError(f"the binding to PyTorch is not built, there is no {path}: with PyTorch in .venv-torch or in "
                       f"your own Python, 'make library' in {_checkout()} builds it")
