// The CPU backend's GPUs: those of the SIMT machine.
#include <cstring>
#include <stdexcept>

#include "common/harness/device.h"
#include "common/harness/gpus.h"
#include "common/kernel/peers.h"
#include "common/simt/gpu.h"
#include "common/simt/watch.h"

namespace lnc {

int gpu_count() { return simt::kMaxGpus; }
int usual_gpus() { return 2; }

std::string describe_gpus(int count) { return std::to_string(count) + " GPUs of the SIMT machine"; }

struct Gpus::State {
  struct Gpu {
    Buffer words, counters;
  };
  std::vector<Gpu> gpus;
  std::unique_ptr<simt::Window> window;
  std::vector<Peers> peers;
  unsigned silent = 0;
};

Gpus::Gpus(int count, std::int64_t slots) : state_(std::make_unique<State>()) {
  if (count > gpu_count())
    throw std::runtime_error("the SIMT machine has " + std::to_string(gpu_count()) + " GPUs, not " +
                             std::to_string(count));
  std::vector<std::byte*> bases;
  for (int gpu = 0; gpu < count; ++gpu) {
    State::Gpu& made = state_->gpus.emplace_back();
    made.words = Buffer(2 * slots * count * sizeof(Word));
    made.counters = Buffer(2 * sizeof(unsigned));
    for (const Buffer* buffer : {&made.words, &made.counters}) {
      if (buffer->bytes() > 0) std::memset(buffer->as<void>(), 0, buffer->bytes());
    }
    simt::set_buffer_gpu(made.counters.as<std::byte>(), gpu);
    bases.push_back(made.words.as<std::byte>());
  }
  state_->window = simt::make_window(bases);
  for (int gpu = 0; gpu < count; ++gpu) {
    auto* const counters = state_->gpus[gpu].counters.as<unsigned>();
    state_->peers.push_back({state_->window.get(), nullptr, gpu, count, slots, counters,
                             counters + 1, &state_->silent});
  }
}

Gpus::~Gpus() = default;

int Gpus::count() const { return static_cast<int>(state_->gpus.size()); }
const Peers& Gpus::peers(int gpu) const { return state_->peers[gpu]; }

void Gpus::each(const std::function<void(int gpu)>& work) const {
  simt::run_on_gpus(count(), work);
}

void Gpus::synchronize() const {}  // a launch returns only after its last block has ended

std::vector<double> Gpus::time(const std::function<void(int gpu)>& work,
                               const std::vector<int>& flushes) const {
  std::vector<double> samples;
  std::size_t turn = 0;
  for (const Sample& sample : time_launches({[&] { each(work); }}, flushes, turn, Host::Hidden))
    samples.push_back(sample.us);
  return samples;
}

}  // namespace lnc
