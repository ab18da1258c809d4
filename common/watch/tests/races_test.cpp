// What `make race` promises: it finds each pair of accesses that nothing orders, in whatever order
// the threads ran, and says what is missing; and it says nothing where something orders them.
#include <doctest/doctest.h>

#include <string>

#include "common/harness/tensors.h"
#include "common/watch/observer.h"
#include "common/watch/tests/findings.h"
#include "common/watch/tests/race_kernels.h"

using namespace lnc;
using namespace lnc::findings;

// ------------------------------------------------------------------------------------------ tools

namespace {

/// Tensors that kernels work on, and what is seen of them.
class Watched {
 public:
  Watched() : tensors_({.rows = 8, .cols = 64}, Direction::Forward), names_(tensors_) {}

  float* x() const { return reinterpret_cast<float*>(tensors_.data("x")); }
  float* y() const { return reinterpret_cast<float*>(tensors_.data("y")); }
  int* flag() const { return reinterpret_cast<int*>(tensors_.data("rstd")); }

  /// The races of some launches.
  template <typename Launches>
  Json races(const Launches& launches) const {
    *flag() = 0;
    const auto observer = find_races(names_);
    simt::set_watch(observer.get());
    launches();
    simt::set_watch(nullptr);
    return observer->seen()["races"];
  }
  /// Of one launch.
  template <typename... Params, typename... Args>
  Json races(void (*kernel)(Params...), const LaunchConfig& config, Args&&... args) const {
    return races([&] { launch(kernel, config, std::forward<Args>(args)...); });
  }

 private:
  const Tensors tensors_;
  const Names names_;
};

const Watched& watched() {
  static const Watched all;
  return all;
}
float* x() { return watched().x(); }
float* y() { return watched().y(); }

template <typename... Params, typename... Args>
Json races(void (*kernel)(Params...), const LaunchConfig& config, Args&&... args) {
  return watched().races(kernel, config, std::forward<Args>(args)...);
}

}  // namespace

// ------------------------------------------------------------------------------------------ tests

TEST_CASE("a barrier of the block orders its threads, in whatever order they run") {
  under_each_schedule([] {
    CHECK(races(kernels::neighbours, {1, 64}, y(), true).empty());
    CHECK(has(missing(races(kernels::neighbours, {1, 64}, y(), false)), "__syncthreads()"));
    CHECK(races(kernels::read_before_write, {1, 64}, y(), true).empty());
    CHECK(has(missing(races(kernels::read_before_write, {1, 64}, y(), false)), "__syncthreads()"));
    CHECK(races(kernels::two_writers, {1, 64}, y(), true).empty());
    CHECK(has(missing(races(kernels::two_writers, {1, 64}, y(), false)), "__syncthreads()"));
    CHECK(races(kernels::by_two_barriers, {1, 64}, y(), true).empty());
    the_race(races(kernels::by_two_barriers, {1, 64}, y(), false));
  });
}

TEST_CASE("a finding names both threads, what they do, the element and how often") {
  const Json race = the_race(races(kernels::two_writers, {1, 64}, y(), false));
  CHECK(race["where"]["element"] == "y[0, 5]");
  CHECK(race["first"]["does"] == "store");
  CHECK(race["first"]["thread"] == 0);
  CHECK(race["second"]["does"] == "store");
  CHECK(race["second"]["thread"] == 63);
  CHECK(race["second"]["block"] == 0);
  CHECK(race["second"]["kernel"] == "kernels::two_writers");
  CHECK(race["count"] == 1);

  const Json many = the_race(races(kernels::neighbours, {2, 64}, y(), false));
  CHECK(many["where"]["shared"] == "static");
  CHECK(many["where"]["block"] == 0);
  CHECK(many["first"]["does"] == "load");  // lane 0 runs first, and reads what thread 32 writes
  CHECK(many["first"]["thread"] == 0);
  CHECK(many["second"]["does"] == "store");
  CHECK(many["second"]["thread"] == 32);
  CHECK(many["count"] == 2 * 64);
}

TEST_CASE("a warp's barrier orders its lanes; a shuffle, a vote and volatile order nothing") {
  under_each_schedule([] {
    CHECK(races(kernels::lanes, {1, 32}, y(), true).empty());
    CHECK(has(missing(races(kernels::lanes, {1, 32}, y(), false)), "__syncwarp()"));
    CHECK(has(missing(races(kernels::shuffle_is_no_barrier, {1, 32}, y())), "a shuffle orders no"));
    the_race(races(kernels::volatile_is_no_barrier, {1, 32}, y()));
    CHECK(has(missing(races(kernels::warps_apart, {1, 64}, y())), "__syncthreads()"));
    CHECK(races(kernels::half_a_warp_meets, {1, 32}, y(), 15).empty());
    CHECK(has(missing(races(kernels::half_a_warp_meets, {1, 32}, y(), 16)), "__syncwarp()"));
  });
}

