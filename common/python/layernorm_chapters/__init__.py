"""The library in PyTorch: LayerNorm and RMSNorm in place of torch.nn's, functions, and kernels behind PyTorch's own.

    import layernorm_chapters
    layernorm_chapters.enable()     # every LayerNorm and RMSNorm of this process, with no line of a model changed

    norm = layernorm_chapters.LayerNorm(4096, device="cuda", dtype=torch.bfloat16)   # or one at a time
    norm(x).sum().backward()

Without PyTorch there is layernorm_chapters.library alone, the C interface.
"""

from .library import LibraryError
from .version import version

try:
    from .decompositions import decompositions
    from .modules import FusedAddLayerNorm, FusedAddRMSNorm, LayerNorm, RMSNorm
    from .operators import (
        batch_invariant,
        chapters,
        disable,
        enable,
        enabled,
        fused_add_layer_norm,
        fused_add_rms_norm,
        layer_norm,
        rms_norm,
    )
    from .replace import replace_norms
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise

    def __getattr__(name):
        if name in __all__:
            raise ModuleNotFoundError(f"layernorm_chapters.{name} needs PyTorch, and there is none", name="torch")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

__version__ = version()
__all__ = ["FusedAddLayerNorm", "FusedAddRMSNorm", "LayerNorm", "LibraryError", "RMSNorm", "batch_invariant",
           "chapters", "decompositions", "disable", "enable", "enabled", "fused_add_layer_norm", "fused_add_rms_norm",
           "layer_norm", "replace_norms", "rms_norm"]
