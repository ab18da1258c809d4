#!/usr/bin/env python3
"""A norm over columns that are sharded over GPUs, as PyTorch does it: gather the slices, normalise, keep one's own.

    python3 -m common.bench.torch_gather --gpus 2 --json FILE     appends a record for each problem and pass

What fwd17 and bwd20 are compared with: `all_gather_into_tensor` of x (and of dy), `native_layer_norm` over whole rows
on every GPU, and a slice of the result. A time is that of the slowest GPU, a median of launches with a cold L2;
`peak_bytes` is the memory that a pass takes beside its inputs and outputs, on one GPU.
"""

import argparse
import datetime
import json
import os
import statistics

import torch
import torch.distributed as dist
import torch.multiprocessing

ROWS, COLS = (64, 1024, 4096, 16384), 4096  # of each GPU
SAMPLES, WARM_UP, FLUSH = 60, 10, 256 << 20


def gathered(part, gpus):
    """The whole rows of [rows, cols] slices."""
    rows, cols = part.shape
    all_parts = part.new_empty(gpus * rows, cols)
    dist.all_gather_into_tensor(all_parts, part)
    return all_parts.view(gpus, rows, cols).transpose(0, 1).reshape(rows, gpus * cols)


def passes(x, dy, weight, bias, rank, gpus):
    """{pass: what it calls}; weight and bias are whole on every GPU."""
    own = slice(rank * COLS, (rank + 1) * COLS)

    def forward():
        y, mean, rstd = torch.native_layer_norm(gathered(x, gpus), [gpus * COLS], weight, bias, 1e-5)
        return y[:, own].contiguous(), mean, rstd

    _, mean, rstd = forward()

    def backward():
        dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
            gathered(dy, gpus), gathered(x, gpus), [gpus * COLS], mean, rstd, weight, bias, [True, True, True])
        return dx[:, own].contiguous(), dweight[own], dbias[own]

    return {"forward": forward, "backward": backward}


def time_us(call, flushed, flag):
    """A sample of one GPU: all start when the last has flushed its L2."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(4):
        flushed.zero_()
    dist.all_reduce(flag)
    start.record()
    call()
    stop.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(stop)


def work(rank, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=options.gpus, timeout=datetime.timedelta(seconds=60))
    flushed, flag = torch.empty(FLUSH, dtype=torch.uint8, device="cuda"), torch.zeros(1, device="cuda")
    weight = torch.ones(options.gpus * COLS, dtype=torch.bfloat16, device="cuda")
    for rows in ROWS:
        x, dy = (torch.randn(rows, COLS, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for name, call in passes(x, dy, weight, torch.zeros_like(weight), rank, options.gpus).items():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            results = call()
            torch.cuda.synchronize()
            outputs = sum(result.untyped_storage().nbytes() for result in results)
            peak = torch.cuda.max_memory_allocated() - before - outputs
            del results
            samples = []
            for _ in range(WARM_UP + SAMPLES):
                slowest = torch.tensor(time_us(call, flushed, flag), device="cuda")
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                samples.append(slowest.item())
            if rank == 0:
                record = {"provider": "torch gather", "direction": name, "dtype": "bf16", "rows": rows,
                          "cols": options.gpus * COLS, "gpus": options.gpus,
                          "median_us": round(statistics.median(samples[WARM_UP:]), 2), "samples": SAMPLES,
                          "peak_bytes": peak, "device": torch.cuda.get_device_name(),
                          "packages": {"torch": torch.__version__}, "date": datetime.date.today().isoformat(),
                          "commit": os.environ.get("LNC_COMMIT", "unknown")}
                print(json.dumps(record), flush=True)
                if options.json:
                    with open(options.json, "a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count(), help="how many; default: all")
    parser.add_argument("--json", help="append the records to this file")
    options = parser.parse_args()
    if not 1 <= options.gpus <= torch.cuda.device_count():
        parser.error(f"--gpus {options.gpus}: this machine has {torch.cuda.device_count()} GPUs")
    torch.multiprocessing.spawn(work, (options,), nprocs=options.gpus)


if __name__ == "__main__":
    main()
