// CUDA's spelling of the SIMT machine: the built-ins of nvcc, defined for g++.
//
// With this header a kernel.cu is a C++ file. Types, vector types and 16-bit floats come from the
// CUDA Toolkit's headers, which any C++ compiler accepts; the functions below replace the device's.
// Each function that waits takes the location of its call as a default argument, for error reports.
#pragma once

#include "common/simt/machine.h"
#include "common/simt/progress.h"
#include "common/simt/watch.h"

// A kernel's linker name has a tag, "[abi:kernel]", by which common/tools/test_chapter.py finds it.
// In a WATCH build the compiler inserts a call before each memory access of a kernel. Accesses in a
// helper are attributed to the line that calls it, so all helpers are inlined, as nvcc does.
// SIMT_UNSEEN excludes the machine's own accesses, and SIMT_TELL reports what they stand for.
#undef __global__
#if defined(SIMT_WATCH)
#define __global__ __attribute__((abi_tag("kernel"), flatten))
#define SIMT_UNSEEN __attribute__((noinline, no_sanitize("thread"), no_sanitize_coverage))
#define SIMT_TELL(call) simt::call
#else
#define __global__ __attribute__((abi_tag("kernel")))
#define SIMT_UNSEEN
#define SIMT_TELL(call) ((void)0)
#endif

// clang-format off
#include <driver_types.h>
#include <vector_functions.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// clang-format on

#include <assert.h>                         // as nvcc does
#define __assert_fail simt::fail_assertion  // what the macro calls

#include <algorithm>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "common/simt/intrinsics.h"

// A block stays on one core until it ends, so that core's thread-local storage serves as the
// block's shared memory. It starts as 0xFF bytes, so that what was never written shows.
#undef __constant__
#define __constant__ __attribute__((abi_tag("constant")))  // tells the watchers what it is
#undef __shared__
// Known by its name, and not by what its own file stores in it.
#define __shared__ __attribute__((abi_tag("shared"), used)) static thread_local
#define __launch_bounds__(...)  // for nvcc's register allocator; unused on the CPU
#ifndef __grid_constant__
#define __grid_constant__
#endif

inline constexpr int warpSize = 32;

// ----------------------------------------------------------------------------------------- waiting

/// Waits for every thread of the block.
inline void __syncthreads(std::source_location where = std::source_location::current()) {
  simt::barrier(where);
}

/// Waits for every lane in `mask`.
inline void __syncwarp(unsigned mask = 0xFFFF'FFFF,
                       std::source_location where = std::source_location::current()) {
  simt::collective(simt::Op::SyncWarp, mask, 0, 0, warpSize, where);
}

namespace simt {

template <typename T>
concept Shuffled = std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t);

template <Shuffled T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <Shuffled T>
T shuffle(Op op, unsigned mask, T value, int x, int width, std::source_location where) {
  const std::uint64_t bits = collective(op, mask, bits_of(value), x, width, where);
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

inline unsigned vote(Op op, unsigned mask, bool value, std::source_location where) {
  return static_cast<unsigned>(collective(op, mask, value, 0, warpSize, where));
}

}  // namespace simt

/// The value of lane `source` of this lane's segment of `width` lanes.
template <simt::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              std::source_location where = std::source_location::current()) {
  return simt::shuffle(simt::Op::Shuffle, mask, value, source, width, where);
}

/// The value of the lane `delta` below; a lane's own value if its segment has no such lane.
template <simt::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 std::source_location where = std::source_location::current()) {
  return simt::shuffle(simt::Op::ShuffleUp, mask, value, static_cast<int>(delta), width, where);
}

/// The value of the lane `delta` above; a lane's own value if its segment has no such lane.
template <simt::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   std::source_location where = std::source_location::current()) {
  return simt::shuffle(simt::Op::ShuffleDown, mask, value, static_cast<int>(delta), width, where);
}

/// The value of the lane whose number differs from this one's in the bits of `lane_mask`.
template <simt::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  std::source_location where = std::source_location::current()) {
  return simt::shuffle(simt::Op::ShuffleXor, mask, value, lane_mask, width, where);
}

/// The lanes of `mask` whose predicate holds, one bit each.
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  return simt::vote(simt::Op::Ballot, mask, predicate != 0, where);
}

/// Whether the predicate holds in any lane of `mask`.
inline int __any_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return simt::vote(simt::Op::Any, mask, predicate != 0, where) != 0;
}

/// Whether the predicate holds in all lanes of `mask`.
inline int __all_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return simt::vote(simt::Op::All, mask, predicate == 0, where) == 0;
}

/// Waits for every thread of the block. Returns for how many of them the predicate holds, or
/// whether it holds for all or for any of them.
inline int __syncthreads_count(int predicate,
                               std::source_location where = std::source_location::current()) {
  return static_cast<int>(simt::barrier(where, predicate != 0));
}
inline int __syncthreads_and(int predicate,
                             std::source_location where = std::source_location::current()) {
  return simt::barrier(where, predicate == 0) == 0;
}
inline int __syncthreads_or(int predicate,
                            std::source_location where = std::source_location::current()) {
  return simt::barrier(where, predicate != 0) != 0;
}

