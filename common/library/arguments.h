// The arguments of a call of lnc.h: checks them, and returns the problem that they describe or
// throws a sentence that names the wrong one; lists their tensors; makes a launch's of them.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/kernel/contract.h"
#include "common/library/lnc.h"
#include "common/library/staging.h"

namespace lnc {

/// Thrown inside a call: a status with its sentence.
struct Failure : std::runtime_error {
  Failure(lnc_status status, const std::string& why) : std::runtime_error(why), status(status) {}
  lnc_status status;
};

/// `why` is a sentence, or a function that returns one.
template <typename Why>
void require(bool holds, const Why& why) {
  if (holds) return;
  if constexpr (std::is_invocable_v<Why>)
    throw Failure(LNC_BAD_ARGUMENT, why());
  else
    throw Failure(LNC_BAD_ARGUMENT, why);
}

/// Whether a pointer is a multiple of 16, as vectors and copies require.
inline bool at_boundary(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// The problem that the arguments describe. Throws Failure where they contradict each other.
Problem check(const lnc_forward_args& a);
Problem check(const lnc_backward_args& a);

/// Whether a pass overwrites x with y, or the residual with the sum.
bool is_in_place(const lnc_forward_args& a);

/// Where rows start; dense if `given` is null or describes contiguous rows.
RowStrides strides_of(const lnc_rows* given, const Problem& problem);

/// A tensor among a call's arguments that may start anywhere.
struct CallTensor {
  const void*& data;  ///< the argument itself
  bool output;
  StagedShape shape;
  const lnc_rows** rows = nullptr;  ///< the argument that says where its rows start, if one does
};
using TensorVisitor = std::function<void(const CallTensor&)>;

/// Calls `visit` for each such tensor of a call. @param f *a.fused, or null
template <typename Call, typename Fused>
void for_each_tensor(const Problem& p, Call& a, Fused* f, const TensorVisitor& visit);

/// The arguments of a launch on a call's tensors.
template <typename Args, typename Call>
Args launch_args(const Problem& problem, const Call& a);

}  // namespace lnc
