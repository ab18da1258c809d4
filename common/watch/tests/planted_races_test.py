"""Each fault that chapters warn of, planted into a lesson, or into a kernel of the library where only that has the line:
`make race` finds it on its own small problems.

plant.py compiles them.
"""

import re
from typing import NamedTuple

import pytest

from common.watch import plant, race

REDUCE = "common/kernel/reduce.h"
HOPPER = "common/kernel/hopper.h"
CLUSTER_SUMS = "common/kernel/cluster_sums.h"
CLUSTER_BACKWARD = "common/kernel/cluster_backward.h"
TAKEN = "reinterpret_cast<const Packed<T, kElements>*>(tensor + at)"


class Fault(NamedTuple):
    about: str
    kernel: str
    place: str  # as plant.with_fault takes it
    new: str
    missing: str  # part of what is said to be missing
    lines: tuple[str, str]  # parts of the two lines, in any order
    file: str = "kernel.cu"  # of the repository, if it is not the kernel's own
    missing_at: str = ""


BUFFERED = ("__ldcg(", "from_floats<T>(values)")  # a sum of bwd08's buffers is read, and is stored
FENCE = "fence_proxy_async();"
EARLY_REQUEST = "if (threadIdx.x == 0) request_row(a, row + kStages * stride, slot, full[stage]);"
FAULTS = [
    Fault("block_sum has no first barrier", "fwd03",
          "partial[warp] = value; … __syncthreads();", "",
          "a __syncthreads() between them: they are in different warps",
          ("partial[warp] = value", "partial[lane]"), file=REDUCE),
    Fault("block_sum has no second barrier", "fwd03",
          "partial[lane] … __syncthreads();", "",
          "a __syncthreads() between them: they are in different warps",
          ("partial[warp] = value", "partial[lane]"), file=REDUCE),
    Fault("bwd08 lets go of its lock too early", "bwd08",
          "release(int* lock) … __syncthreads();", "",
          "a __syncthreads() before the fence and the atomic by which thread 0", BUFFERED,
          missing_at="atomicExch(lock, kFreeWithSums)"),
    Fault("bwd08 lets go without a fence", "bwd08",
          "release(int* lock) … __threadfence();", "",
          "a __threadfence() before the atomic by which thread 0", BUFFERED,
          missing_at="atomicExch(lock, kFreeWithSums)"),
    Fault("bwd08 takes its lock without a fence", "bwd08",
          "acquire(int* lock) … __threadfence();", "",
          "a __threadfence() after the atomic by which thread 0", BUFFERED,
          missing_at="atomicExch(lock, kHeld)"),
    Fault("bwd08's fence is its block's", "bwd08",
          "release(int* lock) … __threadfence();", "__threadfence_block();",
          "in place of the __threadfence_block()", BUFFERED,
          missing_at="atomicExch(lock, kFreeWithSums)"),
    Fault("fwd09 waits for other blocks as if they were its own", "fwd09",
          "arrived.wait_at_cluster_scope(0)", "arrived.wait(0)",
          "a wait at cluster scope", ("remote_store_async(&received[piece]", "received[p]")),
    Fault("bwd13 waits for other blocks as if they were its own", "bwd13",
          "arrived[slot].wait_at_cluster_scope(", "arrived[slot].wait(",
          "a wait at cluster scope", ("remote_store_async(&from_block[slot]", "from_block[slot][lane]")),
    Fault("fwd08 asks for a slot too early", "fwd08",
          FENCE, f"{FENCE} {EARLY_REQUEST}",
          "before the copy is requested", ("bulk_load(", "slot[at]")),
    Fault("bwd13 asks for a slot too early", "bwd13",
          f"{FENCE} … __syncthreads();", "",
          "before the copy is requested", ("bulk_load(", "ring[slot].x[at(i)]")),
    *(Fault(f"{kernel} does not release the slot that it has read", kernel,
            fence, "", "after its load", ("bulk_load(", taken), *file)
      for kernel, fence, taken, *file in (
          ("fwd08", FENCE, "slot[at]"),
          ("fwd18", FENCE, "load_vector<kElements>(x, col)"),
          ("bwd12", FENCE, TAKEN),
          ("bwd13", FENCE, "ring[slot].x[at(i)]"),
          ("bwd15", FENCE, "load_vector<kElements>(slot, place)"),
          ("lib_fwd_cluster_ring", "ring.release();", "slot[i]"),
          ("lib_bwd_unaligned", "ring.release();", "row + own.of(i)"),
          ("lib_bwd_ring", "ring.release();", TAKEN),
          ("lib_bwd_one_shot", FENCE, TAKEN),
          ("lib_bwd_cluster_unaligned", "ring.release();", TAKEN, CLUSTER_BACKWARD))),
    Fault("one lane of fwd18 says empty for a warp that still reads", "fwd18",
          "__syncwarp();", "", "before the copy is requested", ("bulk_load(", "load_vector<kElements>(x, col)")),
    Fault("bwd13 has a slot too few", "bwd13", "kSlots = 4;", "kSlots = 3;",
          "a remote_arrive() after the read", ("remote_store_async(&from_block[slot]", "from_block[slot][lane]")),
    Fault("bwd19 asks for a tile over one that is not read yet", "bwd19",
          "dy_tile(dy, … wait_bulk_stores_read<0>();", "",
          "a wait_bulk_stores_read() of thread 0", ("bulk_store(", "bulk_load(")),
    Fault("bwd12's last sum does not wait", "bwd12",
          "grid_dependency_wait();", "",
          "a grid_dependency_wait()", ("from_floats<T>(values)", "partials[int64_t{block} * 2 * cols + col]")),
    Fault("lib_fwd_cluster_ring waits for other blocks as if they were its own", "lib_fwd_cluster_ring",
          "met[set].wait_at_cluster_scope(", "met[set].wait(",
          "a wait at cluster scope", ("remote_store_async(place", "moments[number]")),
    Fault("lib_bwd_cluster waits for other blocks as if they were its own", "lib_bwd_cluster",
          "arrived[place].wait_at_cluster_scope(", "arrived[place].wait(",
          "a wait at cluster scope", ("remote_store_async(my_pair", "of_block[place][lane]"), file=CLUSTER_SUMS),
    Fault("lib_bwd_cluster asks for a slot too early", "lib_bwd_cluster",
          "ring.release(); … __syncthreads();", "",
          "before the copy is requested", ("bulk_load(", TAKEN), file=CLUSTER_BACKWARD),
    Fault("lib_fwd_cluster_ring has a set too few", "lib_fwd_cluster_ring", "kSets = 4;", "kSets = 3;",
          "a remote_arrive() after the read", ("remote_store_async(place", "moments[number]")),
    Fault("lib_bwd_cluster has a place too few", "lib_bwd_cluster", "kExchanges = 4;", "kExchanges = 3;",
          "a remote_arrive() after the read", ("remote_store_async(my_pair", "of_block[place][lane]"), file=CLUSTER_SUMS),
    Fault("lib_bwd_ring's last sum does not wait", "lib_bwd_ring",
          "wait() { grid_dependency_wait(); }", "wait() {}",
          "a grid_dependency_wait()", ("reinterpret_cast<Four*>(to + col)", "part[i] = *reinterpret_cast<const Part*>"), file=HOPPER),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.about.replace(" ", "_"))
