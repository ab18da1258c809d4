"""A plug-in of pytest for run_peer_tests.py: the package that stands in for a peer's, and which of its tests run.

A shim, liger_shim.py or quack_shim.py, says:

    REPOSITORY                         owner/name
    FILES                              the test files that run, from the checkout's top
    OTHER_FILES                        {file: why it does not run}
    LEFT_OUT                           {test: why it does not run}
    left_out_on_cpu(test, parameters)  why it does not run on the CPU backend, or None
    modules(checkout, backend)         {module: {name: value}} of the package that stands in for theirs
    prepare(backend)                   what else has to be done before the test files are imported
"""

import functools
import importlib
import sys
import types

import torch
from layernorm_chapters import operators

# --- The package that stands in ---


def absent(owner, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{owner}.{name}")


class Absent:
    """A name of theirs that nothing stands in for. A test may import it, and fails where it calls it."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        return absent(self.name, name)

    def __call__(self, *arguments, **options):
        raise NotImplementedError(f"{self.name} has no counterpart in layernorm_chapters")


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        return absent(self.__name__, name)


def stand_in(modules):
    """Puts {module: {name: value}} where import finds it."""
    for name, values in modules.items():
        module = StandIn(name)
        module.__path__ = []
        vars(module).update(values)
        sys.modules[name] = module
    for name in modules:
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, sys.modules[name])


# --- A CPU in place of a GPU ---


def on_the_cpu(make):
    @functools.wraps(make)
    def made(*arguments, device=None, **options):
        return make(*arguments, device="cpu" if device == "cuda" else device, **options)
    return made


def do_without_gpu():
    """Tensors that are asked for on "cuda" are made on the CPU, and there is nothing to wait for."""
    for name in ("arange", "empty", "ones", "randn", "zeros"):
        setattr(torch, name, on_the_cpu(getattr(torch, name)))
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.get_device_capability = lambda *_: (9, 0)


# --- Which tests run ---


def why_left_out(item, shim, backend):
    """A sentence, or None."""
    name = item.originalname
    if name in shim.LEFT_OUT:
        return shim.LEFT_OUT[name]
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return shim.left_out_on_cpu(name, parameters) if backend == "cpu" else None


class Adapter:
    def __init__(self, shim, backend, checkout):
        self.shim, self.backend, self.checkout = shim, backend, checkout
        self.left_out = {}  # {(test, why): how many}

    def leave_out(self, test, why):
        self.left_out[test, why] = self.left_out.get((test, why), 0) + 1

    def pytest_collection_modifyitems(self, config, items):
        kept, dropped = [], []
        for item in items:
            why = why_left_out(item, self.shim, self.backend)
            (dropped if why else kept).append(item)
            if why:
                self.leave_out(item.originalname, why)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = kept

    def pytest_runtest_setup(self, item):
        torch.manual_seed(42)

    def pytest_sessionfinish(self, session):
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if session.exitstatus == 0 and not reporter.stats.get("passed"):
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        for report in terminalreporter.stats.get("skipped", []):
            test = report.nodeid.rpartition("::")[2].partition("[")[0]
            self.leave_out(test, "it skips itself: " + report.longrepr[2].removeprefix("Skipped: "))
        passed, failed = (sum(len(terminalreporter.stats.get(outcome, [])) for outcome in outcomes)
                          for outcomes in (("passed", "xpassed"), ("failed", "xfailed", "error")))
        lines = [f"{self.shim.REPOSITORY}: {passed} passed, {failed} failed"]
        lines += [f"  left out: {test} ({times}): {why}" for (test, why), times in self.left_out.items()]
        lines += [f"  left out: {file}: {why}" for file, why in self.shim.OTHER_FILES.items()
                  if (self.checkout / file).exists()]
        for line in lines:
            terminalreporter.write_line(line)


def pytest_addoption(parser):
    parser.addoption("--peer", choices=("liger", "quack"), required=True)


def pytest_configure(config):
    config.addinivalue_line("markers", "flaky: of a plug-in that runs a test again; here none is")
    shim = importlib.import_module(f"{__package__}.{config.getoption('--peer')}_shim")
    operators.load()
    backend = operators.library().backend
    if backend == "cpu":
        do_without_gpu()
    stand_in(shim.modules(config.rootpath, backend))
    shim.prepare(backend)
    config.pluginmanager.register(Adapter(shim, backend, config.rootpath))
