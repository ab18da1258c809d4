"""Each fault that chapters warn of, planted into a chapter: `make race` finds it on its own small problems.

plant.py compiles them.
"""

from typing import NamedTuple

import plant
import pytest
import race

REDUCE = "common/kernel/reduce.h"
HOPPER = "common/kernel/hopper.h"
CLUSTER_SUMS = "common/kernel/cluster_sums.h"
TAKEN = "reinterpret_cast<const Packed<T, kElements>*>(tensor + at)"


class Fault(NamedTuple):
    about: str
    chapter: str
    old: str
    new: str
    missing: str  # part of what is said to be missing
    lines: tuple[str, str]  # parts of the two lines, in any order
    file: str = "kernel.cu"
    missing_at: str = ""


LET_GO = "// [5] and what they stored is seen before the lock is seen free"
FAULTS = [
    Fault("block_sum has no first barrier", "fwd03",
          "  __syncthreads();  // every partial is written before one is read", "",
          "a __syncthreads() between them: they are in different warps",
          ("partial[warp] = value", "partial[lane]"), file=REDUCE),
    Fault("block_sum has no second barrier", "fwd03",
          "  __syncthreads();  // every partial is read before the next call writes one", "",
          "a __syncthreads() between them: they are in different warps",
          ("partial[warp] = value", "partial[lane]"), file=REDUCE),
    Fault("bwd08 lets go of its lock too early", "bwd08",
          "  __syncthreads();  // [4]", "  // [4]",
          "a __syncthreads() before the fence and the atomic by which thread 0", ("__ldcg(", "= part.dweight;"),
          missing_at="atomicExch(lock, kFreeAndFull)"),
    Fault("bwd08 lets go without a fence", "bwd08",
          f"    __threadfence();  {LET_GO}", "",
          "a __threadfence() before the atomic by which thread 0", ("__ldcg(", "= part.dweight;"),
          missing_at="atomicExch(lock, kFreeAndFull)"),
    Fault("bwd08 takes its lock without a fence", "bwd08",
          "    __threadfence();  // [2]", "",
          "a __threadfence() behind the atomic by which thread 0", ("__ldcg(", "= part.dweight;"),
          missing_at="atomicExch(lock, kHeld)"),
    Fault("bwd08's fence is its block's", "bwd08",
          f"    __threadfence();  {LET_GO}", "    __threadfence_block();",
          "in place of the __threadfence_block()", ("__ldcg(", "= part.dweight;"),
          missing_at="atomicExch(lock, kFreeAndFull)"),
    Fault("fwd09 waits for other blocks as if they were its own", "fwd09",
          "met[set].wait_at_cluster_scope(", "met[set].wait(",
          "a wait at cluster scope", ("remote_store_async(place", "moments[number]")),
    Fault("bwd13 waits for other blocks as if they were its own", "bwd13",
          "arrived[place].wait_at_cluster_scope(", "arrived[place].wait(",
          "a wait at cluster scope", ("remote_store_async(my_pair", "of_block[place][lane]"), file=CLUSTER_SUMS),
    Fault("fwd08 asks for a slot too early", "fwd08",
          "    float near = 0.0f;\n",
          "    if (threadIdx.x == 0) request(row + stages * stride, ring.stage);\n"
          "    float near = 0.0f;\n",
          "before the copy is asked for", ("bulk_load(", "slot[number]")),
    Fault("bwd13 asks for a slot too early", "bwd13",
          "    __syncthreads();  // [13]", "",
          "before the copy is asked for", ("bulk_load(", TAKEN)),
    *(Fault(f"{chapter} does not release the slot that it has read", chapter,
            fence, "", "behind its load", ("bulk_load(", taken))
      for chapter, fence, taken in (
          ("fwd08", "    ring.release();\n", "slot[number]"), ("fwd09", "    ring.release();\n", "slot[i]"),
          ("bwd12", "    ring.release();\n", TAKEN), ("bwd13", "    ring.release();\n", TAKEN),
          ("bwd15", "    ring.release();\n", "row + own.of(i)"), ("bwd16", "    ring.release();\n", TAKEN),
          ("bwd17", "    fence_proxy_async();\n", TAKEN), ("bwd18", "    ring.release();\n", TAKEN))),
    Fault("fwd09 has a set too few", "fwd09", "kSets = 4;", "kSets = 3;",
          "a remote_arrive() behind the read", ("remote_store_async(place", "moments[number]")),
    Fault("bwd13 has a place too few", "bwd13", "kExchanges = 4;", "kExchanges = 3;",
          "a remote_arrive() behind the read", ("remote_store_async(my_pair", "of_block[place][lane]"), file=CLUSTER_SUMS),
    Fault("bwd19 asks for a tile over one that is not read yet", "bwd19",
          "      wait_bulk_stores_read<0>();  // [5] dx of the tile before\n", "",
          "a wait_bulk_stores_read() of thread 0", ("bulk_store(", "bulk_load(")),
    Fault("bwd12's last sum does not wait", "bwd12",
          "wait() { grid_dependency_wait(); }", "wait() {}",
          "a grid_dependency_wait()", ("reinterpret_cast<Four*>(to + col)", "part[i] = *reinterpret_cast<const Part*>"), file=HOPPER),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.about.replace(" ", "_"))
def test_a_planted_fault_is_found_in_one_run(fault, build, programs, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMT_SCHEDULE", "forward")
    programs[fault.chapter]  # it is built
    program = plant.program_with(fault.chapter, fault.old, fault.new, build, tmp_path, fault.file)
    runs = race.Runs(fault.chapter, program, *race.Request([fault.chapter]).problems(fault.chapter))
    assert runs.races, "no race was found"
    texts = [" | ".join(" ".join(line["text"] for line in each[side]["lines"]) for side in ("first", "second"))
             for each in runs.races]
    found = [each for each, text in zip(runs.races, texts) if all(line in text for line in fault.lines)]
    assert found, "\n".join(texts)
    said = [each for each in found if fault.missing in each["missing"]]
    assert said, "\n".join(each["missing"] for each in found)
    if fault.missing_at:
        assert any(fault.missing_at in line["text"] for each in said for line in each["missing_at"]), said


def test_what_fwd09_s_messages_do_not_say_is_a_race_under_strict(programs):
    problems = race.Request(["fwd09"]).problems("fwd09")
    runs = race.Runs("fwd09", programs["fwd09"], *problems)
    assert runs.is_clean and runs.passed_over
    assert f", {len(runs.passed_over)} pair" in runs.summary() and "ordered only by a convention" in runs.summary()
    strict = race.Runs("fwd09", programs["fwd09"], *problems, strict=True)
    assert [each["missing"] for each in strict.races] == [each["missing"] for each in runs.passed_over]
    assert any("a remote_arrive()" in each["missing"] for each in strict.races)
