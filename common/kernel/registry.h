// The kernels that this program was linked with, and which problems they take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/kernel/description.h"

namespace lnc {

/// Why a chapter does not take a problem, in words that suit every interface; the caller adds how
/// its own interface spells that option.
struct Refusal {
  std::string sentence = {};  ///< empty if it takes the problem
  /// The problem's option that it is about (common/harness/options.h), if any; "fusion" for all
  /// options of a fusion.
  std::string_view option = {};

  bool empty() const { return sentence.empty(); }
};

/// Why `chapter` does not run on `gpu`, or does not take `problem`. `gpu` defaults to the current
/// one.
Refusal refusal(const Chapter& chapter, const Problem& problem, const Gpu& gpu);
Refusal refusal(const Chapter& chapter, const Problem& problem);

/// All registered kernels: the chapters, then the library's; in each the copy, forward and backward
/// kernels, in the order of their ids.
const std::vector<Chapter>& chapters();

/// A registered kernel by its id; null for an unknown one.
const Chapter* find_chapter(std::string_view id);

}  // namespace lnc
