// Counts of small kernels whose requests, sectors, passes and meetings are known.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/kernel/description.h"
#include "common/kernel/launch.h"
#include "common/kernel/vector.h"
#include "common/simt/crashes.h"
#include "common/simt/peers.h"
#include "common/watch/observer.h"

namespace {

using Json = nlohmann::ordered_json;

/// Device memory of floats.
struct Floats {
  lnc::Buffer buffer;
  explicit Floats(std::size_t count) : buffer(count * sizeof(float)) { lnc::poison(buffer); }
  float* data() const { return buffer.as<float>(); }
};

/// What is counted of a launch: the sums of its lines of one kind.
struct Counted {
  Json launch;

  std::uint64_t sum(const std::string& what, const std::string& key,
                    const std::string& space = "device") const {
    std::uint64_t total = 0;
    for (const Json& line : launch["lines"])
      if (line["what"] == what && line["space"] == space) total += line[key].get<std::uint64_t>();
    return total;
  }
};

template <typename... Params, typename... Args>
Counted count(void (*kernel)(Params...), unsigned blocks, unsigned threads, Args... args) {
  lnc::Problem problem;
  problem.rows = 1;
  problem.cols = 1;
  const lnc::Tensors tensors(problem, lnc::Direction::Forward);
  const lnc::Names names(tensors);
  const auto counter = lnc::count_requests(names, problem.rows * problem.cols);
  simt::set_watch(counter.get());
  lnc::launch(kernel, {blocks, threads}, args...);
  simt::set_watch(nullptr);
  return {counter->seen().at(0)};
}

// ------------------------------------------------------------------------------------- sectors

__global__ void neighbours(float* data) { data[threadIdx.x] = 1.0f; }
__global__ void a_row_apart(float* data) { data[threadIdx.x * 100] = 1.0f; }
__global__ void all_the_same(const float* data, float* out) { out[threadIdx.x] = data[0]; }
__global__ void from_an_odd_place(float* data) { data[threadIdx.x + 1] = 1.0f; }
__global__ void whole_vectors(float* data) {
  reinterpret_cast<float4*>(data)[threadIdx.x] = make_float4(1, 2, 3, 4);
}

TEST_CASE("32 neighbours are one request of 4 sectors; a row apart each lane has its own") {
  const Floats data(32 * 100);
  const Counted near = count(neighbours, 1, 32, data.data());
  CHECK(near.sum("store", "times") == 1);
  CHECK(near.sum("store", "sectors") == 4);
  CHECK(near.sum("store", "bytes") == 128);
  const Counted apart = count(a_row_apart, 1, 32, data.data());
  CHECK(apart.sum("store", "times") == 1);
  CHECK(apart.sum("store", "sectors") == 32);
  CHECK(apart.sum("store", "bytes") == 128);
}

TEST_CASE("an odd start costs a fifth sector, one address for all lanes costs one") {
  const Floats data(64);
  CHECK(count(from_an_odd_place, 1, 32, data.data()).sum("store", "sectors") == 5);
  const Counted same = count(all_the_same, 1, 32, data.data(), data.data() + 32);
  CHECK(same.sum("load", "sectors") == 1);
  CHECK(same.sum("load", "bytes") == 4);
}

TEST_CASE("16 bytes a lane are one request of 16 sectors") {
  const Floats data(128);
  const Counted wide = count(whole_vectors, 1, 32, data.data());
  CHECK(wide.sum("store", "times") == 1);
  CHECK(wide.sum("store", "sectors") == 16);
  CHECK(wide.launch["lines"][0]["access_bytes"] == 16);
}

// ----------------------------------------------------------------------- which lanes go together

__global__ void until_its_end(const float* data, float* out, int cols) {
  float sum = 0.0f;
  for (int col = threadIdx.x; col < cols; col += 32) sum += data[col];
  out[threadIdx.x] = sum;
}
__global__ void now_and_then(const float* data, float* out) {
  float sum = 0.0f;
  for (unsigned turn = 0; turn < 4; ++turn)  // each lane in one of the turns
    if (threadIdx.x % 4 == turn) sum += data[turn];
  out[threadIdx.x] = sum;
}
__global__ void one_or_the_other(const float* data, float* out) {
  float value = 0.0f;
  if (threadIdx.x < 16)
    value = data[threadIdx.x];
  else
    value = data[threadIdx.x] + 1.0f;
  out[threadIdx.x] = value;
}
__global__ void loops_of_their_own(const float* data, float* out) {
  float sum = 0.0f;
  for (unsigned turn = 0; turn <= threadIdx.x; ++turn) {
    for (unsigned again = 0; again < threadIdx.x % 2; ++again) sum += data[again];
    sum += data[32 + turn];
  }
  out[threadIdx.x] = sum;
}

TEST_CASE("lanes that leave a loop early wait behind it") {
  const Floats data(128);
  const Counted counted = count(until_its_end, 1, 32, data.data(), data.data() + 96, 65);
  CHECK(counted.sum("load", "times") == 3);  // the last of a single lane
  CHECK(counted.sum("load", "lanes") == 65);
  CHECK(counted.sum("store", "times") == 1);
}

TEST_CASE("what lanes do in different turns of a loop is not one request") {
  const Floats data(64);
  const Counted counted = count(now_and_then, 1, 32, data.data(), data.data() + 32);
  CHECK(counted.sum("load", "times") == 4);
  CHECK(counted.sum("store", "times") == 1);
}

TEST_CASE("the two sides of a branch are two requests, what follows it is one") {
  const Floats data(64);
  const Counted counted = count(one_or_the_other, 1, 32, data.data(), data.data() + 32);
  CHECK(counted.sum("load", "times") == 2);
  CHECK(counted.sum("store", "times") == 1);
}

TEST_CASE("loops in loops, of a length that differs by lane, come together at each turn's end") {
  const Floats data(128);
  const Counted counted = count(loops_of_their_own, 1, 32, data.data(), data.data() + 96);
  CHECK(counted.sum("load", "times") == 32 + 32);  // inner loop: the odd lanes, in each turn
  CHECK(counted.sum("store", "times") == 1);
}

TEST_CASE("warps make requests of their own, and a last warp may be short") {
  const Floats data(64);
  const Counted counted = count(neighbours, 1, 40, data.data());
  CHECK(counted.sum("store", "times") == 2);
  CHECK(counted.sum("store", "sectors") == 5);
  CHECK(counted.sum("store", "lanes") == 40);
}

// --------------------------------------------------------------------------------- shared memory

constexpr int kTile = 32;
template <int kWidth>
__global__ void transpose(float* data) {
  __shared__ float tile[kTile][kWidth];
  const unsigned lane = threadIdx.x;
  for (int row = 0; row < kTile; ++row) tile[row][lane] = data[row * kTile + lane];
  __syncthreads();
  for (int row = 0; row < kTile; ++row) data[row * kTile + lane] = tile[lane][row];
}
__global__ void shared_vectors(float* data) {
  __shared__ float4 all[64];
  all[threadIdx.x] = reinterpret_cast<float4*>(data)[threadIdx.x];
  all[threadIdx.x * 2 % 64].x = 1.0f;
  reinterpret_cast<float4*>(data)[threadIdx.x] = all[0];
}

TEST_CASE("a column of an unpadded tile takes 32 passes, of a padded one 1") {
  const Floats data(kTile * kTile);
  const Counted bare = count(transpose<kTile>, 1, kTile, data.data());
  CHECK(bare.sum("load", "times", "shared") == 32);
  CHECK(bare.sum("load", "passes", "shared") == 32 * 32);
  CHECK(bare.sum("load", "passes_needed", "shared") == 32);
  CHECK(bare.sum("store", "passes", "shared") == 32);
  const Counted padded = count(transpose<kTile + 1>, 1, kTile, data.data());
  CHECK(padded.sum("load", "passes", "shared") == 32);
  CHECK(padded.sum("barrier", "times", "shared") == 1);
}

TEST_CASE("16 bytes a lane take 4 passes without a conflict, one address for all of them 2") {
  const Floats data(128);
  const Counted counted = count(shared_vectors, 1, 32, data.data());
  CHECK(counted.sum("store", "passes", "shared") == 4 + 8);  // then each 8th word: 8 to a bank
  CHECK(counted.sum("store", "passes_needed", "shared") == 4 + 1);
  CHECK(counted.sum("load", "passes", "shared") == 2);  // a half warp at a time
}

// ------------------------------------------------------------------------- atomics and more

__global__ void all_add(float* sum) { atomicAdd(sum, 1.0f); }
__global__ void each_adds(float* sums) { atomicAdd(sums + threadIdx.x, 1.0f); }
__global__ void sums_up(float* out) { out[0] = static_cast<float>(__any_sync(~0u, threadIdx.x)); }

TEST_CASE("lanes that add to one address are sent one after another") {
  const Floats data(32);
  const Counted one = count(all_add, 1, 32, data.data());
  CHECK(one.sum("atomic", "times") == 1);
  CHECK(one.sum("atomic", "meeting") == 32);
  CHECK(one.sum("atomic", "sectors") == 32);
  const Counted many = count(each_adds, 1, 32, data.data());
  CHECK(many.sum("atomic", "meeting") == 1);
  CHECK(many.sum("atomic", "sectors") == 4);
}

TEST_CASE("a vote is counted once for its warp") {
  const Floats data(32);
  CHECK(count(sums_up, 1, 64, data.data()).sum("shuffle", "times", "shared") == 2);
}

// ------------------------------------------------------------------------------------------ caches

__global__ void twice(const float* data, float* out) {
  const float first = data[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * 32 + threadIdx.x] = first + data[blockIdx.x * 32 + threadIdx.x];
}
__global__ void the_same_for_all(const float* data, float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = data[threadIdx.x];
}
__global__ void in_place(float* data) { data[blockIdx.x * 64 + threadIdx.x] *= 2.0f; }
__global__ void after_its_store(float* data) {
  data[threadIdx.x] = 1.0f;
  __syncwarp();
  data[32 + threadIdx.x] = data[threadIdx.x];
}

TEST_CASE("what a block reads again L1 has, and what all read comes from memory once") {
  const Floats data(200 * 32);
  const Floats out(200 * 32);
  const Counted again = count(twice, 2, 32, data.data(), out.data());
  CHECK(again.sum("load", "sectors") == 16);
  CHECK(again.sum("load", "held_by_l1") == 8);
  CHECK(again.launch["sectors_read_once"] == 8);
  CHECK(again.launch["sectors_written_once"] == 8);
  const Counted shared = count(the_same_for_all, 200, 32, data.data(), out.data());
  CHECK(shared.sum("load", "sectors") == 800);
  CHECK(shared.sum("load", "held_by_l2") == 131 * 4);  // the first block of each multiprocessor,
  CHECK(shared.sum("load", "held_by_l1") == 68 * 4);   // and those behind them
  CHECK(shared.launch["sectors_read_once"] == 4);
}

TEST_CASE("a load finds in L2 what was stored before it, and not what is stored after it") {
  const Floats data(4 * 64);
  const Counted updated = count(in_place, 4, 64, data.data());
  CHECK(updated.sum("load", "sectors") == 4 * 8);
  CHECK(updated.sum("load", "held_by_l1") + updated.sum("load", "held_by_l2") == 0);
  CHECK(count(after_its_store, 1, 32, data.data()).sum("load", "held_by_l2") == 4);
}

// ------------------------------------------------------------------------------------ several GPUs

struct alignas(16) Word {
  float first, second, third;
  unsigned epoch;
};

// A row a block: a word to the other GPU and one from it, and a float4 of the other's memory.
__global__ void meet(ncclWindow_t window, int gpu, float4* out) {
  if (threadIdx.x != 0) return;
  const std::size_t at = blockIdx.x * sizeof(Word);
  lnc::store_word(static_cast<Word*>(ncclGetLsaPointer(window, at, 1 - gpu)), {1, 2, 3, 1});
  const auto* const from = static_cast<const Word*>(ncclGetLocalPointer(window, at));
  while (lnc::load_word(from).epoch != 1) {
  }
  const std::size_t behind = (gridDim.x + blockIdx.x) * sizeof(Word);
  out[blockIdx.x] = *static_cast<const float4*>(ncclGetLsaPointer(window, behind, 1 - gpu));
}

TEST_CASE("what crosses a link is counted, and a poll once, however long it takes") {
  constexpr unsigned kRows = 6;
  std::vector<std::byte*> bases, out;
  for (int gpu = 0; gpu < 2; ++gpu) {
    bases.push_back(static_cast<std::byte*>(simt::allocate_buffer(2 * kRows * sizeof(Word))));
    out.push_back(static_cast<std::byte*>(simt::allocate_buffer(kRows * sizeof(Word))));
    std::fill_n(bases.back(), 2 * kRows * sizeof(Word), std::byte{});
  }
  const auto window = simt::make_window(bases);
  const lnc::Tensors tensors({.rows = 1, .cols = 1}, lnc::Direction::Forward);
  const lnc::Names names(tensors);
  const auto counter = lnc::count_requests(names, 1);
  simt::set_watch(counter.get());
  simt::run_on_gpus(2, [&](int gpu) {
    lnc::launch(meet, {kRows, 32}, window.get(), gpu, reinterpret_cast<float4*>(out[gpu]));
  });
  simt::set_watch(nullptr);
  const Json launches = counter->seen();
  REQUIRE(launches.size() == 2);
  for (const Json& launch : launches) {
    const Counted counted{launch};
    CHECK(counted.sum("store", "times") == 2 * kRows);
    CHECK(counted.sum("store", "link_bytes") == 16 * kRows);
    CHECK(counted.sum("load", "times") == 2 * kRows);
    CHECK(counted.sum("load", "link_bytes") == 16 * kRows);
    CHECK(counted.sum("load", "bytes") == 2 * 16 * kRows);
    for (const Json& line : launch["lines"])
      if (line["link_bytes"] > 0) CHECK(line["tensor"] == "window");
  }
  CHECK(launches[0]["gpu"].get<int>() + launches[1]["gpu"].get<int>() == 1);

  for (std::byte* each : bases) std::fill_n(each, 2 * kRows * sizeof(Word), std::byte{});
  const auto tracer = lnc::trace_block(names, 1);
  simt::set_watch(tracer.get());
  simt::run_on_gpus(2, [&](int gpu) {
    lnc::launch(meet, {kRows, 32}, window.get(), gpu, reinterpret_cast<float4*>(out[gpu]));
  });
  simt::set_watch(nullptr);
  CHECK(tracer->seen()["memory"]["window"]["shape"] == Json{2 * kRows});
  const Json traced = tracer->seen()["launches"];
  REQUIRE(traced.size() == 2);
  for (const Json& launch : traced) {
    const auto loads = std::count_if(launch["events"].begin(), launch["events"].end(),
                                     [](const Json& event) { return event["do"] == "load"; });
    CHECK(loads == 2);
  }
  CHECK(traced[0]["gpu"].get<int>() + traced[1]["gpu"].get<int>() == 1);
  for (std::byte* each : bases) simt::free_buffer(each);
  for (std::byte* each : out) simt::free_buffer(each);
}

}  // namespace