/// The lanes of the warp that are at this call together: all that can still come before the others
/// go on. A GPU may find fewer, so a kernel must not rely on more.
inline unsigned __activemask(std::source_location where = std::source_location::current()) {
  return simt::active_lanes(where);
}

namespace simt {

// The machine compares values as unsigned: a flipped sign bit makes that the order of ints.
template <typename T>
T reduce(Op op, unsigned mask, T value, std::source_location where) {
  constexpr unsigned kFlip = std::is_signed_v<T> ? 1u << 31 : 0u;
  const bool ordered = op == Op::ReduceMin || op == Op::ReduceMax;
  const unsigned flip = ordered ? kFlip : 0u;
  const auto bits = static_cast<unsigned>(value) ^ flip;
  return static_cast<T>(static_cast<unsigned>(collective(op, mask, bits, 0, warpSize, where)) ^
                        flip);
}

template <typename T>
concept Word = std::same_as<T, int> || std::same_as<T, unsigned>;

}  // namespace simt

// The reduction of a 32-bit value over the lanes of `mask`. GPUs have these from sm_80 on.
template <simt::Word T>
T __reduce_add_sync(unsigned mask, T value,
                    std::source_location where = std::source_location::current()) {
  return simt::reduce(simt::Op::ReduceAdd, mask, value, where);
}
template <simt::Word T>
T __reduce_min_sync(unsigned mask, T value,
                    std::source_location where = std::source_location::current()) {
  return simt::reduce(simt::Op::ReduceMin, mask, value, where);
}
template <simt::Word T>
T __reduce_max_sync(unsigned mask, T value,
                    std::source_location where = std::source_location::current()) {
  return simt::reduce(simt::Op::ReduceMax, mask, value, where);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value,
                                  std::source_location where = std::source_location::current()) {
  return simt::reduce(simt::Op::ReduceAnd, mask, value, where);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value,
                                 std::source_location where = std::source_location::current()) {
  return simt::reduce(simt::Op::ReduceOr, mask, value, where);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value,
                                  std::source_location where = std::source_location::current()) {
  return simt::reduce(simt::Op::ReduceXor, mask, value, where);
}

/// The lanes of `mask` that passed the same value.
template <simt::Shuffled T>
unsigned __match_any_sync(unsigned mask, T value,
                          std::source_location where = std::source_location::current()) {
  return static_cast<unsigned>(simt::shuffle<std::uint64_t>(
      simt::Op::Match, mask, simt::bits_of(value), 0, warpSize, where));
}
/// `mask` if all its lanes passed the same value, which `*all_same` says; else 0.
template <simt::Shuffled T>
unsigned __match_all_sync(unsigned mask, T value, int* all_same,
                          std::source_location where = std::source_location::current()) {
  const unsigned same = __match_any_sync(mask, value, where);
  *all_same = __reduce_and_sync(mask, same, where) == __reduce_or_sync(mask, same, where);
  return *all_same ? same : 0;
}

// ----------------------------------------------------------------------------- asynchronous copies

/// Starts a copy of 4, 8 or 16 bytes to shared memory, the last `zfill` of them zeros. This thread
/// may read them once it has waited for their group; the others, after a barrier that follows.
inline void __pipeline_memcpy_async(void* to_shared, const void* from_global, std::size_t bytes,
                                    std::size_t zfill = 0,
                                    std::source_location where = std::source_location::current()) {
  simt::memcpy_async(to_shared, from_global, bytes, zfill, where);
}
/// Commits a group: all copies that this thread has started since its last commit.
inline void __pipeline_commit() { simt::commit_copies(); }
/// Waits for all groups of this thread except the last `prior`. A `prior` above 8 counts as 8, as
/// in CUDA's header.
inline void __pipeline_wait_prior(std::size_t prior,
                                  std::source_location where = std::source_location::current()) {
  simt::wait_for_copies(std::min<std::size_t>(prior, 8), where);
}

// ----------------------------------------------------------------------------------------- atomics
//
// Blocks run on different cores, so these are real atomics. Like CUDA's they are relaxed: a kernel
// that publishes data adds __threadfence(). Each returns the old value.

namespace simt {

template <typename T, typename... Ts>
concept OneOf = (std::same_as<T, Ts> || ...);

// Compiler built-ins: std::atomic would be inlined, and its accesses reported as the kernel's.
template <typename T>
SIMT_UNSEEN T load(T* address) {
  T value;
  __atomic_load(address, &value, __ATOMIC_RELAXED);
  return value;
}
template <typename T>
SIMT_UNSEEN T unseen(const T* address) {
  return *address;
}
template <typename T>
SIMT_UNSEEN bool exchange_if(T* address, T& old, T value) {
  return __atomic_compare_exchange(address, &old, &value, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED);
}
SIMT_UNSEEN inline void changes_memory() { memory_changed = true; }

template <typename T, typename Update>
T atomic_update(T* address, Update update, [[maybe_unused]] Scope scope = Scope::Device,
                std::source_location where = std::source_location::current()) {
  SIMT_TELL(updates(address, sizeof(T), scope));
  T old = load(address);
  T value = update(old);
  while (!exchange_if(address, old, value)) value = update(old);
  if (std::memcmp(&old, &value, sizeof(T)) != 0)
    changes_memory();
  else
    poll(address, where);
  return old;
}

}  // namespace simt

