"""Where the tensors of the package's tests are, and a group of one process."""

import pytest

from common.tools.pytest_fixtures import import_torch


@pytest.fixture
def device(torch_device):
    """Where the library's tensors are: "cpu" or "cuda"."""
    from layernorm_chapters import operators

    import_torch().manual_seed(11)
    operators.load()
    return torch_device


@pytest.fixture
def mesh(device):
    distributed = import_torch().distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this PyTorch was built without torch.distributed, or without gloo")
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield distributed.device_mesh.init_device_mesh(device, (1,))
    finally:
        distributed.destroy_process_group()
