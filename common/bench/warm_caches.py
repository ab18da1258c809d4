"""Compiles what compare_peers.py will time, in processes beside each other, so that a GPU's time goes to measuring.

torch.compile, Triton and QuACK keep what they compiled on disk, where the process that measures finds it. Each
worker runs every contender once on the problem itself, untimed. Fewer rows would not do: torch.compile writes the
shape into its kernels, Liger's backward pass its rows a program, and Triton asks whether a number is a multiple of 16.
What is chosen by timing, a busy GPU must not choose: a worker keeps no such choice.
"""

import multiprocessing
import os
import time

KEPT = {}  # of a worker: what its contenders' load() returned, by name


def warm(problems, work, workers, seconds):
    """Calls work(problem) for each problem, in `workers` processes, for `seconds` at most; how many were done.

    A process that dies takes its problem with it, and another one goes on with the next.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each worker would start one for every core
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    taken, done = context.Value("i", 0), context.Value("i", 0)

    def start():
        process = context.Process(target=take_turns, args=(problems, work, taken, done))
        process.start()
        return process

    processes, lives = [start() for _ in range(min(workers, len(problems)))], 2 * workers
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            for at, process in enumerate(processes):
                if process.exitcode and taken.value < len(problems) and lives:
                    processes[at], lives = start(), lives - 1
            if all(process.exitcode is not None for process in processes):
                break
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return done.value


def take_turns(problems, work, taken, done):
    """A worker's life: the next problem that nobody has taken, until there is none."""
    while True:
        with taken.get_lock():
            at = taken.value
            taken.value += 1
        if at >= len(problems):
            return
        work(problems[at])
        with done.get_lock():
            done.value += 1


def load(provider):
    try:
        return provider.load()
    except Exception:  # the process that measures lists it
        return None


def takes(provider, direction, problem):
    return problem.kind in provider.kinds and direction in provider.directions and not provider.from_y


class Compile:
    """The work: each of these peers once in each direction."""

    def __init__(self, names, directions, device="cuda"):
        self.names, self.directions, self.device = names, directions, device

    def __call__(self, problem):
        from common.bench import peer_checks, peer_providers

        providers = [provider for provider in peer_providers.PEERS if provider.name in self.names]
        for provider in providers:
            if provider.name not in KEPT:
                KEPT[provider.name] = load(provider)
        peer_providers.choose_without_timing()
        inputs = peer_providers.unchecked_inputs(problem, self.device)
        for provider in providers:
            for direction in self.directions:
                if KEPT[provider.name] and takes(provider, direction, problem):
                    self.compile(KEPT[provider.name], direction, inputs)
        del inputs
        peer_checks.free_memory()

    def compile(self, prepare, direction, inputs):
        from common.bench import peer_checks

        try:
            prepare(direction, inputs)()
        except Exception:  # the process that measures will say so
            pass
        peer_checks.synchronize()  # raises where the device is lost to this process: it ends, another one goes on
