// What `make race` promises for several GPUs: it finds faults between them in one run, and says
// nothing about a correct exchange of messages.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/simt/crashes.h"
#include "common/watch/observer.h"
#include "common/watch/tests/findings.h"
#include "common/watch/tests/gpu_race_kernels.h"

using namespace lnc;
using namespace lnc::findings;

namespace {

constexpr std::size_t kBytes = 3 << 12;

/// A window, and a buffer for each GPU.
class Memory {
 public:
  explicit Memory(int gpus) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      bases_.push_back(static_cast<std::byte*>(simt::allocate_buffer(kBytes)));
      own_.push_back(static_cast<float*>(simt::allocate_buffer(kBytes)));
      std::fill_n(bases_.back(), kBytes, std::byte{});
      std::fill_n(own_.back(), kBytes / sizeof(float), 0.0f);
    }
    window_ = simt::make_window(bases_);
  }
  ~Memory() {
    for (std::byte* base : bases_) simt::free_buffer(base);
    for (float* own : own_) simt::free_buffer(own);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  ncclWindow_t window() const { return window_.get(); }
  float* own(int gpu) const { return own_[gpu]; }

 private:
  std::vector<std::byte*> bases_;
  std::vector<float*> own_;
  std::unique_ptr<simt::Window> window_;
};

struct Seen {
  Json races;
  std::string fault;
};

/// What is seen of the launches that `work` makes on each GPU.
Seen seen_of(int gpus, const std::function<void(int gpu, const Memory& memory)>& work) {
  const Memory memory(gpus);
  const Names names;
  const auto observer = find_races(names);
  Seen seen;
  simt::set_watch(observer.get());
  try {
    simt::run_on_gpus(gpus, [&](int gpu) { work(gpu, memory); });
  } catch (const simt::Fault& fault) {
    seen.fault = fault.what();
  }
  simt::set_watch(nullptr);
  seen.races = observer->seen()["races"];
  return seen;
}
/// Of work that ends.
Json races(int gpus, const std::function<void(int gpu, const Memory& memory)>& work) {
  const Seen seen = seen_of(gpus, work);
  CHECK(seen.fault == "");
  return seen.races;
}

Json races_of_publish(kernels::Part part) {
  return races(3, [part](int gpu, const Memory& memory) {
    launch(kernels::publish, {1, 64}, memory.window(), gpu, memory.own(gpu), part);
  });
}

}  // namespace

TEST_CASE("messages in two slots that are polled until their epoch are silent") {
  under_each_schedule([] {
    const Json all = races(2, [](int gpu, const Memory& memory) {
      for (unsigned epoch = 1; epoch <= 6; ++epoch)
        launch(kernels::exchange, {3, 32}, memory.window(), gpu, epoch, memory.own(gpu),
               kernels::Slot::Doubled, kernels::Poll::UntilEpoch);
    });
    CHECK_MESSAGE(all.empty(), all.dump(1));
  });
}

TEST_CASE("a word whose epoch is not checked is found, whichever GPU came first") {
  under_each_schedule([] {
    const Json race = the_race(races(2, [](int gpu, const Memory& memory) {
      launch(kernels::exchange, {3, 32}, memory.window(), gpu, 1u, memory.own(gpu),
             kernels::Slot::Doubled, kernels::Poll::Once);
    }));
    CHECK(has(race["missing"], "a loop"));
    CHECK(has(race["missing"], "has the launch's epoch"));
  });
}

TEST_CASE("a word that is there by luck is not seen at the first load") {
  std::atomic<bool> told = false;
  float got = -1.0f;
  const Json race = the_race(races(2, [&](int gpu, const Memory& memory) {
    if (gpu == 0) {
      launch(kernels::tell, {1, 32}, memory.window(), 1);
      told = true;
    } else {
      while (!told) std::this_thread::yield();
      launch(kernels::load_once, {1, 32}, memory.window(), memory.own(1));
      got = *memory.own(1);
    }
  }));
  CHECK(got == 0.0f);
  CHECK(has(race["missing"], "a loop that loads the word until it has the launch's epoch"));
}

