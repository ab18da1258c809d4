"""What stands in for Liger-Kernel while its tests run: its functions and modules, by layernorm_chapters."""

import importlib

import layernorm_chapters as lnc
import torch

REPOSITORY = "linkedin/Liger-Kernel"
FILES = ("test/transformers/test_layer_norm.py", "test/transformers/test_rms_norm.py",
         "test/transformers/test_fused_add_rms_norm.py")
OWN_BACKENDS = "compares two of Liger's own implementations"
OTHER_FILES = {
    "test/transformers/test_modulated_rms_norm.py": "a norm with a scale and a shift a row, which is none of ours",
    "test/transformers/test_cutedsl_rms_norm.py": OWN_BACKENDS,
    "test/transformers/test_cutedsl_rms_norm_fastpath.py": OWN_BACKENDS,
    "test/transformers/test_cutile_rms_norm.py": OWN_BACKENDS,
    "test/cutedsl/test_rms_norm.py": OWN_BACKENDS,
    "test/megatron/test_rms_norm.py": "a wrapper for Megatron around the RMS norm that is tested here",
}
LEFT_OUT = {"test_dtensor_rms_norm": "gathers a DTensor over several GPUs, which ours does not"}


def left_out_on_cpu(test, parameters):
    rows = parameters.get("batch_size", 1) * parameters.get("seq_len", 1)
    if test == "test_liger_layer_norm" and parameters["dtype"] == torch.bfloat16 and rows > 1:
        return "there PyTorch's own gradient of a bfloat16 weight is less exact than the test's tolerance"
    return None


def is_zero_centred(offset, weight):
    if offset not in (0.0, 1.0):
        raise NotImplementedError(f"a weight with an offset of {offset}; ours have 0 and 1")
    return offset == 1.0 and weight is not None


def layer_norm(X, W, B, eps):
    return lnc.layer_norm(X, X.shape[-1], W, B, eps)


def rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
    """Ours has one way to round, to float and back, and never writes into the gradient that it gets."""
    return lnc.rms_norm(X, X.shape[-1], W, eps, zero_centred=is_zero_centred(offset, W))


def fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=False):
    return lnc.fused_add_rms_norm(X, R, X.shape[-1], W, eps, zero_centred=is_zero_centred(offset, W))


class LayerNorm(lnc.LayerNorm):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__(hidden_size, eps)


class RMSNorm(lnc.RMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", in_place=True,
                 elementwise_affine=True):
        super().__init__(hidden_size, eps, elementwise_affine)
        self.offset = offset

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps, self.offset) if self.offset else super().forward(x)


class FusedAddRMSNorm(lnc.FusedAddRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", in_place=False):
        super().__init__(hidden_size, eps)
        self.offset = offset

    def forward(self, x, residual):
        if self.offset:
            return fused_add_rms_norm(x, residual, self.weight, self.eps, self.offset)
        return super().forward(x, residual)


def as_autograd_function(function):
    """A class whose apply() is the function."""
    return type(function.__name__, (), {"apply": staticmethod(function)})


def modules(checkout, backend):
    functions = {"liger_layer_norm": layer_norm, "liger_rms_norm": rms_norm,
                 "liger_fused_add_rms_norm": fused_add_rms_norm}
    return {
        "liger_kernel": {},
        "liger_kernel.ops": {"LigerLayerNormFunction": as_autograd_function(layer_norm),
                             "LigerRMSNormFunction": as_autograd_function(rms_norm),
                             "LigerFusedAddRMSNormFunction": as_autograd_function(fused_add_rms_norm)},
        "liger_kernel.transformers": {},
        "liger_kernel.transformers.functional": functions,
        "liger_kernel.transformers.layer_norm": {"LigerLayerNorm": LayerNorm},
        "liger_kernel.transformers.rms_norm": {"LigerRMSNorm": RMSNorm},
        "liger_kernel.transformers.fused_add_rms_norm": {"LigerFusedAddRMSNorm": FusedAddRMSNorm},
        "liger_kernel.utils": {"infer_device": lambda: backend},
    }


def prepare(backend):
    """Their helpers believe that a CPU has no bfloat16."""
    if backend == "cpu":
        importlib.import_module("test.utils").supports_bfloat16 = lambda: True
