// Hopper's instructions as functions: the CUDA backend's side of common/kernel/hopper.h, which says
// what each does. PTX addresses shared memory with 32 bits, so every function converts its
// pointers.
#pragma once

#include <cstdint>

#include "common/cuda/launch.h"

namespace lnc {

// A program for several GPUs is also compiled for those before Hopper, where none of this exists.
// Chapter::min_architecture keeps kernels from running there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define LNC_HOPPER_ASM(...) __trap()
#else
#define LNC_HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#endif

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

class Barrier {
 public:
  __device__ void init(unsigned arrivals) {
    LNC_HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                   : "memory");
  }
  __device__ void arrive() {
    LNC_HOPPER_ASM("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(address())
                   : "memory");
  }
  __device__ void arrive_and_expect(std::uint32_t bytes) {
    LNC_HOPPER_ASM(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
        "r"(bytes)
        : "memory");
  }
  __device__ void wait(unsigned parity) {
    while (!try_wait<false>(parity)) {
    }
  }
  /// An acquire at the cluster's scope would empty L1; one that is restricted to shared memory need
  /// not.
  __device__ void wait_at_cluster_scope(unsigned parity) {
    while (!try_wait<true>(parity)) {
    }
    LNC_HOPPER_ASM("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
  }

 private:
  __device__ std::uint32_t address() const { return shared_address(&state_); }
  /// Sleeps until the phase has completed, or until the hardware's time limit.
  template <bool kClusterScope>
  __device__ bool try_wait(unsigned parity) {
    unsigned completed = 1;
#define LNC_TRY_WAIT(order_and_scope)             \
  LNC_HOPPER_ASM(                                 \
      "{\n"                                       \
      ".reg .pred completed;\n"                   \
      "mbarrier.try_wait.parity." order_and_scope \
      ".shared::cta.b64 completed, [%1], %2;\n"   \
      "selp.u32 %0, 1, 0, completed;\n"           \
      "}"                                         \
      : "=r"(completed)                           \
      : "r"(address()), "r"(parity)               \
      : "memory")
    if constexpr (kClusterScope)
      LNC_TRY_WAIT("relaxed.cluster");
    else
      LNC_TRY_WAIT("acquire.cta");
#undef LNC_TRY_WAIT
    return completed != 0;
  }

  std::uint64_t state_;  // the hardware's own
};

__device__ inline void fence_proxy_async() {
  LNC_HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void fence_barrier_init() {
  LNC_HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_proxy_async();
}

// How a policy is encoded. PTX does not say; this is what createpolicy.fractional leaves in its
// register when nvcc 13 compiles it for sm_90. Bits 60 to 63: the policy covers a fraction of the
// addresses. Bits 56 to 59: the priority of these, 0 for evict_unchanged, 2 for evict_first, 4 for
// evict_last, 6 for evict_normal. Bits 52 to 55: the fraction in sixteenths, less one. The other
// addresses stay evict_unchanged.
inline constexpr std::uint64_t kPolicyOfFraction = std::uint64_t{0x1} << 60;
inline constexpr std::uint64_t kPolicyEvictFirst = std::uint64_t{0x2} << 56;
inline constexpr std::uint64_t kPolicyOfAll = std::uint64_t{0xF} << 52;

/// The eviction priority in L2 of the lines that a bulk load reads.
enum class L2Policy : std::uint64_t {
  EvictNormal = kPolicyOfFraction,  ///< evict_unchanged for all: no effect
  EvictFirst = kPolicyOfFraction | kPolicyEvictFirst | kPolicyOfAll,
};
static_assert(static_cast<std::uint64_t>(L2Policy::EvictNormal) == 0x1000'0000'0000'0000);
static_assert(static_cast<std::uint64_t>(L2Policy::EvictFirst) == 0x12F0'0000'0000'0000);

__device__ inline void bulk_load(void* to_shared, const void* from_global, std::uint32_t bytes,
                                 Barrier& barrier) {
  LNC_HOPPER_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(shared_address(to_shared)),
      "l"(__cvta_generic_to_global(from_global)), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

__device__ inline void bulk_load(void* to_shared, const void* from_global, std::uint32_t bytes,
                                 Barrier& barrier, L2Policy policy) {
  LNC_HOPPER_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to_shared)),
      "l"(__cvta_generic_to_global(from_global)), "r"(bytes), "r"(shared_address(&barrier)),
      "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}

__device__ inline void bulk_store(void* to_global, const void* from_shared, std::uint32_t bytes) {
  LNC_HOPPER_ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to_global)),
                 "r"(shared_address(from_shared)), "r"(bytes)
                 : "memory");
}

__device__ inline void commit_bulk_stores() {
  LNC_HOPPER_ASM("cp.async.bulk.commit_group;" ::: "memory");
}

template <int kGroups>
__device__ void wait_bulk_stores_read() {
  LNC_HOPPER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

__device__ inline unsigned cluster_rank() {
  unsigned rank = 0;
  LNC_HOPPER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline unsigned cluster_size() {
  unsigned size = 1;
  LNC_HOPPER_ASM("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

__device__ inline void cluster_arrive() {
  LNC_HOPPER_ASM("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ inline void cluster_arrive_relaxed() {
  LNC_HOPPER_ASM("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void cluster_wait() {
  LNC_HOPPER_ASM("barrier.cluster.wait.acquire;" ::: "memory");
}

__device__ inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// The address in block `rank`'s shared memory that corresponds to `pointer` in this block's.
__device__ inline std::uint32_t remote_address(const void* pointer, unsigned rank) {
  std::uint32_t remote = 0;
  LNC_HOPPER_ASM("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(remote)
                 : "r"(shared_address(pointer)), "r"(rank));
  return remote;
}

template <typename T>
__device__ T remote_load(const T* pointer, unsigned rank) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  T value{};
  if constexpr (sizeof(T) == 4) {
    std::uint32_t bits = 0;
    LNC_HOPPER_ASM("ld.shared::cluster.u32 %0, [%1];"
                   : "=r"(bits)
                   : "r"(remote_address(pointer, rank))
                   : "memory");
    value = __builtin_bit_cast(T, bits);
  } else {
    std::uint64_t bits = 0;
    LNC_HOPPER_ASM("ld.shared::cluster.u64 %0, [%1];"
                   : "=l"(bits)
                   : "r"(remote_address(pointer, rank))
                   : "memory");
    value = __builtin_bit_cast(T, bits);
  }
  return value;
}

template <typename T>
__device__ void remote_store(T* pointer, unsigned rank, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4)
    LNC_HOPPER_ASM("st.shared::cluster.u32 [%0], %1;" ::"r"(remote_address(pointer, rank)),
                   "r"(__builtin_bit_cast(std::uint32_t, value))
                   : "memory");
  else
    LNC_HOPPER_ASM("st.shared::cluster.u64 [%0], %1;" ::"r"(remote_address(pointer, rank)),
                   "l"(__builtin_bit_cast(std::uint64_t, value))
                   : "memory");
}

template <typename T>
__device__ void remote_store_async(T* pointer, unsigned rank, T value, Barrier& barrier) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 16) {
    [[maybe_unused]] const auto bits = __builtin_bit_cast(uint4, value);
    LNC_HOPPER_ASM(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 "
        "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote_address(pointer, rank)),
        "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w), "r"(remote_address(&barrier, rank))
        : "memory");
  } else if constexpr (sizeof(T) == 4)
    LNC_HOPPER_ASM(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
            remote_address(pointer, rank)),
        "r"(__builtin_bit_cast(std::uint32_t, value)), "r"(remote_address(&barrier, rank))
        : "memory");
  else
    LNC_HOPPER_ASM(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(
            remote_address(pointer, rank)),
        "l"(__builtin_bit_cast(std::uint64_t, value)), "r"(remote_address(&barrier, rank))
        : "memory");
}

/// A full release at the cluster's scope waits for every store to device memory; one that is
/// restricted to this block's shared memory need not, by PTX. (fwd09's laboratory has its cost.)
__device__ inline void remote_arrive(Barrier& barrier, unsigned rank) {
  LNC_HOPPER_ASM("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
  LNC_HOPPER_ASM("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     remote_address(&barrier, rank))
                 : "memory");
}

__device__ inline void launch_dependents() { LNC_HOPPER_ASM("griddepcontrol.launch_dependents;"); }

__device__ inline void grid_dependency_wait() {
  LNC_HOPPER_ASM("griddepcontrol.wait;" ::: "memory");
}

#undef LNC_HOPPER_ASM

}  // namespace lnc
