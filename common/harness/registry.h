// The chapters that this program was linked with, and which problems they take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/kernel/description.h"

namespace lnc {

/// Why `chapter` does not run on `gpu`, or does not take `problem`, in one sentence; empty where it
/// does. Without a GPU, it is the device's.
std::string refusal(const Chapter& chapter, const Problem& problem, const Gpu& gpu);
std::string refusal(const Chapter& chapter, const Problem& problem);

/// All registered chapters: forward before backward, each in the order of its ids.
const std::vector<Chapter>& chapters();

/// A registered chapter by its id; null for an unknown one.
const Chapter* find_chapter(std::string_view id);

}  // namespace lnc
