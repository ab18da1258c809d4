// What tests ask of races: the lines in the kernels' file, and what is missing.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/simt/tests/under.h"
#include "common/watch/observer.h"

namespace lnc::findings {

using Json = nlohmann::ordered_json;

/// The line of …race_kernels.cpp that leads to a place, as text.
inline std::string line_of(std::uint64_t place) {
  char command[128];
  std::snprintf(command, sizeof command, "addr2line -e /proc/%d/exe -i %#lx", getpid(),
                static_cast<unsigned long>(place - load_address() - 1));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> answer(popen(command, "r"), pclose);
  char text[1024];
  while (std::fgets(text, sizeof text, answer.get()) != nullptr) {
    const std::string frame = text;
    const auto colon = frame.find(':');
    if (!frame.substr(0, colon).ends_with("race_kernels.cpp")) continue;
    std::ifstream source(frame.substr(0, colon));
    std::string line;
    for (int left = std::atoi(frame.c_str() + colon + 1); left > 0; --left)
      std::getline(source, line);
    return line;
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The one race that there must be, between the two marked lines.
inline Json the_race(const Json& races) {
  REQUIRE_MESSAGE(races.size() == 1, races.dump(1));
  const Json& race = races[0];
  const std::string lines = line_of(race["first"]["place"]) + line_of(race["second"]["place"]);
  INFO(race.dump(1));
  CHECK_MESSAGE(has(lines, "first"), lines);
  CHECK_MESSAGE(has(lines, "second"), lines);
  return race;
}
inline std::string missing(const Json& races) { return the_race(races)["missing"]; }

template <typename Body>
void under_each_schedule(const Body& body) {
  for (const simt::Schedule schedule : simt::kSchedules) {
    const simt::Under under(schedule);
    INFO("order " << static_cast<int>(schedule.order) << ", seed " << schedule.seed);
    body();
  }
}

}  // namespace lnc::findings
