// The current ids of kernels that were once chapters: former_ids.json.
#pragma once

#include <string_view>

namespace lnc {

/// The id that replaced a retired chapter's; any other id unchanged.
std::string_view current_id(std::string_view id);

}  // namespace lnc