TEST_CASE("a slot that is used again too early is found, where its reader hangs and where not") {
  for (const kernels::Slot slot : {kernels::Slot::One, kernels::Slot::WrongParity}) {
    under_each_schedule([slot] {
      const simt::Schedule now = simt::schedule();
      const simt::Under soon({now.order, now.seed, std::chrono::duration<double>(0.3)});
      const Seen seen = seen_of(2, [slot](int gpu, const Memory& memory) {
        for (unsigned epoch = 1; epoch <= 6; ++epoch)
          launch(kernels::exchange, {3, 32}, memory.window(), gpu, epoch, memory.own(gpu), slot,
                 kernels::Poll::UntilEpoch);
      });
      REQUIRE(!seen.races.empty());
      const Json& race = seen.races[0];
      INFO(race.dump(1) << seen.fault);
      CHECK(has(line_of(race["first"]["place"]), "first"));
      CHECK(has(line_of(race["second"]["place"]), "second"));
      CHECK(race["first"]["does"] == "load_word");
      CHECK(race["second"]["does"] == "store_word");
      CHECK(race["first"]["gpu"] != race["second"]["gpu"]);
      CHECK(has(race["where"]["element"], "window["));
      CHECK(has(race["where"]["element"], "of GPU "));
      CHECK(has(race["missing"], "a second slot (epoch % 2), or a word back"));
      if (!seen.fault.empty()) CHECK(has(seen.fault, "that overwrote the word of epoch"));
    });
  }
}

TEST_CASE("a lane that sends knows what another has received, if they have exchanged values") {
  const auto races_with = [](kernels::Slot slot, bool shuffles) {
    const simt::Schedule now = simt::schedule();
    const simt::Under soon({now.order, now.seed, std::chrono::duration<double>(0.3)});
    return seen_of(2, [=](int gpu, const Memory& memory) {
      launch(kernels::phases, {1, 32}, memory.window(), gpu, memory.own(gpu), slot, shuffles);
    });
  };
  under_each_schedule([&] {
    const Seen right = races_with(kernels::Slot::Doubled, true);
    INFO(right.races.dump(1) << right.fault);
    CHECK((right.races.empty() && right.fault.empty()));
    the_race(races_with(kernels::Slot::One, true).races);
    the_race(races_with(kernels::Slot::Doubled, false).races);
  });
}

TEST_CASE("bulk copies and Barriers are silent beside messages, launch after launch") {
  under_each_schedule([] {
    const Json all = races(2, [](int gpu, const Memory& memory) {
      for (unsigned epoch = 1; epoch <= 4; ++epoch)
        launch(kernels::rows_by_copies, {3, 64}, memory.window(), gpu, memory.own(gpu),
               memory.own(gpu) + 1024, 10, epoch);
    });
    CHECK_MESSAGE(all.empty(), all.dump(1));
  });
}

TEST_CASE("a payload is there behind fences of the whole system, and barriers of the blocks") {
  using kernels::Part;
  under_each_schedule([] {
    const Json all = races_of_publish(Part::All);
    CHECK_MESSAGE(all.empty(), all.dump(1));
    CHECK(has(missing(races_of_publish(Part::NoFences)), "a message between them"));
    CHECK(has(missing(races_of_publish(Part::NoRelease)),
              "a __threadfence_system() before the store_word() by which thread 0 of block 0 of "
              "GPU 1 lets go"));
    CHECK(has(missing(races_of_publish(Part::NoAcquire)),
              "a __threadfence_system() after the load_word() by which thread 0 of block 0 of GPU "
              "0 goes on"));
    CHECK(has(missing(races_of_publish(Part::DeviceRelease)),
              "a __threadfence_system() in place of the __threadfence(), which orders nothing for "
              "other GPUs, before the store_word()"));
    CHECK(has(missing(races_of_publish(Part::DeviceAcquire)),
              "in place of the __threadfence(), which orders nothing for other GPUs, after the "
              "load_word()"));
    CHECK(has(missing(races_of_publish(Part::NoBarrierBefore)),
              "a __syncthreads() before the fence and the store_word()"));
    the_race(races_of_publish(Part::NoBarrierAfter));
  });
}

TEST_CASE("the last block of a GPU speaks for the others") {
  const auto races_with = [](bool of_system) {
    return races(2, [of_system](int gpu, const Memory& memory) {
      launch(kernels::last_block_publishes, {gpu == 0 ? 1u : 3u, 64}, memory.window(), gpu,
             reinterpret_cast<int*>(memory.own(gpu)), memory.own(gpu) + 64, of_system);
    });
  };
  under_each_schedule([&] {
    const Json all = races_with(true);
    CHECK_MESSAGE(all.empty(), all.dump(1));
    CHECK(has(missing(races_with(false)), "in place of the __threadfence()"));
  });
}