// An update in three scopes: of the device; among the threads of one block; of all devices.
#define SIMT_WHERE std::source_location where = std::source_location::current()
#define SIMT_ATOMIC(name, types, updated)                                    \
  template <types T>                                                         \
  T name(T* address, std::type_identity_t<T> value, SIMT_WHERE) {            \
    const auto update = [=](T old) -> T { return updated; };                 \
    return simt::atomic_update(address, update, simt::Scope::Device, where); \
  }                                                                          \
  template <types T>                                                         \
  T name##_block(T* address, std::type_identity_t<T> value, SIMT_WHERE) {    \
    const auto update = [=](T old) -> T { return updated; };                 \
    return simt::atomic_update(address, update, simt::Scope::Block, where);  \
  }                                                                          \
  template <types T>                                                         \
  T name##_system(T* address, std::type_identity_t<T> value, SIMT_WHERE) {   \
    const auto update = [=](T old) -> T { return updated; };                 \
    return simt::atomic_update(address, update, simt::Scope::System, where); \
  }

namespace simt {
template <typename T>
concept Sum = OneOf<T, float, double, int, unsigned, unsigned long long, __half, __half2,
                    __nv_bfloat16, __nv_bfloat162>;
template <typename T>
concept Whole = OneOf<T, int, unsigned, long long, unsigned long long>;
template <typename T>
concept Difference = OneOf<T, int, unsigned>;
template <typename T>
concept Bits = OneOf<T, int, unsigned, unsigned long long>;
template <typename T>
concept Counter = OneOf<T, unsigned>;
}  // namespace simt

SIMT_ATOMIC(atomicAdd, simt::Sum, old + value)
SIMT_ATOMIC(atomicSub, simt::Difference, old - value)
SIMT_ATOMIC(atomicMax, simt::Whole, std::max(old, value))
SIMT_ATOMIC(atomicMin, simt::Whole, std::min(old, value))
SIMT_ATOMIC(atomicAnd, simt::Bits, old& value)
SIMT_ATOMIC(atomicOr, simt::Bits, old | value)
SIMT_ATOMIC(atomicXor, simt::Bits, old ^ value)
SIMT_ATOMIC(atomicInc, simt::Counter, old >= value ? 0 : old + 1)  // counts from 0 to `value`
SIMT_ATOMIC(atomicDec, simt::Counter, old == 0 || old > value ? value : old - 1)
#undef SIMT_ATOMIC

// Kernels build locks from the next three. Each yields, so that the lock's holder can run while
// another thread spins.

template <simt::OneOf<int, unsigned, unsigned long long> T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value, SIMT_WHERE,
            simt::Scope scope = simt::Scope::Device) {
  simt::yield(address, where);
  const auto update = [=](T old) { return old == compare ? value : old; };
  return simt::atomic_update(address, update, scope, where);
}
template <typename T>
T atomicCAS_system(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value,
                   SIMT_WHERE) {
  return atomicCAS(address, compare, value, where, simt::Scope::System);
}

template <simt::OneOf<float, int, unsigned, unsigned long long> T>
T atomicExch(T* address, std::type_identity_t<T> value, SIMT_WHERE,
             simt::Scope scope = simt::Scope::Device) {
  simt::yield(address, where);
  const auto update = [=](T) { return value; };
  return simt::atomic_update(address, update, scope, where);
}
template <typename T>
T atomicExch_system(T* address, std::type_identity_t<T> value, SIMT_WHERE) {
  return atomicExch(address, value, where, simt::Scope::System);
}

inline void __nanosleep(unsigned, SIMT_WHERE) { simt::yield(nullptr, where); }
#undef SIMT_WHERE

/// Orders this thread's writes: the rest of the device, or the block, or all devices, see those
/// before the fence before those after it.
inline void __threadfence() { simt::fence(simt::Scope::Device); }
inline void __threadfence_block() { simt::fence(simt::Scope::Block); }
inline void __threadfence_system() { simt::fence(simt::Scope::System); }

// ------------------------------------------------------------------------------------------- rest

using std::max;
using std::min;

/// A load through the read-only cache, which the CPU does not have.
template <typename T>
T __ldg(const T* address) {
  return *address;
}

/// A load that bypasses L1 and reads from L2, which all blocks share. CPU caches are coherent.
template <typename T>
T __ldcg(const T* address) {
  SIMT_TELL(loads_past_l1(address, sizeof(T)));
  return simt::unseen(address);
}

// The other hints say how long a line is worth keeping; they change no result.
template <typename T>
T __ldca(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldlu(const T* address) {
  return *address;
}
template <typename T>
T __ldcv(const T* address) {
  return __ldcg(address);
}
template <typename T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stwt(T* address, std::type_identity_t<T> value) {
  *address = value;
}

/// A clock that counts upwards; on the CPU in nanoseconds.
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
