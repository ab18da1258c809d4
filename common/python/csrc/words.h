// Sizes, types and devices in words. PyTorch's own operator<< writes to a std::ostream. If this
// library is linked with its own libstdc++, PyTorch must not touch that library's streams, so
// messages consist of strings, numbers and these words.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>

#include <string>

namespace layernorm_chapters {

/// "torch.bfloat16"
std::string words(at::ScalarType type);
/// "7", or "s0" for a symbol
std::string words(const c10::SymInt& size);
/// "[3, 7]"
std::string words(c10::SymIntArrayRef shape);
/// "cuda:0"
std::string words(const at::Device& device);
/// "torch.strided"
std::string words(at::Layout layout);
/// "1e-05"
std::string words(double number);

}  // namespace layernorm_chapters
