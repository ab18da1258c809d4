// Which kernel a call of lnc.h runs, on which problem, and with how much memory.
#pragma once

#include <cstdint>

#include "common/kernel/contract.h"
#include "common/kernel/description.h"
#include "common/library/dispatch.h"
#include "common/library/lnc.h"

namespace lnc {

/// What a call will run. The problem is frozen only if the chapter can omit the frozen gradients.
struct Plan {
  Problem problem;  ///< as the chapter sees it, after staging
  const Chapter* chapter;
  const Choice* line;            ///< of the dispatch's table; null if the chapter was asked for
  std::int64_t workspace_bytes;  ///< the chapter's own
};

/// The plan for a call. Each thread caches its last plans, since a model repeats the same few
/// calls. Throws Failure if the arguments are wrong or no kernel takes them.
Plan plan_for(const lnc_forward_args& a);
Plan plan_for(const lnc_backward_args& a);

}  // namespace lnc
