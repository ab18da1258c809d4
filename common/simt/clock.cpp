#include "common/simt/clock.h"

#include <link.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <system_error>

#include "common/simt/block.h"

namespace simt {
namespace {

constexpr long kSlowTick = 50'000'000;  // ns that a thread computes
constexpr long kFastTick = 100'000;     // ns, while threads are being interrupted

thread_local constinit Clock* clock_here = nullptr;
thread_local constinit std::atomic<bool> core_asked_for{false};

// The machine code of this program, or of the library that contains the machine and its kernels.
std::span<const std::byte> own_code() {
  std::span<const std::byte> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        for (const auto& part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          const std::span code(reinterpret_cast<const std::byte*>(info->dlpi_addr + part.p_vaddr),
                               part.p_memsz);
          const auto* const here = reinterpret_cast<const std::byte*>(&own_code);
          if (part.p_type != PT_LOAD || here < code.data() || here >= code.data() + code.size())
            continue;
          *static_cast<std::span<const std::byte>*>(out) = code;
          return 1;
        }
        return 0;
      },
      &found);
  return found;
}
std::span<const std::byte> kernels;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x9E37'79B9'7F4A'7C15u + (hash >> 29);
}

// The general registers, without the place in the code: a loop of many instructions that changes
// nothing has few states.
#if defined(__x86_64__)
Place place_in(const ucontext_t& at) {
  return reinterpret_cast<Place>(at.uc_mcontext.gregs[REG_RIP]);
}
std::uint64_t state_of(const ucontext_t& at) {
  std::uint64_t hash = 0;
  for (int i = REG_R8; i <= REG_RSP; ++i) hash = mix(hash, at.uc_mcontext.gregs[i]);
  return hash;
}
#else
Place place_in(const ucontext_t& at) { return reinterpret_cast<Place>(at.uc_mcontext.pc); }
std::uint64_t state_of(const ucontext_t& at) {
  std::uint64_t hash = 0;
  for (const auto each : at.uc_mcontext.regs) hash = mix(hash, each);
  return hash;
}
#endif

timer_t make_timer(clockid_t clock) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGVTALRM;
  event._sigev_un._tid = gettid();
  timer_t timer{};
  if (timer_create(clock, &event, &timer) != 0)
    throw std::system_error(errno, std::generic_category(), "a core's clock");
  return timer;
}

void set(timer_t timer, long first, long every) {
  const itimerspec times{{0, every}, {0, first}};
  timer_settime(timer, 0, &times, nullptr);
}

// Runs on the stack of the thread that it interrupts, which continues when this returns.
void on_tick(int, siginfo_t*, void* context) {
  if (current_block == nullptr || clock_here == nullptr) return;
  const int error = errno;
  const auto& at = *static_cast<const ucontext_t*>(context);
  Scheduler& scheduler = current_block->scheduler();
  const auto* const code = static_cast<const std::byte*>(place_in(at));
  const bool is_kernels =
      scheduler.in_kernel() && code >= kernels.data() && code < kernels.data() + kernels.size();
  const bool has_run =
      (scheduler.has_run_since() || clock_here->is_fast()) && !scheduler.may_run_on();
  if (has_run && current_block->is_watched()) core_asked_for = true;
  if (has_run && is_kernels && !current_block->is_watched()) {
    clock_here->hurry();
    scheduler.interrupt(code + 1, state_of(at));  // a call would return to the next instruction
  } else if (clock_here->is_fast()) {
    clock_here->hurry();
  }
  errno = error;
}

}  // namespace

Clock::Clock() {
  static const bool installed = [] {
    kernels = own_code();
    struct sigaction action {};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;  // it may not return for long
    return sigaction(SIGVTALRM, &action, nullptr) == 0;
  }();
  (void)installed;
  slow_ = make_timer(CLOCK_THREAD_CPUTIME_ID);
  fast_ = make_timer(CLOCK_MONOTONIC);
  clock_here = this;
  set(slow_, kSlowTick, kSlowTick);
}

Clock::~Clock() {
  clock_here = nullptr;
  timer_delete(slow_);
  timer_delete(fast_);
}

// Not periodic: where a signal takes long to arrive, its successors would pile up on the stack.
void Clock::hurry() {
  is_fast_ = true;
  set(fast_, kFastTick, 0);
}

void Clock::slow_down() { clock_here->is_fast_ = false; }

// The state of a watched thread is on its stack: every register that a call keeps, and the rest.
[[gnu::noinline]] void give_way(Place place) {
  if (!core_asked_for) return;
  core_asked_for = false;
  __builtin_unwind_init();
  constexpr std::size_t kMost = 4096;  // bytes of the stack
  const Context& context = current_block->running().context;
  const auto* from = static_cast<const std::byte*>(__builtin_frame_address(0));
  const auto* const top = static_cast<const std::byte*>(context.bottom) + context.size;
  const auto* const end = from + std::min<std::size_t>(kMost, top - from);
  std::uint64_t state = 0;
  for (std::uint64_t word = 0; from + sizeof word <= end; from += sizeof word) {
    std::memcpy(&word, from, sizeof word);
    state = mix(state, word);
  }
  if (clock_here != nullptr) clock_here->hurry();
  current_block->scheduler().interrupt(place, state);
}

}  // namespace simt
