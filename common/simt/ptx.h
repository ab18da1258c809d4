// What inline PTX becomes on the SIMT machine: common/tools/inline_ptx.py writes calls of these
// functions in place of an asm statement. A register is a variable with the type of its constraint
// ("r", "l", "h", "f", "d") or of its .reg.
#pragma once

#include <cuda/atomic>

#include "common/simt/hopper.h"

namespace simt::ptx {

// ------------------------------------------------------------------------------------- registers

template <char kConstraint>
struct Register;
template <>
struct Register<'h'> {
  using Type = std::uint16_t;
};
template <>
struct Register<'r'> {
  using Type = std::uint32_t;
};
template <>
struct Register<'l'> {
  using Type = std::uint64_t;
};
template <>
struct Register<'f'> {
  using Type = float;
};
template <>
struct Register<'d'> {
  using Type = double;
};

/// A register's bits as a value of type T: the low ones of a wider register, and as many as there
/// are of a narrower one.
template <typename T, typename From>
T as(From value) {
  if constexpr (std::is_arithmetic_v<From> && std::is_integral_v<T> && std::is_integral_v<From>) {
    return static_cast<T>(value);
  } else if constexpr (sizeof(T) == sizeof(From)) {
    return std::bit_cast<T>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);  // an immediate
  } else {
    T result{};
    std::memcpy(&result, &value, std::min(sizeof(T), sizeof(From)));
    return result;
  }
}
template <typename To, typename From>
void set(To& destination, From value) {
  destination = as<To>(value);
}

/// An operand of the statement, as its constraint's register.
template <char kConstraint, typename T>
auto input(T value) {
  using Type = typename Register<kConstraint>::Type;
  if constexpr (std::is_pointer_v<T>)
    return static_cast<Type>(reinterpret_cast<std::uintptr_t>(value));
  else
    return static_cast<Type>(value);
}
template <typename To, typename From>
void output(To& destination, From value) {
  if constexpr (std::is_pointer_v<To>)
    destination = reinterpret_cast<To>(value);
  else
    destination = static_cast<To>(value);
}

/// What a vector load moves at once.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T of[kCount];
};

// ------------------------------------------------------------------------------------- addresses
//
// In shared memory 32 bits. What mapa returns has a block's rank above them.

inline constexpr unsigned kRankShift = 26;

inline std::uint32_t mapa(std::uint32_t address, std::uint32_t rank) {
  return (address & ((1u << kRankShift) - 1)) | (rank + 1) << kRankShift;
}
/// The place in this block that an address, perhaps of another block, corresponds to.
inline std::byte* local(std::uint32_t address) {
  return from_shared_address(address & ((1u << kRankShift) - 1));
}
inline unsigned rank_of(std::uint32_t address) {
  return address >> kRankShift == 0 ? cluster_rank() : (address >> kRankShift) - 1;
}
template <typename T>
T* shared(std::uint32_t address, std::source_location where = std::source_location::current()) {
  std::byte* at = local(address);
  if (address >> kRankShift != 0) at = remote(at, rank_of(address), where);
  return reinterpret_cast<T*>(at);
}
template <typename T>
T* global(std::uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// ------------------------------------------------------------------------------------- mbarriers

/// Waits, where the GPU gives up after a while, and so returns true.
inline bool wait(std::uint32_t barrier, std::uint32_t parity, Scope scope = Scope::Block,
                 std::source_location where = std::source_location::current()) {
  barrier_wait(local(barrier), parity, scope, where);
  return true;
}
inline bool test(std::uint32_t barrier, std::uint32_t parity, Scope scope = Scope::Block,
                 std::source_location where = std::source_location::current()) {
  return barrier_passed(local(barrier), parity, scope, where);
}
/// Arrives `count` times. @return the phase's parity, for a wait
inline std::uint64_t arrive(std::uint32_t barrier, std::uint32_t count, std::uint32_t bytes,
                            std::source_location where = std::source_location::current()) {
  if (barrier >> kRankShift != 0) {
    for (; count > 0; --count) remote_arrive(local(barrier), rank_of(barrier), where);
    return 0;
  }
  const std::uint64_t parity = barrier_parity(local(barrier), where);
  for (std::uint32_t i = 0; i < count; ++i)
    barrier_arrive(local(barrier), i == 0 ? bytes : 0, where);
  return parity;
}

/// fence.proxy.async: this thread's writes to shared memory, initialised barriers too, before bulk
/// copies.
inline void fence_proxy_async() {
  fence_barrier_init();
  simt::fence_proxy_async();
}

// ---------------------------------------------------------------------------------------- others

/// One lane of `mask`, the lowest; the others get false.
inline bool elect(unsigned mask, std::source_location where = std::source_location::current()) {
  collective(Op::SyncWarp, mask, 0, 0, warpSize, where);
  return (mask & (1u << lane())) == (mask & -mask);
}

/// A reference for atomic access to what `address` points to.
template <typename T, cuda::thread_scope kScope>
cuda::atomic_ref<T, kScope> atomic(T* address) {
  return cuda::atomic_ref<T, kScope>(*address);
}

}  // namespace simt::ptx

inline std::size_t __cvta_generic_to_shared(const void* pointer) {
  return simt::shared_address(pointer);
}
inline std::size_t __cvta_generic_to_global(const void* pointer) {
  return reinterpret_cast<std::size_t>(pointer);
}
inline void* __cvta_shared_to_generic(std::size_t address) {
  return simt::ptx::shared<void>(static_cast<std::uint32_t>(address));
}
inline void* __cvta_global_to_generic(std::size_t address) {
  return reinterpret_cast<void*>(address);
}
