// The operators that CUB has before CUDA 13, and what of CUB is not here.
#pragma once

#include <string>

#include "common/simt/facades.h"

namespace cub {

struct Sum {
  template <typename T>
  T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
struct Max {
  template <typename T>
  T operator()(const T& a, const T& b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <typename T>
  T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};

/// A value with the index that ArgMax and ArgMin carry along.
template <typename Key, typename Value>
struct KeyValuePair {
  Key key;
  Value value;
};
/// The pair of the greater value; of two equal ones, that of the lower key.
struct ArgMax {
  template <typename Pair>
  Pair operator()(const Pair& a, const Pair& b) const {
    return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
/// The pair of the lesser value; of two equal ones, that of the lower key.
struct ArgMin {
  template <typename Pair>
  Pair operator()(const Pair& a, const Pair& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};

namespace simt_details {

/// Room for a T in shared memory, which no constructor initialises.
template <typename T, int kCount>
struct Room {
  T* data() { return reinterpret_cast<T*>(bytes); }
  alignas(T) unsigned char bytes[kCount * sizeof(T)];
};

/// Shared memory for a class that is constructed without TempStorage.
template <typename Storage>
Storage& own_storage() {
  __shared__ Storage storage;
  return storage;
}

// A block of another size than the class is for.
inline void require_threads(unsigned threads, std::source_location where) {
  if (simt::threads_of_block() == threads) return;
  throw simt::Fault("a class of CUB for blocks of " + std::to_string(threads) +
                    " threads is used in one of " + std::to_string(simt::threads_of_block()) +
                    ", at " + where.file_name() + ":" + std::to_string(where.line()));
}

}  // namespace simt_details

// A class that does not compile where it is used.
#define SIMT_REFUSED_CLASS(name, sentence)                                                   \
  template <typename T, auto...>                                                             \
  struct name {                                                                              \
    static_assert(simt::kRefused<T>, "cub::" #name " is not on the CPU backend: " sentence); \
  };
SIMT_REFUSED_CLASS(BlockLoad, "let each thread load its own elements.")
SIMT_REFUSED_CLASS(BlockStore, "let each thread store its own elements.")
SIMT_REFUSED_CLASS(BlockExchange, "exchange through shared memory and __syncthreads().")
SIMT_REFUSED_CLASS(BlockHistogram, "count with atomicAdd in shared memory.")
SIMT_REFUSED_CLASS(BlockDiscontinuity, "compare neighbours through shared memory.")
#undef SIMT_REFUSED_CLASS
template <typename Key, int, int, typename...>
struct BlockRadixSort {
  static_assert(simt::kRefused<Key>,
                "cub::BlockRadixSort is not on the CPU backend: sort on the host.");
};

#define SIMT_REFUSED_STATIC(name, sentence)         \
  template <typename... Ts>                         \
  static cudaError_t name(Ts&&...) {                \
    static_assert(simt::kRefused<Ts...>, sentence); \
    return {};                                      \
  }
#define SIMT_NO_DEVICE_REDUCE "cub::DeviceReduce is not here: write a kernel with cub::BlockReduce."
#define SIMT_NO_DEVICE_SCAN "cub::DeviceScan is not here: write a kernel with cub::BlockScan."
struct DeviceReduce {
  SIMT_REFUSED_STATIC(Sum, SIMT_NO_DEVICE_REDUCE)
  SIMT_REFUSED_STATIC(Max, SIMT_NO_DEVICE_REDUCE)
  SIMT_REFUSED_STATIC(Min, SIMT_NO_DEVICE_REDUCE)
  SIMT_REFUSED_STATIC(Reduce, SIMT_NO_DEVICE_REDUCE)
};
struct DeviceScan {
  SIMT_REFUSED_STATIC(ExclusiveSum, SIMT_NO_DEVICE_SCAN)
  SIMT_REFUSED_STATIC(InclusiveSum, SIMT_NO_DEVICE_SCAN)
  SIMT_REFUSED_STATIC(ExclusiveScan, SIMT_NO_DEVICE_SCAN)
  SIMT_REFUSED_STATIC(InclusiveScan, SIMT_NO_DEVICE_SCAN)
};
#undef SIMT_REFUSED_STATIC
#undef SIMT_NO_DEVICE_REDUCE
#undef SIMT_NO_DEVICE_SCAN

}  // namespace cub
