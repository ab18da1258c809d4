#include "common/library/former_ids.h"

namespace lnc {
namespace {

struct Retired {
  std::string_view id, now;
};
constexpr Retired kRetired[] = {
#include "retired_ids.inc"
};

}  // namespace

std::string_view current_id(std::string_view id) {
  for (const Retired& retired : kRetired)
    if (retired.id == id) return retired.now;
  return id;
}

}  // namespace lnc