TEST_CASE("neighbouring bytes are no race") {
  auto* const halves = reinterpret_cast<unsigned short*>(y());
  CHECK(races(kernels::halves_of_a_word, {1, 64}, halves, 1).empty());
  CHECK(races(kernels::halves_of_a_word, {1, 64}, halves, 2).empty());
  CHECK(races(kernels::halves_of_a_word, {1, 64}, halves, 0).size() == 1);
}

TEST_CASE("blocks are in no order, but one kernel is before the next") {
  const std::string words = missing(races(kernels::block_to_block, {2, 1}, y()));
  CHECK(has(words, "a kernel of its own"));
  CHECK(has(words, "different blocks"));
  const Json both = watched().races([] {
    launch(kernels::write_one, {1, 1}, y());
    launch(kernels::read_one, {1, 1}, y());
  });
  CHECK(both.empty());
}

TEST_CASE("atomics do not race with each other, where their scope has both") {
  CHECK(races(kernels::sums, {3, 64}, y()).empty());
  CHECK(races(kernels::sums_of_a_block, {1, 64}, y()).empty());
  const Json race = races(kernels::sums_of_a_block, {2, 1}, y());
  REQUIRE(race.size() == 1);
  CHECK(has(race[0]["missing"], "an atomic at the device's scope"));
  const Json load = the_race(races(kernels::atomic_and_load, {1, 64}, y()));
  CHECK(load["first"]["does"] == "atomic");
  CHECK(load["second"]["does"] == "load");
}

TEST_CASE("a handshake is an atomic with a fence on both sides, and barriers around them") {
  const auto races_with = [](kernels::Part part) {
    return races(kernels::handshake, {2, 64}, y(), watched().flag(), part);
  };
  CHECK(races_with(kernels::kAll).empty());

  const Json released = the_race(races_with(kernels::kNoRelease));
  CHECK(released["missing"] ==
        "a __threadfence() before the atomic by which thread 0 of block 0 lets go");
  CHECK(has(line_of(released["missing_at"]), "lets go"));
  const Json acquired = the_race(races_with(kernels::kNoAcquire));
  CHECK(acquired["missing"] ==
        "a __threadfence() after the atomic by which thread 0 of block 1 goes on");
  CHECK(has(line_of(acquired["missing_at"]), "goes on"));

  const std::string near = missing(races_with(kernels::kNear));
  CHECK(has(near, "a __threadfence() in place of the __threadfence_block()"));
  const Json near_atomic = races_with(kernels::kNearAtomic);
  REQUIRE(near_atomic.size() == 2);  // the flag's own race, and that of what it should pass on
  CHECK(has(near_atomic[0]["missing"], "an atomic at the device's scope"));
  const std::string early = missing(races_with(kernels::kEarly));
  CHECK(
      has(early, "a __syncthreads() before the fence and the atomic by which thread 0 of block 0"));
  const std::string late = missing(races_with(kernels::kLate));
  CHECK(has(late, "a __syncthreads() after the atomic and the fence by which thread 0 of block 1"));
}

TEST_CASE("within a block the block's fence is enough") {
  under_each_schedule([] {
    CHECK(races(kernels::handshake_of_warps, {1, 64}, y(), true).empty());
  });
  const Json race = the_race(races(kernels::handshake_of_warps, {1, 64}, y(), false));
  CHECK(has(race["missing"], "a __threadfence() before the atomic by which thread 0 of block 0"));
}

TEST_CASE("a flag that is no atomic is a race, fences or not") {
  the_race(races(kernels::flag_without_atomics, {2, 1}, y(), watched().flag()));
}

TEST_CASE("an atomic has observed those before it, and a fence orders what follows behind them") {
  int* const counter = watched().flag();
  CHECK(races(kernels::last_block_resets, {3, 1}, counter, true).empty());
  const Json race = the_race(races(kernels::last_block_resets, {3, 1}, counter, false));
  CHECK(race["first"]["does"] == "atomic");
  CHECK(race["second"]["does"] == "store");
}

