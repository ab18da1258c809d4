#include "common/simt/crashes.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "common/simt/block.h"
#include "common/simt/gpu.h"
#include "common/simt/places.h"
#include "common/simt/watch.h"

namespace simt {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPage = 4096;
constexpr const char* kHint =
    "`make sanitize` finds all accesses outside of buffers and of shared memory, and "
    "`make check FILE=…` those of a program with its own main.";

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The bytes before a buffer that are not there. A large one has as many as it is long, since an
// offset that has overflowed its 32 bits is negative.
std::size_t room_before(std::size_t inside) {
  constexpr std::size_t kLarge = std::size_t{4} << 30;
  return inside < kLarge ? kPage : inside;
}

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// "directly after the end of a buffer of 4000 bytes": where the address is.
std::string target(const std::byte* p) {
  if (reinterpret_cast<std::uintptr_t>(p) < kPage) return "through a null pointer";
  for (const DeviceBuffer& buffer : device_buffers()) {
    const std::byte* const end = buffer.begin + buffer.bytes;
    const std::string size = " a buffer of " + std::to_string(buffer.bytes) + " bytes";
    if (p >= end && p < end + 2 * kPage)
      return (p == end ? "directly" : std::to_string(p - end) + " bytes") + " after the end of" +
             size;
    const std::size_t room = room_before(rounded_up(buffer.bytes, kPage));
    if (p < buffer.begin && p >= buffer.begin - room - kPage)
      return std::to_string(buffer.begin - p) + " bytes before" + size;
  }
  return "at an address that is in no buffer";
}

std::string what_happened(const Thread& thread, const std::byte* p, const ucontext_t& at) {
  const auto* const bottom = static_cast<const std::byte*>(thread.context.bottom);
  if (p < bottom + kPage && p >= bottom - 16 * kPage)
    return "needs more memory for its local variables than the 64 KB that a thread has here";
#if defined(__x86_64__)
  const bool writes = (at.uc_mcontext.gregs[REG_ERR] & 2) != 0;
  const auto* const code = reinterpret_cast<Place>(at.uc_mcontext.gregs[REG_RIP] + 1);
#else
  const bool writes = false;
  const auto* const code = reinterpret_cast<Place>(at.uc_mcontext.pc + 1);
#endif
  const std::string line = line_at(code);
  return (writes ? "writes memory " : "reads memory ") + target(p) +
         (line.empty() ? "" : ", at " + line);
}

void on_crash(int signal, siginfo_t* info, void* context) {
  ::signal(signal, SIG_DFL);  // what is not a kernel's, and what goes wrong here, ends the program
  if (current_block == nullptr) return;
  alarm(5);
  const Thread& thread = current_block->running();
  const std::string what = what_happened(thread, static_cast<const std::byte*>(info->si_addr),
                                         *static_cast<const ucontext_t*>(context));
  const std::string told =
      current_block->fault("thread " + std::to_string(thread.number) + " " + what).what();
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n%s\n", told.substr(0, told.find("\n  ")).c_str(), kHint);
  _exit(1);
}

}  // namespace

Crashes::Crashes([[maybe_unused]] int core) {
  if (kSanitized) return;
  // The handler's own stack, since the thread's may be full.
  static std::byte stacks[std::max(kMaxCores, kMaxGpus * kGpuCores)][64 << 10];
  stack_t stack{};
  stack.ss_sp = stacks[core];
  stack.ss_size = sizeof stacks[core];
  sigaltstack(&stack, &before_);
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_DFL || (before.sa_flags & SA_SIGINFO) == 0)
      sigaction(signal, &action, nullptr);
  }
}

Crashes::~Crashes() {
  if (kSanitized) return;
  before_.ss_flags &= SS_DISABLE;
  sigaltstack(&before_, nullptr);
}

void* allocate_buffer(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* buffer = nullptr;
  if (kSanitized) {
    if (posix_memalign(&buffer, kAlignment, bytes) != 0) throw std::bad_alloc();
  } else {
    const std::size_t inside = rounded_up(bytes, kPage);
    const std::size_t before = room_before(inside);
    void* const all = mmap(nullptr, before + inside + kPage, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    auto* const begin = static_cast<std::byte*>(all) + before;
    if (mprotect(begin, inside, PROT_READ | PROT_WRITE) != 0) {
      munmap(all, before + inside + kPage);
      throw std::bad_alloc();
    }
    buffer = begin + (inside - rounded_up(bytes, kAlignment));
  }
  add_device_buffer(buffer, bytes);
  return buffer;
}

void free_buffer(void* buffer) {
  const DeviceBuffer* const known = device_buffer_of(static_cast<const std::byte*>(buffer));
  if (buffer == nullptr || known == nullptr) return;
  const std::size_t inside = rounded_up(known->bytes, kPage);
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer) / kPage * kPage;
  remove_device_buffer(buffer);
  if (kSanitized)
    std::free(buffer);
  else
    munmap(reinterpret_cast<void*>(begin - room_before(inside)),
           room_before(inside) + inside + kPage);
}

}  // namespace simt
