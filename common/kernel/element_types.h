// The element types that a tensor may have, each described once, for all code that allocates,
// rounds, checks, names or saves elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace lnc {

enum class DType { F32, F16, BF16, U32, U8 };

/// The properties of an element type.
struct ElementType {
  DType dtype;
  std::string_view name;       ///< on the command line and in records
  std::string_view long_name;  ///< NumPy's and PyTorch's
  std::string_view numpy;      ///< in an .npy file; a bfloat16 is saved as its 16 bits
  int bytes;
  double roundoff = 0.0;     ///< half an ulp, relative to a normal number
  double smallest = 0.0;     ///< half the distance between two subnormal numbers
  double error_limit = 0.0;  ///< on a whole output's relative error in norm
};

template <typename T>
inline constexpr ElementType kElementType = {};
template <>
inline constexpr ElementType kElementType<float> = {DType::F32, "f32",   "float32", "<f4",
                                                    4,          0x1p-24, 0x1p-150,  1e-5};
template <>
inline constexpr ElementType kElementType<__half> = {DType::F16, "f16",   "float16", "<f2",
                                                     2,          0x1p-11, 0x1p-25,   6e-4};
template <>
inline constexpr ElementType kElementType<__nv_bfloat16> = {DType::BF16, "bf16", "bfloat16", "<u2",
                                                            2,           0x1p-8, 0x1p-134,   4e-3};
// For the seeds and masks of dropout; never a problem's type.
template <>
inline constexpr ElementType kElementType<std::uint32_t> = {DType::U32, "u32", "uint32", "<u4", 4};
template <>
inline constexpr ElementType kElementType<std::uint8_t> = {DType::U8, "u8", "uint8", "|u1", 1};

/// The types of a problem, for `X(T)`.
#define LNC_ELEMENT_TYPES(X) X(float) X(__half) X(__nv_bfloat16)
/// The types that only single tensors have.
#define LNC_OTHER_TYPES(X) X(std::uint32_t) X(std::uint8_t)

/// The pairs of types that chapters are compiled for: T of x, y, dy and dx, W of the parameters and
/// their gradients. `X(name, T, W)`; a chapter's registration lists its launchers in this order.
#define LNC_TYPE_PAIRS(X)               \
  X(f32, float, float)                  \
  X(f16, __half, __half)                \
  X(bf16, __nv_bfloat16, __nv_bfloat16) \
  X(f16_mixed, __half, float)           \
  X(bf16_mixed, __nv_bfloat16, float)

/// Calls `body.template operator()<T>()` with the C++ type of `dtype`.
template <typename Body>
auto with_element_type(DType dtype, Body&& body) {
#define LNC_CALL(T) \
  if (dtype == kElementType<T>.dtype) return body.template operator()<T>();
  LNC_ELEMENT_TYPES(LNC_CALL)
  LNC_OTHER_TYPES(LNC_CALL)
#undef LNC_CALL
  throw std::logic_error("this dtype is no element type");
}

inline const ElementType& element_type(DType dtype) {
#define LNC_RETURN(T) \
  if (dtype == kElementType<T>.dtype) return kElementType<T>;
  LNC_ELEMENT_TYPES(LNC_RETURN)
  LNC_OTHER_TYPES(LNC_RETURN)
#undef LNC_RETURN
  throw std::logic_error("this dtype is no element type");
}

}  // namespace lnc
