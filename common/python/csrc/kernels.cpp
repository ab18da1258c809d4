#include "common/python/csrc/kernels.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>

#include <mutex>
#ifdef LNC_WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace layernorm_chapters {
namespace {

/// The functions of lnc.h in the loaded library.
struct Library {
  decltype(&lnc_forward) forward = nullptr;
  decltype(&lnc_backward) backward = nullptr;
  decltype(&lnc_forward_plan) forward_plan = nullptr;
  decltype(&lnc_backward_plan) backward_plan = nullptr;
  decltype(&lnc_last_error) last_error = nullptr;
  const char* backend = nullptr;
};

Library loaded;
std::mutex loading;

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  TORCH_CHECK(function != nullptr, "the library of kernels has no function ", name);
}

const Library& library() {
  TORCH_CHECK(loaded.backend != nullptr, "layernorm_chapters has loaded no library of kernels yet");
  return loaded;
}

void check(lnc_status status) {
  if (status == LNC_OK) return;
  const std::string why = library().last_error();
  TORCH_CHECK_VALUE(
      status != LNC_UNKNOWN_CHAPTER && status != LNC_REFUSED && status != LNC_BAD_ARGUMENT, why,
      status == LNC_UNKNOWN_CHAPTER ? "; layernorm_chapters.chapters() lists them" : "");
  TORCH_CHECK(false, why);
}

template <typename Args>
void set_chapter_and_stream(Args& args, const Norm& norm, [[maybe_unused]] const at::Tensor& like) {
  args.chapter = norm.chapter.empty() ? nullptr : norm.chapter.c_str();
#ifdef LNC_WITH_CUDA
  if (like.is_cuda()) args.stream = c10::cuda::getCurrentCUDAStream(like.get_device()).stream();
#endif
}

/// Allocates the workspace that a plan asks for; it must live until the library has been called.
template <typename Args>
at::Tensor give_workspace(Args& args, const lnc_plan& plan, const at::Tensor& like) {
  const auto bytes = static_cast<std::int64_t>(plan.workspace_bytes);
  at::Tensor workspace = allocate({bytes}, at::kByte, like.device());
  args.workspace = workspace.data_ptr();
  args.workspace_bytes = plan.workspace_bytes;
  return workspace;
}

lnc_dtype dtype_of(at::ScalarType type) {
  if (type == at::kHalf) return LNC_F16;
  return type == at::kBFloat16 ? LNC_BF16 : LNC_F32;
}

}  // namespace

void load(const std::string& path) {
  const std::lock_guard lock(loading);
  if (loaded.backend != nullptr) return;
  void* const file = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(file != nullptr, path, " cannot be loaded: ", dlerror());
  decltype(&lnc_abi) abi = nullptr;
  decltype(&lnc_backend) backend = nullptr;
  find(file, "lnc_abi", abi);
  TORCH_CHECK(abi() == LNC_ABI, path, " has version ", abi(),
              " of the interface, and this package is written for version ", LNC_ABI);
  Library found;
  find(file, "lnc_forward", found.forward);
  find(file, "lnc_backward", found.backward);
  find(file, "lnc_forward_plan", found.forward_plan);
  find(file, "lnc_backward_plan", found.backward_plan);
  find(file, "lnc_last_error", found.last_error);
  find(file, "lnc_backend", backend);
  found.backend = backend();
  loaded = found;
}

const char* backend() { return library().backend; }

lnc_problem Norm::problem(at::ScalarType dtype, at::ScalarType parameter_dtype) const {
  return {.kind = rms ? LNC_RMS : LNC_LAYER,
          .dtype = dtype_of(dtype),
          .parameter_dtype = dtype_of(parameter_dtype),
          .eps = static_cast<float>(eps),
          .rows = rows,
          .cols = cols,
          .batch_invariant = batch_invariant};
}

at::Tensor allocate(at::IntArrayRef size, at::ScalarType dtype, at::Device device) {
#ifdef LNC_WITH_CUDA
  if (device.is_cuda())
    return at::Tensor(at::detail::empty_cuda(size, dtype, device, std::nullopt));
#endif
  TORCH_INTERNAL_ASSERT(device.is_cpu());
  return at::Tensor(at::detail::empty_cpu(size, dtype));
}

namespace {

/// A forward pass seldom needs a workspace: this calls it directly, and asks for its plan only if
/// the library reports that the workspace is too small.
lnc_status call(lnc_forward_args& args, const Norm& norm, const at::Tensor& like) {
  const c10::OptionalDeviceGuard guard(like.device());
  set_chapter_and_stream(args, norm, like);
  const lnc_status status = library().forward(&args);
  if (status != LNC_SMALL_WORKSPACE) return status;
  lnc_plan plan;
  check(library().forward_plan(&args, &plan));
  const at::Tensor workspace = give_workspace(args, plan, like);
  return library().forward(&args);
}

lnc_status call(lnc_backward_args& args, const Norm& norm, const at::Tensor& like) {
  const c10::OptionalDeviceGuard guard(like.device());
  set_chapter_and_stream(args, norm, like);
  lnc_plan plan;
  if (const lnc_status status = library().backward_plan(&args, &plan); status != LNC_OK)
    return status;
  at::Tensor workspace;
  if (plan.workspace_bytes > 0) workspace = give_workspace(args, plan, like);
  return library().backward(&args);
}

template <typename Args>
bool call_if_taken(Args& args, const Norm& norm, const at::Tensor& like) {
  const lnc_status status = call(args, norm, like);
  if (status == LNC_REFUSED || status == LNC_BAD_ARGUMENT) return false;
  check(status);
  return true;
}

}  // namespace

void run(lnc_forward_args& args, const Norm& norm, const at::Tensor& like) {
  check(call(args, norm, like));
}
void run(lnc_backward_args& args, const Norm& norm, const at::Tensor& like) {
  check(call(args, norm, like));
}

bool run_if_taken(lnc_forward_args& args, const Norm& norm, const at::Tensor& like) {
  return call_if_taken(args, norm, like);
}
bool run_if_taken(lnc_backward_args& args, const Norm& norm, const at::Tensor& like) {
  return call_if_taken(args, norm, like);
}

}  // namespace layernorm_chapters
