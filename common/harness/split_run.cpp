#include "common/harness/split_run.h"

#include <mutex>
#include <stdexcept>
#include <string>

#include "common/kernel/split.h"

namespace lnc {
namespace {

/// A part of a tensor, in bytes: `rows` times `bytes`, `pitch` apart, from `begin` on.
struct Region {
  std::int64_t begin = 0, bytes = 0, pitch = 0, rows = 1;
  bool everywhere = false;  ///< every GPU has the whole tensor
};

Region region(const Tensor& tensor, const Problem& problem, Split split, int gpu) {
  const auto [begin, count] = part_of(problem, split, gpu);
  const std::int64_t element = element_type(tensor.dtype()).bytes;
  const std::int64_t whole = tensor.count() * element;
  const std::int64_t row = problem.cols * element;
  const bool by_rows = split == Split::Rows;
  switch (tensor.shape()) {
    case Shape::Matrix:
      if (by_rows) return {begin * row, count * row, count * row};
      return {begin * element, count * element, row, problem.rows};
    case Shape::Rows:
      if (by_rows) return {begin * element, count * element, count * element};
      break;
    case Shape::Columns:
      if (!by_rows) return {begin * element, count * element, count * element};
      break;
  }
  return {0, whole, whole, 1, true};
}

/// The launch of a chapter on one GPU's part.
Launch launch_of(const Chapter& chapter, const Tensors& tensors, const Problem& part,
                 const std::vector<Buffer>& buffers, void* workspace, const Peers& peers) {
  return with_types(part, [&]<typename T, typename W>() -> Launch {
    Arguments<T, W> args{
        {}, arguments_of<ForwardArgs<T, W>>(part), arguments_of<BackwardArgs<T, W>>(part)};
    args.forward.workspace = args.backward.workspace = workspace;
    args.forward.peers = args.backward.peers = &peers;
    const auto descriptions = describe_tensors<T, W>(part, tensors.from_y(), args);
    for (std::size_t i = 0; i < descriptions.size(); ++i)
      if (descriptions[i].in(tensors.direction()))
        descriptions[i].slot(tensors.direction()).set(buffers[i].template as<void>());
    if (const auto* forward = std::get_if<ForwardLaunchers>(&chapter.run))
      return [run = forward->get<T, W>(), a = args.forward] { run(a); };
    return
        [run = std::get<BackwardLaunchers>(chapter.run).get<T, W>(), a = args.backward] { run(a); };
  });
}

/// The words that a launch sends to each GPU: one for each row, or for each column.
std::int64_t slots_of(const Problem& problem, Split split) {
  return split == Split::Columns ? problem.rows : problem.cols;
}

}  // namespace

SplitRun::SplitRun(const Chapter& chapter, const Tensors& tensors)
    : tensors_(tensors),
      split_(chapter.split),
      gpus_(tensors.problem().gpus, slots_of(tensors.problem(), chapter.split)),
      of_gpu_(tensors.problem().gpus) {
  std::mutex one_at_a_time;  // the SIMT machine's list of buffers has no lock
  gpus_.each([&](int gpu) {
    const std::lock_guard lock(one_at_a_time);
    OfGpu& own = of_gpu_[gpu];
    const Problem part = problem_of_gpu(tensors.problem(), split_, gpu);
    for (const Tensor& tensor : tensors.all()) {
      const Region own_part = region(tensor, tensors.problem(), split_, gpu);
      own.tensors.emplace_back(tensor.count() == 0 ? 0 : own_part.bytes * own_part.rows);
      poison(own.tensors.back());
    }
    own.workspace = Buffer(chapter.workspace_bytes == nullptr ? 0 : chapter.workspace_bytes(part));
    poison(own.workspace);
    own.launch =
        launch_of(chapter, tensors, part, own.tensors, own.workspace.as<void>(), gpus_.peers(gpu));
  });
}

void SplitRun::copy(const Tensor& tensor, std::size_t number, int gpu, bool back) const {
  if (tensor.count() == 0) return;
  const Region part = region(tensor, tensors_.problem(), split_, gpu);
  std::byte* const whole = tensor.data() + part.begin;
  auto* const own = of_gpu_[gpu].tensors[number].as<std::byte>();
  if (back)
    copy_rows(whole, part.pitch, own, part.bytes, part.bytes, part.rows);
  else
    copy_rows(own, part.bytes, whole, part.pitch, part.bytes, part.rows);
}

void SplitRun::launch() const {
  const auto& all = tensors_.all();
  for (int gpu = 0; gpu < gpus_.count(); ++gpu)
    for (std::size_t i = 0; i < all.size(); ++i)
      if (!all[i].is_output()) copy(all[i], i, gpu, false);
  gpus_.each([&](int gpu) { of_gpu_[gpu].launch(); });
  gpus_.synchronize();
  collect();
}

void SplitRun::collect() const {
  const auto bytes_of = [](const Buffer& buffer) {
    std::vector<std::byte> host(buffer.bytes());
    download(host.data(), buffer.as<void>(), host.size());
    return host;
  };
  for (std::size_t i = 0; i < tensors_.all().size(); ++i) {
    const Tensor& tensor = tensors_.all()[i];
    if (!tensor.is_output() || tensor.count() == 0) continue;
    const bool everywhere = region(tensor, tensors_.problem(), split_, 0).everywhere;
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      if (!everywhere || gpu == 0)
        copy(tensor, i, gpu, true);
      else if (bytes_of(of_gpu_[gpu].tensors[i]) != bytes_of(of_gpu_[0].tensors[i]))
        throw std::runtime_error("GPU " + std::to_string(gpu) + " has another " +
                                 std::string(tensor.name()) + " than GPU 0");
    }
  }
}

Timing SplitRun::time(const Sampling& sampling) const {
  FlushSchedule schedule;
  const auto take = [&](int count) {
    return gpus_.time([&](int gpu) { of_gpu_[gpu].launch(); }, schedule.draw(count, sampling.cold));
  };
  return time_samples(take, sampling);
}

}  // namespace lnc
