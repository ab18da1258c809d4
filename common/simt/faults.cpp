#include "common/simt/faults.h"

#include <algorithm>
#include <map>

#include "common/simt/gpu.h"
#include "common/simt/places.h"
#include "common/simt/words.h"

namespace simt {
namespace {

std::string operation_of(const Thread& thread) {
  return "at " + to_string(thread.op, thread.mask) + ", " + to_string(thread.where);
}

// Where a thread that could run has been stopped.
std::string spins(const Thread& thread) {
  if (thread.interrupted_at != nullptr) {
    std::string line = line_at(thread.interrupted_at);
    if (line.empty()) line = line_at(thread.interrupted_before);
    return line.empty() ? "running" : "running at " + line;
  }
  if (thread.where.line() == 0) return "can run";
  if (thread.polled == nullptr) return "running at " + line_at(thread.where);
  return "spinning on " + memory_at(thread.polled) +
         (thread.polled == thread.loaded_word ? word_at(thread.polled) : "") + " at " +
         line_at(thread.where);
}

}  // namespace

Fault Faults::of_block(const std::string& what) const {
  std::map<std::string, std::vector<unsigned>> threads_at;
  for (const Thread& thread : threads_) threads_at[place_of(thread)].push_back(thread.number);
  const uint3 index = index_of(block_, launch_.grid);
  const std::string gpu = gpu_here == nullptr ? "" : ", GPU " + std::to_string(gpu_here->number);
  std::string text = "kernel " + kernel_name(launch_) + gpu + ", block " +
                     to_string(dim3(index.x, index.y, index.z)) + ": " + what;
  for (const auto& [place, threads] : threads_at)
    text += "\n  " + to_string(threads) + ": " + place;
  return Fault(text);
}

Fault Faults::of(const Thread& thread, const std::string& does) const {
  return of_block("thread " + std::to_string(thread.number) + " (lane " +
                  std::to_string(thread.lane()) + ") " + does + ", " + operation_of(thread));
}

std::string Faults::place_of(const Thread& thread) const {
  if (thread.state == Thread::State::Exited) return "exited";
  if (thread.state == Thread::State::Runnable) return spins(thread);
  if (thread.op != Op::BarrierWait) return operation_of(thread);
  return operation_of(thread) + ", which " + copies_.missing(thread.object);
}

std::string Faults::what_is_missing() const {
  const auto any_at = [&](Op op) {
    return std::any_of(threads_.begin(), threads_.end(),
                       [op](const Thread& thread) { return thread.waits_at(op); });
  };
  if (any_at(Op::BarrierWait)) return "a thread waits at a Barrier for what never comes";
  if (any_at(Op::BlockBarrier)) return "not every thread of the block reaches __syncthreads()";
  if (any_at(Op::ClusterWait)) return "not every thread of the cluster reaches cluster_sync()";
  return "a warp operation waits for lanes of its mask that never come to it";
}

}  // namespace simt