TEST_CASE("a thread's copy is over for it when it has waited, and for others behind a barrier") {
  using kernels::Wait;
  const auto races_with = [](Wait wait) {
    return races(kernels::copy_of_a_thread, {1, 64}, x(), y(), wait);
  };
  under_each_schedule([&] {
    CHECK(races_with(Wait::Right).empty());
    const std::string wait = "a __pipeline_wait_prior() of thread";
    CHECK(has(missing(races_with(Wait::None)), wait));
    CHECK(has(missing(races_with(Wait::TooFew)), wait));
    the_race(races_with(Wait::NoBarrier));
    CHECK(races(kernels::own_copy, {1, 32}, x(), y(), true).empty());
    CHECK(has(missing(races(kernels::own_copy, {1, 32}, x(), y(), false)),
              "a __pipeline_wait_prior() between the copy and this access"));
    CHECK(races(kernels::source_of_a_copy, {1, 32}, x(), true).empty());
    the_race(races(kernels::source_of_a_copy, {1, 32}, x(), false));
  });
  CHECK(races(kernels::copy_for_another, {1, 64}, x(), y(), true).empty());
  const std::string late = missing(races(kernels::copy_for_another, {1, 64}, x(), y(), false));
  CHECK(late == "a __syncthreads() after the __pipeline_wait_prior() of thread 63 of block 0");
  const Json copy = the_race(races_with(Wait::None));
  CHECK(copy["first"]["does"] == "__pipeline_memcpy_async");
}

TEST_CASE("a Barrier passes on what was done before the arrivals, to who waits") {
  under_each_schedule([] {
    CHECK(races(kernels::arrivals, {1, 64}, y(), true).empty());
    the_race(races(kernels::arrivals, {1, 64}, y(), false));
    the_race(races(kernels::written_late, {1, 64}, y()));
    CHECK(races(kernels::unknown_barrier, {1, 64}, true).empty());
  });
  the_race(races(kernels::unknown_barrier, {1, 64}, false));
}

TEST_CASE("what the copy engine brings is there for who has waited for the right phase") {
  under_each_schedule([] {
    CHECK(races(kernels::loaded, {1, 64}, x(), y(), true).empty());
    CHECK(has(missing(races(kernels::loaded, {1, 64}, x(), y(), false)), "a wait for the Barrier"));
    CHECK(races(kernels::one_waits, {1, 64}, x(), y(), true).empty());
    the_race(races(kernels::one_waits, {1, 64}, x(), y(), false));
  });
  the_race(races(kernels::three_phases_late, {1, 64}, x(), y()));
  CHECK(has(missing(races(kernels::wrong_parity, {1, 64}, x(), y())), "a wait for the Barrier"));
}

TEST_CASE("a slot that was read or written to is free behind a fence and a barrier") {
  using kernels::Again;
  under_each_schedule([] {
    CHECK(races(kernels::slot_again, {1, 64}, x(), y(), Again::Right).empty());
    CHECK(races(kernels::slot_after_stores, {1, 64}, x(), y(), true).empty());
  });
  const Json early = the_race(races(kernels::slot_again, {1, 64}, x(), y(), Again::NoBarrier));
  CHECK(early["first"]["does"] == "bulk_load");
  CHECK(has(early["missing"], "a __syncthreads() after the read and before the copy is requested"));
  const std::string read = missing(races(kernels::slot_again, {1, 64}, x(), y(), Again::NoFence));
  CHECK(has(read, "a fence_proxy_async() of thread"));
  CHECK(has(read, "after its load"));
  const std::string written = missing(races(kernels::slot_after_stores, {1, 64}, x(), y(), false));
  CHECK(has(written, "a fence_proxy_async() of thread"));
  CHECK(has(written, "after its store"));
}

TEST_CASE("the copy engine sees the stores of those who fence and then meet") {
  using kernels::Store;
  under_each_schedule([] {
    CHECK(races(kernels::stored, {1, 64}, y(), Store::Right).empty());
    const std::string fence = "a fence_proxy_async() of thread";
    CHECK(has(missing(races(kernels::stored, {1, 64}, y(), Store::NoFence)), fence));
    CHECK(has(missing(races(kernels::stored, {1, 64}, y(), Store::FenceFirst)), fence));
    CHECK(has(missing(races(kernels::stored, {1, 64}, y(), Store::FenceLate)), fence));
    CHECK(has(missing(races(kernels::stored, {1, 64}, y(), Store::FenceOfOne)), fence));
    the_race(races(kernels::stored, {1, 64}, y(), Store::NoBarrier));
    CHECK(has(missing(races(kernels::load_of_a_store, {1, 64}, x())), "the end of the kernel"));
  });
}