TEST_CASE("a finding between GPUs names both, and the place in the window") {
  const Json race = the_race(races_of_publish(kernels::Part::NoFences));
  CHECK(race["first"]["gpu"] == 1);
  CHECK(race["second"]["gpu"] == 0);
  CHECK(has(race["where"]["element"], "window[2"));
  CHECK(has(race["where"]["element"], "] of GPU 0"));
}

TEST_CASE("a peer's memory for which no thread waits, or another GPU's word, is a race") {
  under_each_schedule([] {
    the_race(races_of_publish(kernels::Part::NoWait));
    the_race(races_of_publish(kernels::Part::WrongSender));
  });
}

TEST_CASE("a plain store in place of a word is a race") {
  const Json all = races_of_publish(kernels::Part::PlainWord);
  const auto of_word = std::find_if(all.begin(), all.end(), [](const Json& race) {
    return has(line_of(race["first"]["place"]) + line_of(race["second"]["place"]), "lets go");
  });
  REQUIRE(of_word != all.end());
  CHECK(has((*of_word)["missing"], "a store_word() in place of the store"));
}

TEST_CASE("atomics between GPUs need the system's scope") {
  under_each_schedule([] {
    const auto published = [](bool of_system) {
      return races(2, [of_system](int gpu, const Memory& memory) {
        launch(kernels::publish_by_atomics, {1, 32}, memory.window(), gpu, memory.own(gpu),
               of_system);
      });
    };
    const auto sums = [](bool of_system) {
      return races(2, [of_system](int, const Memory& memory) {
        launch(kernels::sums_of_gpus, {2, 32}, memory.window(), of_system);
      });
    };
    CHECK(published(true).empty());
    CHECK(has(published(false)[0]["missing"], "an atomic for the whole system"));
    CHECK(sums(true).empty());
    CHECK(has(missing(sums(false)), "an atomic for the whole system"));
  });
}

TEST_CASE("the end of a kernel orders what follows on its own GPU alone") {
  const auto stored_and_loaded = [](int loader) {
    std::atomic<bool> stored = false;
    return races(2, [&, loader](int gpu, const Memory& memory) {
      if (gpu == 0) {
        launch(kernels::store_at_peer, {1, 32}, memory.window(), 1 - loader);
        stored = true;
      }
      if (gpu != loader) return;
      while (!stored) std::this_thread::yield();
      launch(kernels::load_own, {1, 32}, memory.window(), memory.own(gpu));
    });
  };
  CHECK(stored_and_loaded(0).empty());
  CHECK(has(missing(stored_and_loaded(1)), "the end of a kernel on one orders nothing"));
  const Memory memory(2);
  const Names names;
  const auto observer = find_races(names);
  simt::set_watch(observer.get());  // all GPUs have ended when run_on_gpus returns
  for (int round = 0; round < 2; ++round)
    simt::run_on_gpus(2, [&](int gpu) {
      if (gpu == round) {
        if (round == 0) launch(kernels::store_at_peer, {1, 32}, memory.window(), gpu);
        if (round == 1) launch(kernels::load_own, {1, 32}, memory.window(), memory.own(gpu));
      }
    });
  simt::set_watch(nullptr);
  CHECK(observer->seen()["races"].empty());
}

TEST_CASE("an epoch's counter advances when all blocks have read it") {
  using kernels::Counter;
  const auto races_with = [](Counter how) {
    return seen_of(2, [how](int gpu, const Memory& memory) {
      auto* const counter = reinterpret_cast<unsigned*>(memory.own(gpu));
      for (int i = 0; i < (how == Counter::Right ? 4 : 1); ++i)
        launch(kernels::epoch_of_counter, {3, 32}, memory.window(), gpu, counter,
               memory.own(gpu) + 64, how);
    });
  };
  under_each_schedule([&] {
    const simt::Schedule now = simt::schedule();
    const simt::Under soon({now.order, now.seed, std::chrono::duration<double>(0.3)});
    const Seen right = races_with(Counter::Right);
    INFO(right.races.dump(1) << right.fault);
    CHECK((right.races.empty() && right.fault.empty()));
    const Json early = races_with(Counter::TooEarly).races;
    REQUIRE_MESSAGE(early.size() == 1, early.dump(1));
    CHECK(has(line_of(early[0]["first"]["place"]), "counter[0]"));
    CHECK(has(line_of(early[0]["second"]["place"]), "counter[0]"));
    CHECK(early[0]["first"]["gpu"] == early[0]["second"]["gpu"]);
  });
}
