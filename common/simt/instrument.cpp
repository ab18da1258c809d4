// The functions that the compiler calls from an instrumented kernel.
//
// With -fsanitize=thread GCC inserts a call before each load and store, named after its size; with
// -fsanitize-coverage=trace-pc, one at the start of each basic block. GCC's own runtimes, which
// normally provide these functions, are not linked; the ones below report to the machine instead.
#include <cstddef>
#include <cstdint>

#include "common/simt/watch.h"

using simt::Kind;

#define HERE __builtin_return_address(0)

// Splits an access that is not aligned to its size, as on a GPU: a struct of three floats into
// three accesses, 32 bytes aligned to 16 into two.
#define IN_PIECES(p, bytes, kind)                                                     \
  {                                                                                   \
    auto* const begin = static_cast<const char*>(p);                                  \
    const std::size_t piece = piece_of(begin, bytes);                                 \
    for (std::size_t at = 0; at < (bytes); at += piece)                               \
      simt::touches(HERE, begin + at, static_cast<std::uint32_t>(piece), Kind::kind); \
  }

#define TELL(bytes)                                                                          \
  void __tsan_read##bytes(void* p) { simt::touches(HERE, p, bytes, Kind::Load); }            \
  void __tsan_write##bytes(void* p) { simt::touches(HERE, p, bytes, Kind::Store); }          \
  void __tsan_volatile_read##bytes(void* p) { simt::touches(HERE, p, bytes, Kind::Load); }   \
  void __tsan_volatile_write##bytes(void* p) { simt::touches(HERE, p, bytes, Kind::Store); } \
  void __tsan_unaligned_read##bytes(void* p) { IN_PIECES(p, bytes, Load) }                   \
  void __tsan_unaligned_write##bytes(void* p) { IN_PIECES(p, bytes, Store) }

namespace {

constexpr std::size_t kVector = 16;  // the most bytes that one instruction moves
constexpr std::size_t kWord = 4;

std::size_t piece_of(const void* begin, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  if (bytes > kVector && address % kVector == 0 && bytes % kVector == 0) return kVector;
  return address % kWord == 0 && bytes % kWord == 0 ? kWord : 1;
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}

TELL(1)
TELL(2)
TELL(4)
TELL(8)
TELL(16)
void __tsan_read_range(void* p, std::size_t bytes) { IN_PIECES(p, bytes, Load) }
void __tsan_write_range(void* p, std::size_t bytes) { IN_PIECES(p, bytes, Store) }

void __sanitizer_cov_trace_pc() { simt::enters(HERE); }

// C++ atomics, which the host code in a kernel's file may use. They execute; updates are reported.
#define ATOMICS(bits)                                                                         \
  using Word##bits = std::uint##bits##_t;                                                     \
  Word##bits __tsan_atomic##bits##_load(const volatile Word##bits* p, int) {                  \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                              \
  }                                                                                           \
  void __tsan_atomic##bits##_store(volatile Word##bits* p, Word##bits value, int) {           \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                           \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile Word##bits* p, Word##bits* old,  \
                                                    Word##bits value, int, int) {             \
    return __atomic_compare_exchange_n(p, old, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                           \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile Word##bits* p, Word##bits* old,    \
                                                  Word##bits value, int, int) {               \
    return __atomic_compare_exchange_n(p, old, value, 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                           \
  UPDATE(bits, exchange, exchange_n)                                                          \
  UPDATE(bits, fetch_add, fetch_add)                                                          \
  UPDATE(bits, fetch_sub, fetch_sub)                                                          \
  UPDATE(bits, fetch_and, fetch_and)                                                          \
  UPDATE(bits, fetch_or, fetch_or)                                                            \
  UPDATE(bits, fetch_xor, fetch_xor)
#define UPDATE(bits, name, builtin)                                                        \
  Word##bits __tsan_atomic##bits##_##name(volatile Word##bits* p, Word##bits value, int) { \
    simt::touches(HERE, const_cast<Word##bits*>(p), bits / 8, Kind::Atomic);               \
    return __atomic_##builtin(p, value, __ATOMIC_SEQ_CST);                                 \
  }
ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"
