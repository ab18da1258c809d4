// Watches all launches of a program from elsewhere (common/simt/foreign.h), and writes what it has
// seen as main.cpp does for a chapter, when the program ends.
//
//   SIMT_WATCH_MODE   count, race or trace; without it nothing is watched
//   SIMT_WATCH_BLOCK  the block of each launch that is traced; 0 without it
//   SIMT_WATCH_FILE   where the record goes
#include "common/watch/foreign.h"

#include <cstdlib>
#include <fstream>
#include <memory>

#include "common/harness/records.h"
#include "common/watch/observer.h"

namespace lnc {
namespace {

class Watching {
 public:
  explicit Watching(const char* mode) : mode_(mode) {
    if (mode_ == "count") observer_ = count_requests(names_, kEveryBlock);
    if (mode_ == "race") observer_ = find_races(names_);
    if (mode_ == "trace") observer_ = trace_block(names_, traced_block());
    simt::set_watch(observer_.get());
  }
  ~Watching() {
    simt::set_watch(nullptr);
    const char* const path = std::getenv("SIMT_WATCH_FILE");
    if (path == nullptr || observer_ == nullptr) return;
    nlohmann::ordered_json seen{{"schema", kSchema}, {"mode", mode_}};
    seen["load_address"] = load_address();
    seen["seen"] = observer_->seen();
    std::ofstream(path) << seen << '\n';
  }

 private:
  static std::uint64_t traced_block() {
    const char* const block = std::getenv("SIMT_WATCH_BLOCK");
    return block == nullptr ? 0 : std::strtoull(block, nullptr, 10);
  }

  static constexpr std::int64_t kEveryBlock = 0;  // elements: few enough for each block to count
  const std::string mode_;
  const Names names_;
  std::unique_ptr<Observer> observer_;
};

}  // namespace

void watch_foreign() {
  const char* const mode = std::getenv("SIMT_WATCH_MODE");
  if (mode == nullptr) return;
  static const Watching watching(mode);
}

}  // namespace lnc
