// Hopper's instructions on the SIMT machine: the CPU backend's side of common/kernel/hopper.h,
// which says what each does. Each takes the source location of its call as a default argument, so
// that a fault can name it.
#pragma once

#include "common/simt/launch.h"

namespace lnc {

class Barrier {
 public:
  void init(unsigned arrivals, std::source_location where = std::source_location::current()) {
    simt::barrier_init(this, arrivals, where);
  }
  void arrive(std::source_location where = std::source_location::current()) {
    simt::barrier_arrive(this, 0, where);
  }
  void arrive_and_expect(std::uint32_t bytes,
                         std::source_location where = std::source_location::current()) {
    simt::barrier_arrive(this, bytes, where);
  }
  void wait(unsigned parity, std::source_location where = std::source_location::current()) {
    simt::barrier_wait(this, parity, simt::Scope::Block, where);
  }
  void wait_at_cluster_scope(unsigned parity,
                             std::source_location where = std::source_location::current()) {
    simt::barrier_wait(this, parity, simt::Scope::Cluster, where);
  }

 private:
  std::uint64_t state_;  // only gives it the hardware's size; the machine keeps the real state
};

inline void fence_barrier_init() { simt::fence_barrier_init(); }
inline void fence_proxy_async() { simt::fence_proxy_async(); }

enum class L2Policy { EvictNormal, EvictFirst };  // ignored: the machine has no L2
inline void bulk_load(void* to_shared, const void* from_global, std::uint32_t bytes,
                      Barrier& barrier, L2Policy = L2Policy::EvictNormal,
                      std::source_location where = std::source_location::current()) {
  simt::bulk_load(to_shared, from_global, bytes, &barrier, where);
}
inline void bulk_store(void* to_global, const void* from_shared, std::uint32_t bytes,
                       std::source_location where = std::source_location::current()) {
  simt::bulk_store(to_global, from_shared, bytes, where);
}
inline void commit_bulk_stores() { simt::commit_bulk_stores(); }
template <int kGroups>
void wait_bulk_stores_read(std::source_location where = std::source_location::current()) {
  simt::wait_bulk_stores(kGroups, where);
}

inline unsigned cluster_rank() { return simt::cluster_rank(); }
inline unsigned cluster_size() { return simt::cluster_size(); }
inline void cluster_arrive(std::source_location where = std::source_location::current()) {
  simt::cluster_arrive(where);
}
inline void cluster_arrive_relaxed(std::source_location where = std::source_location::current()) {
  simt::cluster_arrive(where, simt::Publishes::BarrierInits);
}
inline void cluster_wait(std::source_location where = std::source_location::current()) {
  simt::cluster_wait(where);
}
inline void cluster_sync(std::source_location where = std::source_location::current()) {
  simt::cluster_arrive(where);
  simt::cluster_wait(where);
}

template <typename T>
T remote_load(const T* pointer, unsigned rank,
              std::source_location where = std::source_location::current()) {
  return *reinterpret_cast<const T*>(simt::remote(pointer, rank, where));
}
template <typename T>
void remote_store(T* pointer, unsigned rank, std::type_identity_t<T> value,
                  std::source_location where = std::source_location::current()) {
  *reinterpret_cast<T*>(simt::remote(pointer, rank, where)) = value;
}
template <typename T>
void remote_store_async(T* pointer, unsigned rank, std::type_identity_t<T> value, Barrier& barrier,
                        std::source_location where = std::source_location::current()) {
  simt::remote_store_async(pointer, rank, &value, sizeof value, &barrier, where);
}
inline void remote_arrive(Barrier& barrier, unsigned rank,
                          std::source_location where = std::source_location::current()) {
  simt::remote_arrive(&barrier, rank, where);
}

// Kernels run one after another, so neither of these waits.
inline void launch_dependents() { simt::launches_dependents(); }
inline void grid_dependency_wait() { simt::grid_dependency_wait(); }

}  // namespace lnc
