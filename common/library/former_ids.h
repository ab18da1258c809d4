// What a kernel is called today whose id was a chapter's once: former_ids.json.
#pragma once

#include <string_view>

namespace lnc {

/// The id that took the place of a retired chapter's; any other id as it is.
std::string_view current_id(std::string_view id);

}  // namespace lnc
