"""digits.py with PyTorch, on the library's device."""

import json
import tempfile
import unittest
from pathlib import Path

import pytest

from common.tools.pytest_fixtures import import_torch

torch = import_torch()
from common.bench.compare_peers import Journal  # noqa: E402
from common.bench.peer_providers import own_providers  # noqa: E402
from common.campaign import digits  # noqa: E402
from common.results.problems import Problem  # noqa: E402

LIBRARY, DEVICE = None, "cpu"  # those of --build


@pytest.fixture(scope="module", autouse=True)
def of_the_build(library, torch_device):
    global LIBRARY, DEVICE
    LIBRARY, DEVICE = library, torch_device


class Digits(unittest.TestCase):
    def test_ours_keeps_what_two_sums_lose(self):
        loads = {provider.name: provider.load for provider in own_providers(LIBRARY, DEVICE)}
        prepares = {"two-sums": digits.two_sums, **{name: loads[name]() for name in ("dispatch", "lib_fwd_narrow")}}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "digits.jsonl"
            notes = digits.measure(prepares, [Problem("f32", 20, 600)], [1.0, 100.0], {"device": "made up"}, Journal(file),
                                   DEVICE)
            records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        errors = {(record["provider"], record["problem"]["options"]["offset"]): record["rel_err"] for record in records}
        self.assertLess(errors["dispatch", 100.0], 1e-6)
        self.assertGreater(errors["two-sums", 100.0], 1e-4)
        self.assertLess(errors["two-sums", 1.0], 1e-6)
        self.assertEqual([name for name, _ in notes], ["lib_fwd_narrow"])  # it takes 512 columns
        self.assertTrue(all(record["device"] == "made up" for record in records))