TEST_CASE("a bulk store's source is free after its wait, its destination at the kernel's end") {
  using kernels::Reuse;
  const auto missing_with = [](Reuse how) {
    return missing(races(kernels::source_again, {1, 64}, y(), how));
  };
  CHECK(races(kernels::source_again, {1, 64}, y(), Reuse::Right).empty());
  CHECK(has(missing_with(Reuse::NoWait), "a wait_bulk_stores_read() of thread 0"));
  CHECK(has(missing_with(Reuse::TooFew), "a wait_bulk_stores_read() of thread 0"));
  CHECK(has(missing_with(Reuse::NoBarrier), "a __syncthreads()"));
  CHECK(has(missing(races(kernels::destination, {1, 64}, y())), "the end of the kernel"));
  const Json both = watched().races([] {
    launch(kernels::stored, {1, 64}, y(), kernels::Store::Right);
    launch(kernels::read_one, {1, 1}, y());
  });
  CHECK(both.empty());
}

TEST_CASE("cluster_sync orders the blocks of a cluster, in shared and in device memory") {
  const LaunchConfig two{2, 64, 0, nullptr, 2};
  under_each_schedule([&] {
    CHECK(races(kernels::remote_value, two, y(), true).empty());
    CHECK(has(missing(races(kernels::remote_value, two, y(), false)), "cluster_sync()"));
    CHECK(races(kernels::remote_written, two, y(), true).empty());
    CHECK(has(missing(races(kernels::remote_written, two, y(), false)), "cluster_sync()"));
    CHECK(races(kernels::cluster_orders_global, two, y(), true).empty());
    the_race(races(kernels::cluster_orders_global, two, y(), false));
    the_race(races(kernels::between_the_halves, two, y()));
  });
}

TEST_CASE(
    "a relaxed arrival at the cluster's barrier passes on initialised Barriers, and no more") {
  using kernels::Relaxed;
  const LaunchConfig two{2, 64, 0, nullptr, 2};
  under_each_schedule([&] {
    CHECK(races(kernels::relaxed_meeting, two, y(), Relaxed::Right).empty());
    CHECK_FALSE(races(kernels::relaxed_meeting, two, y(), Relaxed::NoFence).empty());
    CHECK(
        has(missing(races(kernels::relaxed_meeting, two, y(), Relaxed::Value)), "cluster_sync()"));
  });
}

TEST_CASE("what another block sends is there behind a wait at cluster scope") {
  using kernels::Sent;
  const LaunchConfig two{2, 64, 0, nullptr, 2};
  under_each_schedule([&] {
    CHECK(races(kernels::sent, two, y(), Sent::Right).empty());
    CHECK(has(missing(races(kernels::sent, two, y(), Sent::Near)), "a wait at cluster scope"));
    CHECK(has(missing(races(kernels::sent, two, y(), Sent::None)), "wait_at_cluster_scope()"));
    for (const bool arrives : {false, true}) {
      the_race(races(kernels::store_before_a_message, two, y(), 0u, arrives));
      the_race(races(kernels::store_before_a_message, two, y(), 40u, arrives));
    }
  });
}

TEST_CASE("a place that another block has read is free when it has arrived since") {
  using kernels::Answer;
  const LaunchConfig two{2, 64, 0, nullptr, 2};
  under_each_schedule([&] {
    CHECK(races(kernels::answered, two, y(), Answer::Arrived).empty());
    const Json unsaid = races(kernels::answered, two, y(), Answer::Sent);
    REQUIRE(unsaid.size() == 2);  // nor does the sender know that its first value has arrived
    CHECK(has(unsaid[0]["missing"], "a wait_at_cluster_scope()"));
    CHECK(has(unsaid[1]["missing"], "a remote_arrive()"));
    CHECK((unsaid[0]["by_convention"] == true && unsaid[1]["by_convention"] == true));
    for (const Answer early : {Answer::TooEarly, Answer::SentTooEarly}) {
      const Json read = races(kernels::answered, two, y(), early).back();
      CHECK(has(read["missing"], "a remote_arrive()"));
      CHECK(read["by_convention"] == false);
    }
  });
}

TEST_CASE("a kernel that starts early knows of the one before when it has waited for it") {
  const LaunchConfig early{1, 64, 0, nullptr, 0, true};
  const auto races_of = [&](auto kernel, auto... arguments) {
    return watched().races([&] {
      launch(kernels::writes_and_lets_start, {1, 64}, y());
      launch(kernel, early, y(), arguments...);
    });
  };
  CHECK(races_of(kernels::starts_early, true).empty());
  CHECK(races_of(kernels::one_waits_for_all).empty());
  const Json race = the_race(races_of(kernels::starts_early, false));
  CHECK(has(race["missing"], "a grid_dependency_wait()"));
  CHECK(race["first"]["kernel"] == "kernels::writes_and_lets_start");
  CHECK(race["second"]["kernel"] == "kernels::starts_early");
}
