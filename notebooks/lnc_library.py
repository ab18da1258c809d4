"""The C library (common/library/lnc.h) on PyTorch tensors, by ctypes: what compare_peers.py times.

    library = Library(path)                                  # `make library` prints the path
    library.chapters()                                       # [Chapter(id="fwd06", …), …]
    call = library.forward("fwd06", x, weight, bias, 1e-5)   # None for the dispatch's choice
    call.run()                                               # call.chapter, call.outputs

A call owns its outputs and its workspace, so that run() is one C call and nothing else. The tensors
are contiguous; their device is the library's.
"""

import ctypes
from typing import NamedTuple

ABI = 1
KINDS = {"layer": 0, "rms": 1}
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}


class LibraryError(Exception):
    """The library is not there, is of another version, or refused a call; the message says why."""


class Problem(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("dtype", ctypes.c_int), ("parameter_dtype", ctypes.c_int),
                ("rows", ctypes.c_int64), ("cols", ctypes.c_int64), ("eps", ctypes.c_float)]


def arguments(*pointers):
    """The fields of lnc.h's argument structs: chapter, problem, pointers, workspace, stream."""
    before = [("chapter", ctypes.c_char_p), ("problem", Problem)]
    after = [("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p)]
    return before + [(name, ctypes.c_void_p) for name in pointers] + after


class Forward(ctypes.Structure):
    _fields_ = arguments("x", "weight", "bias", "y", "mean", "rstd")


class Backward(ctypes.Structure):
    _fields_ = arguments("dy", "x", "y", "weight", "bias", "mean", "rstd", "dx", "dweight", "dbias")


class Plan(ctypes.Structure):
    _fields_ = [("chapter", ctypes.c_char_p), ("workspace_bytes", ctypes.c_size_t)]


class Entry(ctypes.Structure):
    _fields_ = [("id", ctypes.c_char_p), ("title", ctypes.c_char_p), ("backward", ctypes.c_int),
                ("from_y", ctypes.c_int), ("deterministic", ctypes.c_int)]


class Chapter(NamedTuple):
    id: str  # "bwd07"
    direction: str  # "forward" or "backward"
    from_y: bool  # a backward pass that is given y in place of x and mean


class Call:
    """A pass that is ready to run: its arguments, and the tensors that they point to."""

    def __init__(self, library, name, args, tensors, outputs):
        import torch

        self.library, self.name, self.args = library, name, args
        self.outputs = outputs  # (y,) or (dx, dweight, dbias); dbias is None for rms
        plan = Plan()
        library.call(f"{name}_plan", ctypes.byref(args), ctypes.byref(plan))
        self.chapter = plan.chapter.decode()
        device = tensors[0].device
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
        args.workspace, args.workspace_bytes = workspace.data_ptr(), plan.workspace_bytes
        if device.type == "cuda":
            args.stream = torch.cuda.current_stream(device).cuda_stream
        self.kept = (*tensors, workspace)

    def run(self):
        self.library.call(self.name, ctypes.byref(self.args))
        return self.outputs


class Library:
    def __init__(self, path):
        try:
            self.functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise LibraryError(f"cannot load {path}: {error}; `make library` builds it") from error
        self.functions.lnc_last_error.restype = ctypes.c_char_p
        self.functions.lnc_backend.restype = ctypes.c_char_p
        self.functions.lnc_list.restype = ctypes.c_size_t
        abi = self.functions.lnc_abi()
        if abi != ABI:
            raise LibraryError(f"{path} has version {abi} of lnc.h, and this script knows {ABI}; `make library`")

    def call(self, name, *arguments):
        if getattr(self.functions, f"lnc_{name}")(*arguments):
            raise LibraryError(self.functions.lnc_last_error().decode())

    @property
    def backend(self):
        return self.functions.lnc_backend().decode()

    def chapters(self):
        count = self.functions.lnc_list(None, ctypes.c_size_t(0))
        entries = (Entry * count)()
        self.functions.lnc_list(entries, ctypes.c_size_t(count))
        return [Chapter(entry.id.decode(), "backward" if entry.backward else "forward", bool(entry.from_y))
                for entry in entries]

    def forward(self, chapter, x, weight, bias, eps, kind="layer"):
        import torch

        y = poisoned(x)
        mean, rstd = (torch.empty(len(x), device=x.device) for _ in range(2))
        tensors = {"x": x, "weight": weight, "bias": bias, "y": y, "mean": mean, "rstd": rstd}
        return self.prepare("forward", Forward, chapter, x, weight, eps, kind, tensors, (y,))

    def backward(self, chapter, dy, x, weight, bias, mean, rstd, eps, kind="layer", y=None):
        """`y` in place of x and mean: the gradients start from the forward pass's output."""
        dx, dweight = poisoned(dy), poisoned(weight)
        dbias = poisoned(weight) if kind == "layer" else None
        source = {"x": x, "mean": mean} if y is None else {"y": y}
        tensors = {**source, "dy": dy, "weight": weight, "bias": bias, "rstd": rstd, "dx": dx,
                   "dweight": dweight, "dbias": dbias}
        return self.prepare("backward", Backward, chapter, dy, weight, eps, kind, tensors, (dx, dweight, dbias))

    def prepare(self, name, struct, chapter, x, weight, eps, kind, tensors, outputs):
        args = struct()
        args.chapter = chapter.encode() if chapter else None
        rows, cols = x.shape
        args.problem = Problem(KINDS[kind], dtype_of(x), dtype_of(weight), rows, cols, eps)
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        for field, tensor in tensors.items():
            setattr(args, field, tensor.data_ptr())
        return Call(self, name, args, tuple(tensors.values()), outputs)


def dtype_of(tensor):
    return DTYPES[str(tensor.dtype).removeprefix("torch.")]


def poisoned(like):
    """An output's memory, full of NaN, so that nothing stale passes for a result."""
    import torch

    return torch.full_like(like, float("nan"))
