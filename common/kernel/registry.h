// The kernels that this program was linked with, and which problems they take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/kernel/description.h"

namespace lnc {

/// Why a chapter does not take a problem, in words that hold in every language; whoever passes it
/// on adds how that part of a request is spelt there.
struct Refusal {
  std::string sentence = {};  ///< empty: it takes it
  /// The option of the problem that it is about (common/harness/options.h), if one;
  /// "fusion" for any of a fusion's.
  std::string_view option = {};

  bool empty() const { return sentence.empty(); }
};

/// Why `chapter` does not run on `gpu`, or does not take `problem`. Without a GPU, it is the
/// current one.
Refusal refusal(const Chapter& chapter, const Problem& problem, const Gpu& gpu);
Refusal refusal(const Chapter& chapter, const Problem& problem);

/// All registered kernels: the chapters, then the library's; of each the copy, forward, backward,
/// in the order of their ids.
const std::vector<Chapter>& chapters();

/// A registered kernel by its id; null for an unknown one.
const Chapter* find_chapter(std::string_view id);

}  // namespace lnc
