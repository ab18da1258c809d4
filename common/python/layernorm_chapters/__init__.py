"""The chapters in PyTorch: LayerNorm and RMSNorm in place of torch.nn's, and functions.

    from layernorm_chapters import LayerNorm
    norm = LayerNorm(4096, device="cuda", dtype=torch.bfloat16)
    norm(x).sum().backward()

`make library` builds what this calls. Without PyTorch there is layernorm_chapters.library alone, the C interface.
"""

from .library import LibraryError
from .version import version

try:
    from .modules import LayerNorm, RMSNorm
    from .operators import chapters, layer_norm, rms_norm
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise

    def __getattr__(name):
        if name in __all__:
            raise ModuleNotFoundError(f"layernorm_chapters.{name} needs PyTorch, and there is none", name="torch")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

__version__ = version()
__all__ = ["LayerNorm", "LibraryError", "RMSNorm", "chapters", "layer_norm", "rms_norm"]
