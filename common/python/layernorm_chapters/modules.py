"""LayerNorm and RMSNorm in place of torch.nn's: the same arguments, parameters and state_dict."""

import torch

from .operators import layer_norm, rms_norm


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, by a chapter. memory_efficient and chapter: see layer_norm."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None,
                 dtype=None, *, memory_efficient=False, chapter=None):
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self.memory_efficient = memory_efficient
        self.chapter = chapter

    def forward(self, x):
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps,
                          memory_efficient=self.memory_efficient, chapter=self.chapter)

    def extra_repr(self):
        return super().extra_repr() + _own_arguments(self)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, by a chapter. memory_efficient and chapter: see layer_norm."""

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None,
                 *, memory_efficient=False, chapter=None):
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.memory_efficient = memory_efficient
        self.chapter = chapter

    def forward(self, x):
        return rms_norm(x, self.normalized_shape, self.weight, self.eps,
                        memory_efficient=self.memory_efficient, chapter=self.chapter)

    def extra_repr(self):
        return super().extra_repr() + _own_arguments(self)


def _own_arguments(module):
    return "".join(f", {name}={value!r}" for name, value in
                   (("memory_efficient", module.memory_efficient), ("chapter", module.chapter))
                   if value)
