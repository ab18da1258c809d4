#include "common/simt/copies.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/simt/block.h"
#include "common/simt/words.h"

namespace simt {
namespace {

constexpr std::byte kPoison{0xFF};  // fills a copy's destination until it arrives

void poison(std::byte* to, std::size_t bytes) { std::memset(to, static_cast<int>(kPoison), bytes); }
bool is_poison(const std::byte* p, std::size_t bytes) {
  return std::all_of(p, p + bytes, [](std::byte byte) { return byte == kPoison; });
}

bool is_multiple(const void* p, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

}  // namespace

std::uint64_t next_copy() {
  static std::atomic<std::uint64_t> next = 0;
  return next++;
}

// ------------------------------------------------------------------------------ a thread's copies

std::string ThreadCopies::begin(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                                std::uint64_t number) {
  if (bytes != 4 && bytes != 8 && bytes != 16)
    return "copies " + std::to_string(bytes) + " bytes, and not 4, 8 or 16";
  if (zeros > bytes) return "wants more zeros than bytes";
  if (!is_multiple(to, bytes)) return "copies to an address that is not a multiple of the size";
  if (!is_multiple(from, bytes)) return "copies from an address that is not a multiple of the size";
  Copy copy{static_cast<std::byte*>(to), {}, bytes, groups_, number};
  if (zeros < bytes) std::memcpy(copy.data.data(), from, bytes - zeros);
  poison(copy.to, bytes);
  copies_.push_back(copy);
  return "";
}

std::string ThreadCopies::wait(std::size_t prior, Witness& witness) {
  auto copy = copies_.begin();
  for (; copy != copies_.end() && copy->group + prior < groups_; ++copy) {
    if (!is_poison(copy->to, copy->bytes))
      return "waits for a copy whose destination was written to before it had arrived";
    std::memcpy(copy->to, copy->data.data(), copy->bytes);
    witness.arrives(copy->number);
  }
  copies_.erase(copies_.begin(), copy);
  return "";
}

// ----------------------------------------------------------------------- mbarriers and bulk copies

std::string BulkCopy::name() const {
  const bool is_remote_store = data.size() < 16;  // st.async; bulk copies have at least 16 bytes
  const std::string kind = is_remote_store ? "asynchronous" : "bulk";
  const std::string does = barrier != nullptr && !is_remote_store ? "load" : "store";
  return "the " + kind + " " + does + " of " + std::to_string(data.size()) + " bytes that thread " +
         std::to_string(thread) + " began at " + to_string(where);
}

std::string CopyEngine::init(const void* barrier, unsigned arrivals) {
  if (arrivals == 0 || arrivals >= 1u << 20) return "wants 0 or more than 2^20 - 1 arrivals";
  if (!barriers_.emplace(barrier, Mbarrier{.arrivals = arrivals}).second)
    return "initialises a Barrier for the second time";
  return "";
}

void CopyEngine::fence_init() {
  for (auto& [address, barrier] : barriers_) barrier.fenced = true;
}

std::string CopyEngine::expect(const void* address, std::uint32_t bytes) {
  Mbarrier* const barrier = find(address);
  if (barrier == nullptr) return "expects bytes at a Barrier that is not initialised";
  barrier->bytes += bytes;
  return barrier->bytes >= 1 << 20 ? "expects 2^20 bytes or more" : "";
}

std::string CopyEngine::arrive(const void* address, std::uint32_t bytes) {
  Mbarrier* const barrier = find(address);
  if (barrier == nullptr) return "arrives at a Barrier that is not initialised";
  if (barrier->pending == 0) return "arrives at a Barrier that has all arrivals of its phase";
  if (const std::string problem = expect(address, bytes); !problem.empty()) return problem;
  --barrier->pending;
  complete_phase(address, *barrier);
  return "";
}

void CopyEngine::complete_phase(const void* address, Mbarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  witness_.completes(address);
}

std::string CopyEngine::begin(BulkCopy copy, std::size_t bytes) {
  const Mbarrier* const barrier = find(copy.barrier);
  if (copy.barrier != nullptr && barrier == nullptr)
    return "names a Barrier that is not initialised";
  if (barrier != nullptr && !barrier->fenced)
    return "names a Barrier that the copy engine does not know: fence_barrier_init()";
  if (copy.barrier == nullptr && !stores_fenced_)
    return "copies what is not yet visible to the copy engine: fence_proxy_async()";
  if (bytes == 0 || bytes % 16 != 0)
    return "copies " + std::to_string(bytes) + " bytes, which is not a multiple of 16";
  if (!is_multiple(copy.to, 16)) return "copies to an address that is not a multiple of 16";
  if (!is_multiple(copy.from, 16)) return "copies from an address that is not a multiple of 16";
  copy.data.assign(copy.from, copy.from + bytes);
  post(std::move(copy));
  return "";
}

void CopyEngine::post(BulkCopy copy) {
  poison(copy.to, copy.data.size());
  copies_.push_back(std::move(copy));
}

bool CopyEngine::has_store(unsigned thread, unsigned before_group) const {
  return std::any_of(copies_.begin(), copies_.end(), [&](const BulkCopy& copy) {
    return copy.barrier == nullptr && copy.thread == thread && copy.group < before_group;
  });
}

std::string CopyEngine::complete(std::size_t i) {
  const BulkCopy copy = std::move(copies_[i]);
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
  witness_.arrives(copy.number);
  const bool store = copy.barrier == nullptr;
  if (store && std::memcmp(copy.from, copy.data.data(), copy.data.size()) != 0)
    return copy.name() + " had not read its source when that was written to";
  if (!store && !is_poison(copy.to, copy.data.size()))
    return copy.name() + " had not arrived when its destination was written to";
  std::memcpy(copy.to, copy.data.data(), copy.data.size());
  if (store) return "";
  Mbarrier& barrier = *find(copy.barrier);
  barrier.bytes -= static_cast<std::int64_t>(copy.data.size());
  if (barrier.pending == 0 && barrier.bytes < 0)
    return copy.name() + " brings " + std::to_string(-barrier.bytes) +
           " bytes that its Barrier does not expect";
  complete_phase(copy.barrier, barrier);
  return "";
}

std::string CopyEngine::unfinished() const {
  if (!copies_.empty()) return "it ends while " + copies_.front().name() + " is on its way";
  for (const auto& [address, barrier] : barriers_) {
    if (barrier.bytes != 0) return "it ends while a Barrier " + missing(address);
  }
  return "";
}

std::string CopyEngine::missing(const void* address) const {
  const Mbarrier* const barrier = find(address);
  if (barrier == nullptr) return "does not exist";
  return "lacks " + std::to_string(barrier->pending) + " arrivals and " +
         std::to_string(barrier->bytes) + " bytes";
}

// ------------------------------------------------------------------------- what kernels call

void barrier_init(const void* barrier, unsigned arrivals, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  const Thread& self = block.at(Op::BarrierInit, where);
  block.require_shared(barrier);
  block.require(block.copies().init(barrier, arrivals));
  block.witness().inits(self.number, barrier);
}

void fence_barrier_init() {
  const Entered entered;
  Block& block = *entered;
  block.copies().fence_init();
  block.witness().fence_barrier_init(block.running().number);
}

void fence_proxy_async() {
  const Entered entered;
  Block& block = *entered;
  block.copies().fence_stores();
  block.witness().fence_for_copies(block.running().number);
}

void barrier_arrive(const void* barrier, std::uint32_t bytes, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  const Thread& self = block.at(Op::BarrierArrive, where);
  block.witness().arrives(self.number, barrier);
  block.require(block.copies().arrive(barrier, bytes));
  block.wake();
}

void barrier_expect(const void* barrier, std::uint32_t bytes, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  block.at(Op::BarrierArrive, where);
  block.require(block.copies().expect(barrier, bytes));
}

unsigned barrier_parity(const void* barrier, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  block.at(Op::BarrierArrive, where);
  if (!block.copies().knows(barrier)) block.require("asks a Barrier that is not initialised");
  return block.copies().parity(barrier);
}

// The running thread, at a wait that is possible.
static Thread& at_wait(Block& block, const void* barrier, unsigned parity,
                       std::source_location where) {
  Thread& self = block.at(Op::BarrierWait, where);
  if (!block.copies().knows(barrier)) block.require("waits for a Barrier that is not initialised");
  if (parity > 1) block.require("waits for a parity that is not 0 or 1");
  return self;
}

bool barrier_passed(const void* barrier, unsigned parity, Scope scope, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  Thread& self = at_wait(block, barrier, parity, where);
  const void* const place = self.place;
  yield();
  if (!block.copies().passed(barrier, parity)) return false;
  self.place = place;
  block.witness().passes(self.number, barrier, scope);
  return true;
}

void barrier_wait(const void* barrier, unsigned parity, Scope scope, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  Thread& self = at_wait(block, barrier, parity, where);
  self.object = barrier;
  self.mask = parity;
  block.wait();
  block.witness().passes(self.number, barrier, scope);
}

// Starts a load or a store for the running thread; a store has no barrier.
static void begin_bulk_copy(Block& block, Copy::Kind kind, void* to, const void* from,
                            std::uint32_t bytes, const void* barrier) {
  const Thread& self = block.running();
  const std::uint64_t number = next_copy();
  block.witness().begins(self.number, number, {kind, self.place, to, from, bytes, barrier});
  block.require(block.copies().begin({.to = static_cast<std::byte*>(to),
                                      .from = static_cast<const std::byte*>(from),
                                      .data = {},
                                      .barrier = barrier,
                                      .thread = self.number,
                                      .group = self.groups,
                                      .number = number,
                                      .where = self.where},
                                     bytes));
}

void bulk_load(void* to, const void* from, std::uint32_t bytes, const void* barrier,
               std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  block.at(Op::BulkLoad, where);
  block.require_shared(to);
  begin_bulk_copy(block, Copy::Kind::BulkLoad, to, from, bytes, barrier);
}

void bulk_store(void* to, const void* from, std::uint32_t bytes, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  block.at(Op::BulkStore, where);
  block.require_shared(from);
  begin_bulk_copy(block, Copy::Kind::BulkStore, to, from, bytes, nullptr);
}

void commit_bulk_stores() {
  const Entered entered;
  Block& block = *entered;
  ++block.running().groups;
  block.witness().commits(block.running().number, Copy::Kind::BulkStore);
}

void wait_bulk_stores(unsigned groups, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  Thread& self = block.at(Op::BulkWait, where);
  self.mask = groups;
  block.wait();
  block.witness().waited(self.number, Copy::Kind::BulkStore, groups);
}

void memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                  std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  Thread& self = block.at(Op::MemcpyAsync, where);
  block.require_shared(to);
  const std::uint64_t number = next_copy();
  const std::size_t read = bytes - std::min(zeros, bytes);
  block.witness().begins(self.number, number,
                         {Copy::Kind::OfThread, self.place, to, from, read, nullptr});
  block.require(self.copies.begin(to, from, bytes, zeros, number));
}

void commit_copies() {
  const Entered entered;
  Block& block = *entered;
  block.running().copies.commit();
  block.witness().commits(block.running().number, Copy::Kind::OfThread);
}

void wait_for_copies(std::size_t prior, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  Thread& self = block.at(Op::WaitPrior, where);
  block.require(self.copies.wait(prior, block.witness()));
  block.witness().waited(self.number, Copy::Kind::OfThread, prior);
}

}  // namespace simt
