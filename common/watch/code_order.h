// The order in which a GPU would run the lanes of a warp that have diverged.
//
// Places in the code are sorted so that the code after a loop follows the whole loop, and the point
// where two branches meet again follows both: a weak topological order (Bourdoncle, 'Efficient
// chaotic iteration strategies with widenings', 1993). The lanes whose next place is first in this
// order run first: a lane that has left a loop waits for those that are still in it, and lanes that
// took different sides of a branch wait for each other where it ends.
//
// The code's graph is what threads were observed to do: an edge from each place to the next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "common/simt/watch.h"

namespace lnc {

class CodeOrder {
 public:
  using Node = std::uint32_t;
  static constexpr Node kStart = 0;  ///< before a thread's first place

  CodeOrder() : places_(1), next_(1), rank_(1) {}

  /// The node of a place.
  Node node(simt::Place place) {
    const auto [found, is_new] = nodes_.try_emplace(place, static_cast<Node>(places_.size()));
    if (is_new) {
      places_.push_back(place);
      next_.emplace_back();
      rank_.push_back(0);
    }
    return found->second;
  }
  simt::Place place(Node node) const { return places_[node]; }

  /// Records that a thread went from one place to another.
  void goes(Node from, Node to) {
    auto& next = next_[from];
    if (std::find(next.begin(), next.end(), to) != next.end()) return;
    next.push_back(to);
    is_new_ = true;
  }

  /// Sorts the places again if threads have taken new edges.
  void settle() {
    if (!is_new_) return;
    is_new_ = false;
    first_seen_.assign(places_.size(), 0);
    seen_ = 0;
    stack_.clear();
    behind_ = static_cast<std::uint32_t>(places_.size());
    visit(kStart);
  }
  /// A node's position in the order.
  std::uint32_t rank(Node node) const { return rank_[node]; }

 private:
  static constexpr std::uint32_t kDone = std::numeric_limits<std::uint32_t>::max();

  // Bourdoncle's algorithm: Tarjan's for strongly connected components, applied again inside each
  // loop without its head. Assigns ranks from the last to the first. Returns when the earliest node
  // that `node` can return to was first seen.
  std::uint32_t visit(Node node) {
    stack_.push_back(node);
    first_seen_[node] = ++seen_;
    std::uint32_t head = seen_;
    bool loops = false;
    for (const Node next : next_[node]) {
      const std::uint32_t least = first_seen_[next] == 0 ? visit(next) : first_seen_[next];
      if (least > head) continue;
      head = least;
      loops = true;
    }
    if (head != first_seen_[node]) return head;
    first_seen_[node] = kDone;
    Node member = stack_.back();
    stack_.pop_back();
    if (loops) {
      for (; member != node; member = stack_.back(), stack_.pop_back()) first_seen_[member] = 0;
      for (const Node next : next_[node]) {
        if (first_seen_[next] == 0) visit(next);
      }
    }
    rank_[node] = behind_--;
    return head;
  }

  std::unordered_map<simt::Place, Node> nodes_;
  std::vector<simt::Place> places_;
  std::vector<std::vector<Node>> next_;
  std::vector<std::uint32_t> rank_;
  bool is_new_ = false;
  std::vector<std::uint32_t> first_seen_;  // during the visit; 0: not yet
  std::vector<Node> stack_;
  std::uint32_t seen_ = 0;
  std::uint32_t behind_ = 0;
};

}  // namespace lnc
