"""LayerNorm and RMSNorm in place of torch.nn's: the same arguments, parameters and state_dict; and with a residual."""

import torch

from .operators import fused_add_layer_norm, fused_add_rms_norm, layer_norm, rms_norm


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, by the library's kernels.

    memory_efficient, zero_centred, chapter, batch_invariant: see layer_norm.
    """

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None,
                 dtype=None, *, memory_efficient=False, zero_centred=False, chapter=None, batch_invariant=None):
        self.zero_centred = zero_centred  # which reset_parameters() asks
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self.memory_efficient = memory_efficient
        self.chapter = chapter
        self.batch_invariant = batch_invariant

    def reset_parameters(self):
        super().reset_parameters()
        if self.zero_centred and self.weight is not None:
            torch.nn.init.zeros_(self.weight)

    def forward(self, input):
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps,
                          memory_efficient=self.memory_efficient, zero_centred=self.zero_centred, chapter=self.chapter,
                          batch_invariant=self.batch_invariant)

    def extra_repr(self):
        return super().extra_repr() + _own_arguments(self)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, by the library's kernels.

    memory_efficient, zero_centred, chapter, batch_invariant: see layer_norm.
    """

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None,
                 *, memory_efficient=False, zero_centred=False, chapter=None, batch_invariant=None):
        self.zero_centred = zero_centred  # which reset_parameters() asks
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.memory_efficient = memory_efficient
        self.chapter = chapter
        self.batch_invariant = batch_invariant

    def reset_parameters(self):
        super().reset_parameters()
        if self.zero_centred and self.weight is not None:
            torch.nn.init.zeros_(self.weight)

    def forward(self, input):
        return rms_norm(input, self.normalized_shape, self.weight, self.eps,
                        memory_efficient=self.memory_efficient, zero_centred=self.zero_centred, chapter=self.chapter,
                        batch_invariant=self.batch_invariant)

    def extra_repr(self):
        return super().extra_repr() + _own_arguments(self)


def _without_memory_efficient(options):
    if options.get("memory_efficient"):
        raise ValueError("memory_efficient=True keeps the result in place of the input; a fused pass keeps the sum, "
                         "which it returns in any case: leave it out")
    return options


class FusedAddLayerNorm(LayerNorm):
    """norm(x, residual) -> (LayerNorm of their sum, the sum): a prenorm block's addition and its norm in one kernel.
    dropout drops elements of x, while the module trains. The state_dict is LayerNorm's."""

    def __init__(self, *arguments, dropout=0.0, residual_in_fp32=False, **options):
        super().__init__(*arguments, **_without_memory_efficient(options))
        self.dropout = dropout
        self.residual_in_fp32 = residual_in_fp32

    def forward(self, x, residual=None):
        return fused_add_layer_norm(x, residual, self.normalized_shape, self.weight, self.bias, self.eps,
                                    dropout=self.dropout if self.training else 0.0,
                                    residual_in_fp32=self.residual_in_fp32, zero_centred=self.zero_centred,
                                    chapter=self.chapter, batch_invariant=self.batch_invariant)


class FusedAddRMSNorm(RMSNorm):
    """norm(x, residual) -> (RMSNorm of their sum, the sum); else like FusedAddLayerNorm."""

    def __init__(self, *arguments, dropout=0.0, residual_in_fp32=False, **options):
        super().__init__(*arguments, **_without_memory_efficient(options))
        self.dropout = dropout
        self.residual_in_fp32 = residual_in_fp32

    def forward(self, x, residual=None):
        return fused_add_rms_norm(x, residual, self.normalized_shape, self.weight, self.eps,
                                  dropout=self.dropout if self.training else 0.0,
                                  residual_in_fp32=self.residual_in_fp32, zero_centred=self.zero_centred,
                                  chapter=self.chapter, batch_invariant=self.batch_invariant)


def _own_arguments(module):
    """The arguments that torch.nn's classes do not have, as far as they are not as usual."""
    return "".join(f", {name}={value!r}" for name, value in
                   (("memory_efficient", module.memory_efficient), ("zero_centred", module.zero_centred),
                    ("chapter", module.chapter), ("batch_invariant", module.batch_invariant),
                    ("dropout", getattr(module, "dropout", 0.0)),
                    ("residual_in_fp32", getattr(module, "residual_in_fp32", False)))
                   if value)
