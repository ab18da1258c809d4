"""The chapters in PyTorch: LayerNorm and RMSNorm in place of torch.nn's, and functions.

    from layernorm_chapters import LayerNorm
    norm = LayerNorm(4096, device="cuda", dtype=torch.bfloat16)
    norm(x).sum().backward()

`make library` builds what this calls.
"""

from .library import LibraryError
from .modules import LayerNorm, RMSNorm
from .operators import chapters, layer_norm, rms_norm

__all__ = ["LayerNorm", "LibraryError", "RMSNorm", "chapters", "layer_norm", "rms_norm"]