def test_a_planted_fault_is_found_in_one_run(fault, build, programs, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMT_SCHEDULE", "forward")
    kernel = race.registration_of(programs[fault.kernel])
    program = plant.program_with(fault.kernel, fault.place, fault.new, build, tmp_path, fault.file)
    runs = race.Runs(fault.kernel, program, race.watch_all(program, *race.Request([fault.kernel]).problems(kernel)))
    assert runs.races, "no race was found"
    texts = [" | ".join(" ".join(line["text"] for line in each[side]["lines"]) for side in ("first", "second"))
             for each in runs.races]
    found = [each for each, text in zip(runs.races, texts) if all(line in text for line in fault.lines)]
    assert found, "\n".join(texts)
    said = [each for each in found if fault.missing in each["missing"]]
    assert said, "\n".join(each["missing"] for each in found)
    if fault.missing_at:
        assert any(fault.missing_at in line["text"] for each in said for line in each["missing_at"]), said


RING = "lib_fwd_cluster_ring"


def test_what_the_messages_of_the_cluster_s_ring_do_not_say_is_a_race_under_strict(programs):
    problems = race.Request([RING]).problems(race.registration_of(programs[RING]))
    runs = race.Runs(RING, programs[RING], race.watch_all(programs[RING], *problems))
    assert runs.is_clean and runs.passed_over
    assert f", {len(runs.passed_over)} pair" in runs.summary() and "ordered only by a convention" in runs.summary()
    strict = race.Runs(RING, programs[RING], race.watch_all(programs[RING], *problems), strict=True)
    assert [each["missing"] for each in strict.races] == [each["missing"] for each in runs.passed_over]
    assert any("a remote_arrive()" in each["missing"] for each in strict.races)


def test_without_its_empty_barriers_fwd18_s_producer_is_stopped(build, programs, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMT_SCHEDULE", "forward")
    kernel = race.registration_of(programs["fwd18"])
    program = plant.program_with("fwd18", "empty[slot].wait((n / slots + 1) % 2);", "", build, tmp_path)
    runs = race.Runs("fwd18", program, race.watch_all(program, *race.Request(["fwd18"]).problems(kernel)))
    assert any("arrives at a Barrier that has all arrivals of its phase" in fault for fault in runs.faults), runs.faults


def test_code_that_has_moved_away_is_named_in_a_sentence():
    source = "f();  // g() comes\ng();\nf();\nh();\n"
    assert plant.with_fault(source, "h();", "i();") == "f();  // g() comes\ng();\nf();\ni();\n"
    assert plant.with_fault(source, "g(); … f();", "") == "f();  // g() comes\ng();\n\nh();\n"
    for place, words in (("f();", "'f();' is in there 2 times, not once"), ("j(); … f();", "'j();' is in there 0 times"),
                         ("h(); … f();", "after 'h();' comes no 'f();'")):
        with pytest.raises(LookupError, match=f"^the source has changed: {re.escape(words)}"):
            plant.with_fault(source, place, "")
