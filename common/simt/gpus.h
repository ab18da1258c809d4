// Several GPUs in one process, whose kernels reach each other's memory while they run.
//
// Each GPU has a host thread, which launches one kernel after another; the kernels of different
// GPUs run side by side. All blocks of a kernel that the GPU can hold run at once, each on a core
// (a thread of the system) of its own, so that they may wait for blocks of other GPUs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

namespace simt {

/// Runs work(0) … work(gpus - 1), each on a host thread of its own, and returns when all have
/// ended. Launches from work(g) run on GPU g. Other host threads' launches wait until it returns.
/// If a GPU fails, all others' launches end, and so does their work; rethrows the first failure. A
/// host thread that waits for another outside its launches may then wait for ever. Throws
/// std::invalid_argument for fewer than 1 or more than 8 GPUs.
void run_on_gpus(int gpus, const std::function<void(int gpu)>& work);

/// The GPU of the calling host thread or kernel; 0 outside run_on_gpus.
int current_gpu();
/// The same; none outside run_on_gpus.
std::optional<int> one_of_several_gpus();

/// 132, those of an H100; inside run_on_gpus only 2, so that all blocks of all GPUs can run at
/// once.
int multiprocessors_of_a_gpu();
/// How many blocks a multiprocessor holds, at 64 registers a thread.
int resident_blocks(int threads, std::size_t shared_bytes);
/// How many clusters of this many blocks a GPU holds; inside run_on_gpus at least 1.
int resident_clusters(int cluster, int threads, std::size_t shared_bytes);

/// A buffer of each GPU, of the same size, which all of them can reach: NCCL's symmetric memory.
class Window {
 public:
  /// @param bases of the GPUs' buffers, in the order of the GPUs. Those that are registered
  /// (watch.h) then belong to these GPUs, and one without a name is called "window".
  explicit Window(std::vector<std::byte*> bases);
  /// The address of a byte in a GPU's buffer. A kernel that names a GPU or a byte outside gets a
  /// Fault, and the host std::out_of_range.
  std::byte* at(std::size_t offset, int gpu,
                std::source_location where = std::source_location::current()) const;

 private:
  std::vector<std::byte*> bases_;
  std::size_t bytes_ = ~std::size_t{0};  // of each, as far as they are registered
};
/// For ncclWindow_t, which is a pointer to it.
std::unique_ptr<Window> make_window(std::vector<std::byte*> bases);

/// A word of 16 bytes, aligned to them: relaxed, for the whole system, all bytes at once. A load
/// lets other threads run first, so that a loop of loads is quick.
void store_word(void* to, const void* word, std::source_location where);
void load_word(void* word, const void* from, std::source_location where);

}  // namespace simt
