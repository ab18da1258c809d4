// Handshakes between threads: one executes a fence and then an atomic, the other an atomic on the
// same address and then a fence. When nothing orders two accesses, `make race` searches these for
// an incomplete handshake and says which part of it is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/simt/watch.h"
#include "common/watch/clocks.h"
#include "common/watch/shadow.h"

namespace lnc::race {

/// A thread at some point of its execution.
struct Moment {
  Serial block;
  unsigned thread;
  Tick tick;
  Knowledge knows;

  /// Whether everything that another thread did in a tick comes before this moment.
  bool is_after(Serial of_block, unsigned of_thread, Tick of_tick) const {
    if (of_block == block && of_thread == thread) return of_tick <= tick;
    return knows->floors.cover(of_block) || known_of(knows->blocks, of_block, of_thread) >= of_tick;
  }
  /// Whether it comes before by that or by words that relate the two.
  bool is_after_by_words(Serial of_block, unsigned of_thread, Tick of_tick) const {
    return is_after(of_block, of_thread, of_tick) || knows->by_words.floors.cover(of_block) ||
           known_of(knows->by_words.blocks, of_block, of_thread) >= of_tick;
  }
  bool is_after(const Moment& other) const {
    return is_after(other.block, other.thread, other.tick);
  }
};

/// What would order two accesses, in words, and the line that this concerns, if any.
struct Missing {
  std::string words;
  simt::Place place = nullptr;
};

class Handshakes {
 public:
  /// Says "thread 3 of block 7".
  using NameOf = std::function<std::string(Serial block, unsigned thread)>;

  /// @param what the access is, by which a thread lets go or goes on: "atomic"
  void access(const void* address, const Moment& moment, simt::Place place, const char* what) {
    auto& updates = updates_[address];
    if (!updates.empty() && is_same(updates.back().moment, moment)) return;
    if (updates.size() == kMost) updates.erase(updates.begin());
    updates.push_back({moment, place, what, next_++});
  }
  void fence(const Moment& moment, simt::Scope scope) {
    fences_[{moment.block, moment.thread}].push_back({moment, scope});
  }
  void clear() {
    updates_.clear();
    fences_.clear();
  }

  /// Whether a thread has executed a fence since an atomic of its own, as a later moment knows.
  bool is_fenced_after(const Moment& atomic, const Moment& second, simt::Scope scope) const {
    return fence_after(atomic, second, scope) == Found::Right;
  }

  /// What is missing from a handshake attempted between two accesses; none if there was no attempt.
  std::optional<Missing> missing(const Moment& first, const Moment& second,
                                 const NameOf& name) const {
    std::optional<Missing> found;
    if (fences_.empty()) return found;
    // Of the same block; of the same GPU, whose last block may speak for all.
    const bool of_gpus = scope_of_both(first.block, second.block) == simt::Scope::System;
    const auto are_together = [of_gpus](const Moment& a, const Moment& b) {
      return of_gpus ? gpu_of(a.block) == gpu_of(b.block) : a.block == b.block;
    };
    for (const auto& [address, updates] : updates_) {
      for (const Update& released : updates) {
        for (const Update& acquired : updates) {
          if (released.number >= acquired.number || !are_together(released.moment, first) ||
              !are_together(acquired.moment, second))
            continue;
          if (auto answer = between(first, released, acquired, second, name)) {
            if (answer->second) return answer->first;
            found = answer->first;
          }
        }
      }
    }
    return found;
  }

 private:
  static constexpr std::size_t kMost = 256;  // updates kept per address

  struct Update {
    Moment moment;
    simt::Place place;
    const char* what;
    std::uint64_t number;  // in the order in which they happened
  };
  struct Fence {
    Moment moment;
    simt::Scope scope;
  };
  enum class Found { None, TooNear, Right };

  static bool is_same(const Moment& a, const Moment& b) {
    return a.block == b.block && a.thread == b.thread && a.tick == b.tick;
  }

  // What this handshake lacks, and whether that is only a fence.
  std::optional<std::pair<Missing, bool>> between(const Moment& first, const Update& released,
                                                  const Update& acquired, const Moment& second,
                                                  const NameOf& name) const {
    const bool lets_go_after = released.moment.is_after(first);
    const bool waits_before = second.is_after(acquired.moment);
    const simt::Scope scope = scope_of_both(first.block, second.block);
    const Found let_go = fence_between(first, released.moment, scope);
    const Found taken = fence_after(acquired.moment, second, scope);
    const std::string releaser = name(released.moment.block, released.moment.thread);
    const std::string acquirer = name(acquired.moment.block, acquired.moment.thread);
    if (lets_go_after && waits_before) {
      if (let_go == Found::Right && taken == Found::Right) return std::nullopt;
      if (let_go == Found::None && taken == Found::None) return std::nullopt;
      const bool before = let_go != Found::Right;
      const Found fence = before ? let_go : taken;
      const Update& update = before ? released : acquired;
      const bool of_system = scope == simt::Scope::System;
      std::string words = of_system ? "a __threadfence_system() " : "a __threadfence() ";
      if (fence == Found::TooNear)
        words += of_system
                     ? "in place of the __threadfence(), which orders nothing for other GPUs, "
                     : "in place of the __threadfence_block(), which orders nothing for other "
                       "blocks, ";
      words += std::string(before ? "before" : "after") + " the " + update.what + " by which " +
               (before ? releaser + " lets go" : acquirer + " goes on");
      return std::pair{Missing{words, update.place}, true};
    }
    if (has_any_fence(released.moment) && has_any_fence(acquired.moment)) {
      if (!lets_go_after && waits_before && released.moment.block == first.block &&
          released.moment.thread != first.thread)
        return std::pair{
            Missing{"a __syncthreads() before the fence and the " + std::string(released.what) +
                        " by which " + releaser + " lets go",
                    released.place},
            false};
      if (lets_go_after && !waits_before && acquired.moment.block == second.block &&
          acquired.moment.thread != second.thread)
        return std::pair{Missing{"a __syncthreads() after the " + std::string(acquired.what) +
                                     " and the fence by which " + acquirer + " goes on",
                                 acquired.place},
                         false};
    }
    return std::nullopt;
  }

  bool has_any_fence(const Moment& moment) const {
    return fences_.contains({moment.block, moment.thread});
  }
  Found fence_between(const Moment& first, const Moment& released, simt::Scope scope) const {
    return look(released, scope, [&](const Moment& fence) {
      return fence.tick < released.tick && fence.is_after(first);
    });
  }
  Found fence_after(const Moment& acquired, const Moment& second, simt::Scope scope) const {
    return look(acquired, scope, [&](const Moment& fence) {
      return fence.tick >= acquired.tick && second.is_after(fence);
    });
  }
  template <typename Condition>
  Found look(const Moment& of, simt::Scope scope, const Condition& condition) const {
    const auto fences = fences_.find({of.block, of.thread});
    Found found = Found::None;
    if (fences == fences_.end()) return found;
    for (const Fence& fence : fences->second) {
      if (!condition(fence.moment)) continue;
      if (fence.scope >= scope) return Found::Right;
      found = Found::TooNear;
    }
    return found;
  }

  std::unordered_map<const void*, std::vector<Update>> updates_;
  std::map<std::pair<Serial, unsigned>, std::vector<Fence>> fences_;
  std::uint64_t next_ = 0;
};

}  // namespace lnc::race
