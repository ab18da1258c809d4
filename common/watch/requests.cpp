// make count: requests, sectors, passes and copies, for each place in the code that causes them.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "common/harness/host_memory.h"
#include "common/kernel/description.h"
#include "common/simt/gpus.h"
#include "common/simt/words.h"
#include "common/watch/memory_model.h"
#include "common/watch/observer.h"
#include "common/watch/warp_paths.h"

namespace lnc {
namespace {

using simt::Kind;
using simt::Space;
using Json = nlohmann::ordered_json;

/// What happens at a place, in the order of kWhat.
enum class What {
  Load,
  Store,
  Atomic,
  ThreadCopy,
  BulkLoad,
  BulkStore,
  RemoteStore,
  Shuffle,
  Sync,
  Barrier
};
constexpr const char* kWhat[] = {"load",       "store",        "atomic",  "async copy", "bulk load",
                                 "bulk store", "remote store", "shuffle", "warp sync",  "barrier"};
constexpr const char* kSpace[] = {"device", "shared", "remote"};

/// The key of a line of the account: one kind of operation at one place, on one tensor.
struct Key {
  simt::Place place;
  What what;
  Space space;
  std::uint32_t bytes;      ///< of a lane's access; 0 if lanes make none
  const std::byte* buffer;  ///< start of the device buffer; null for shared memory

  auto operator<=>(const Key&) const = default;
};

struct Counts {
  std::uint64_t times = 0;          ///< requests of a warp, operations, copies
  std::uint64_t lanes = 0;          ///< that took part, over all requests
  std::uint64_t bytes = 0;          ///< that lanes use; for a copy, that it moves
  std::uint64_t sectors = 0;        ///< of device memory
  std::uint64_t held_by_l1 = 0;     ///< of these
  std::uint64_t held_by_l2 = 0;     ///< of the rest
  std::uint64_t passes = 0;         ///< through shared memory
  std::uint64_t passes_needed = 0;  ///< without conflicts
  std::uint64_t meeting = 0;        ///< lanes at the most common address, over all requests
  std::uint64_t link_bytes = 0;     ///< `bytes`, if they are another GPU's

  void add(const Counts& other) {
    times += other.times;
    lanes += other.lanes;
    bytes += other.bytes;
    sectors += other.sectors;
    held_by_l1 += other.held_by_l1;
    held_by_l2 += other.held_by_l2;
    passes += other.passes;
    passes_needed += other.passes_needed;
    meeting += other.meeting;
    link_bytes += other.link_bytes;
  }
};
using Account = std::map<Key, Counts>;

/// Which sectors of device memory a launch has touched, one bit each.
class Touched {
 public:
  Touched() {
    for (const simt::DeviceBuffer& buffer : simt::device_buffers()) {
      const std::uint64_t first = first_sector(buffer);
      const std::uint64_t last =
          (reinterpret_cast<std::uint64_t>(buffer.begin) + buffer.bytes - 1) / kSectorBytes;
      parts_.push_back({first, std::vector<std::uint64_t>((last - first) / 64 + 1)});
    }
  }
  /// Marks a sector; returns whether this is its first touch. Callable from any core.
  bool first_touch(std::uint64_t sector) {
    const Bit bit = find(sector);
    if (bit.word == nullptr || is_set(bit)) return false;
    return (std::atomic_ref(*bit.word).fetch_or(bit.mask, std::memory_order_relaxed) & bit.mask) ==
           0;
  }
  /// Whether a sector has been touched. Callable from any core.
  bool has(std::uint64_t sector) {
    const Bit bit = find(sector);
    return bit.word != nullptr && is_set(bit);
  }
  std::uint64_t sectors() const {
    std::uint64_t sum = 0;
    for (const Part& part : parts_)
      for (const std::uint64_t word : part.bits) sum += std::popcount(word);
    return sum;
  }

 private:
  struct Part {
    std::uint64_t first;
    std::vector<std::uint64_t> bits;
  };
  /// Where a sector's bit is; null if the sector is in no buffer.
  struct Bit {
    std::uint64_t* word;
    std::uint64_t mask;
  };
  Bit find(std::uint64_t sector) {
    auto part = std::upper_bound(parts_.begin(), parts_.end(), sector,
                                 [](std::uint64_t at, const Part& p) { return at < p.first; });
    if (part == parts_.begin()) return {};
    --part;
    const std::uint64_t bit = sector - part->first;
    if (bit / 64 >= part->bits.size()) return {};
    return {&part->bits[bit / 64], std::uint64_t{1} << bit % 64};
  }
  static bool is_set(const Bit& bit) {
    return (std::atomic_ref(*bit.word).load(std::memory_order_relaxed) & bit.mask) != 0;
  }
  static std::uint64_t first_sector(const simt::DeviceBuffer& buffer) {
    return reinterpret_cast<std::uint64_t>(buffer.begin) / kSectorBytes;
  }
  std::vector<Part> parts_;
};

/// A block's share of a GPU's caches, according to the model that count's output describes.
struct Shares {
  std::uint64_t l1_bytes;
  std::uint64_t l2_bytes;

  explicit Shares(const simt::Launch& launch) {
    constexpr std::uint64_t kSmBytes = 256 << 10;  // L1 and shared memory together
    constexpr std::uint64_t kReserved = 1 << 10;   // of shared memory, for each block
    constexpr std::uint64_t kMaxBlocks = 32;       // per multiprocessor
    const std::uint64_t blocks = simt::volume(launch.grid);
    const std::uint64_t threads = simt::volume(launch.block);
    const std::uint64_t shared = launch.shared_bytes + kReserved;
    const auto multiprocessors = static_cast<std::uint64_t>(kH100.multiprocessors);
    std::uint64_t resident = std::min<std::uint64_t>(
        {kMaxBlocks, kH100.threads_per_multiprocessor / threads, kSmBytes / shared,
         (blocks + multiprocessors - 1) / multiprocessors});
    resident = std::max<std::uint64_t>(resident, 1);
    l1_bytes = (kSmBytes - std::min(kSmBytes, resident * shared)) / resident;
    const std::uint64_t at_once = std::min(blocks, resident * multiprocessors);
    l2_bytes = static_cast<std::uint64_t>(kH100.l2_bytes) / std::max<std::uint64_t>(at_once, 1);
  }
};

/// Everything that is counted for a launch.
struct LaunchCounts {
  const simt::Launch* of;  ///< the machine's, while it runs
  std::optional<int> gpu;  ///< of several
  std::string kernel;
  simt::Launch launch;
  std::uint64_t blocks = 0;
  Shares shares;
  std::uint64_t counted = 0;  ///< how many of its blocks
  std::uint64_t fewest = ~std::uint64_t{0};
  std::uint64_t most = 0;  ///< requests of a counted block
  bool fits_in_l2;         ///< whether all device buffers together do
  Account account;
  Touched read;
  Touched written;
  std::mutex mutex;
  std::map<std::thread::id, CodeOrder> orders;  ///< of the code, as each core's threads execute it

  explicit LaunchCounts(const simt::Launch& l)
      : of(&l),
        gpu(simt::one_of_several_gpus()),
        kernel(simt::kernel_name(l)),
        launch(l),
        blocks(simt::volume(l.grid)),
        shares(l) {
    std::size_t bytes = 0;
    for (const simt::DeviceBuffer& buffer : simt::device_buffers()) bytes += buffer.bytes;
    fits_in_l2 = static_cast<std::int64_t>(bytes) <= kH100.l2_bytes;
  }

  /// The calling core's order.
  CodeOrder& order() {
    const std::lock_guard lock(mutex);
    return orders[std::this_thread::get_id()];
  }

  /// Adds a block's account to the launch's. Callable from any core.
  void add(const Account& of_block) {
    const std::lock_guard lock(mutex);
    std::uint64_t requests = 0;
    for (const auto& [key, counts] : of_block) {
      account[key].add(counts);
      requests += counts.times;
    }
    ++counted;
    fewest = std::min(fewest, requests);
    most = std::max(most, requests);
  }
};

/// Marks the sectors that a copy or a request touches.
void note(Touched& touched, const void* begin, std::size_t bytes) {
  for_sectors(begin, bytes, [&](std::uint64_t sector) { touched.first_touch(sector); });
}

/// Watches a block that is not counted, since others are like it: records only what it touches.
class Toucher : public simt::Witness {
 public:
  explicit Toucher(LaunchCounts& launch) : launch_(launch) {}

  void touches(unsigned, const simt::Access& access) override {
    if (access.space != Space::Device) return;
    Touched& touched = access.kind == Kind::Load ? launch_.read : launch_.written;
    note(touched, access.address, access.bytes);
  }
  void begins(unsigned, std::uint64_t, const simt::Copy& copy) override {
    if (copy.kind == simt::Copy::Kind::BulkStore) note(launch_.written, copy.to, copy.bytes);
    if (copy.kind == simt::Copy::Kind::BulkLoad || copy.kind == simt::Copy::Kind::OfThread)
      note(launch_.read, copy.from, copy.bytes);
  }

 private:
  LaunchCounts& launch_;
};

/// Watches a block that is counted.
class BlockCounter : public simt::Witness {
 public:
  BlockCounter(LaunchCounts& launch, std::uint64_t number, std::size_t max_bytes)
      : launch_(launch),
        is_first_of_multiprocessor_(number < static_cast<std::uint64_t>(kH100.multiprocessors)),
        max_bytes_(max_bytes),
        warps_(warps_of(launch.launch), Warp{WarpPaths(launch.order()), 0, {}}),
        l1_(launch.shares.l1_bytes),
        l2_(launch.shares.l2_bytes) {
    for (unsigned warp = 0; warp < warps_.size(); ++warp)
      warps_[warp].running = lanes_of(launch.launch, warp);
  }
  ~BlockCounter() override {
    ask_caches();
    launch_.add(account_);
  }

  void enters(unsigned thread, simt::Place place) override { add(thread, Step::block(place)); }
  void touches(unsigned thread, const simt::Access& access) override {
    if (!access.is_again) add(thread, Step::access(access));
  }
  void meets(unsigned warp, unsigned lanes, simt::Op op, simt::Place place) override {
    meet(warp, lanes);
    const bool syncs = op == simt::Op::SyncWarp;
    count_times({place, syncs ? What::Sync : What::Shuffle, Space::Shared, 0, nullptr});
  }
  void block_meets(simt::Place place) override {
    for (unsigned warp = 0; warp < warps_.size(); ++warp) meet(warp, kAllLanes);
    ask_caches();
    count_times({place, What::Barrier, Space::Shared, 0, nullptr});
  }
  void exits(unsigned thread) override {
    Warp& warp = warps_[thread / kLanes];
    warp.running &= ~(1u << thread % kLanes);
    if (warp.running == 0) meet(thread / kLanes, kAllLanes);
  }
  void begins(unsigned thread, std::uint64_t, const simt::Copy& copy) override {
    using CopyKind = simt::Copy::Kind;
    if (copy.kind == CopyKind::OfThread) {
      const auto* const from = static_cast<const std::byte*>(copy.from);
      if (copy.bytes > 0)
        add(thread, {copy.place, from, static_cast<std::uint32_t>(copy.bytes), Kind::Load,
                     Space::Device, false, static_cast<const std::byte*>(copy.to)});
      return;
    }
    const bool loads = copy.kind == CopyKind::BulkLoad;
    const bool stores = copy.kind == CopyKind::BulkStore;
    const What what = loads ? What::BulkLoad : stores ? What::BulkStore : What::RemoteStore;
    const Space space = loads || stores ? Space::Device : Space::Remote;
    const void* const in_device = loads ? copy.from : copy.to;
    Counts& counts = account_[{copy.place, what, space, 0, buffer_of(in_device)}];
    ++counts.times;
    counts.bytes += copy.bytes;
    if (space == Space::Device && is_across_link(in_device)) counts.link_bytes += copy.bytes;
    if (space == Space::Remote) return;
    for_sectors(in_device, copy.bytes, [&](std::uint64_t sector) {
      ++counts.sectors;
      if (loads && in_l2(sector, launch_.written.has(sector))) ++counts.held_by_l2;
      if (stores) launch_.written.first_touch(sector);
    });
  }

 private:
  /// The sectors of a load, and its line of the account.
  struct Load {
    Counts* counts;
    Sectors sectors;
    std::vector<bool> written;  // whether the launch had stored to each sector before the load
    bool past_l1;
  };
  struct Warp {
    WarpPaths paths;
    unsigned running;         // lanes that have not exited
    std::vector<Load> loads;  // since the last barrier; see ask_caches()
  };

  void add(unsigned thread, const Step& step) {
    warps_[thread / kLanes].paths.add(thread % kLanes, step);
    noted_ += WarpPaths::kStepBytes;
    if (noted_ > max_bytes_) throw std::runtime_error(too_much());
  }
  std::string too_much() const {
    char gigabytes[32];
    std::snprintf(gigabytes, sizeof gigabytes, "%.1f GB", static_cast<double>(max_bytes_) / 1e9);
    return "counting " + launch_.kernel + " needs more than the " + gigabytes +
           " free for it: its lanes take too many steps without meeting; ask for half the --cols";
  }

  void meet(unsigned warp, unsigned lanes) {
    WarpPaths& paths = warps_[warp].paths;
    noted_ -= paths.noted_bytes();
    paths.meet(lanes, [&](const Request& request) { count(warp, request); });
    noted_ += paths.noted_bytes();
  }

  // The start of the device buffer that an address is in; null for shared memory.
  static const std::byte* buffer_of(const void* address) {
    const simt::DeviceBuffer* const buffer =
        simt::device_buffer_of(static_cast<const std::byte*>(address));
    return buffer == nullptr ? nullptr : buffer->begin;
  }

  static bool is_across_link(const void* address) {
    const auto* const buffer = simt::device_buffer_of(static_cast<const std::byte*>(address));
    return buffer != nullptr && simt::is_across_link(*buffer);
  }

  void count_times(const Key& key) { ++account_[key].times; }

  void count(unsigned warp, const Request& request) {
    const bool copies = request.copies();
    const What what = copies                        ? What::ThreadCopy
                      : request.kind == Kind::Load  ? What::Load
                      : request.kind == Kind::Store ? What::Store
                                                    : What::Atomic;
    const std::byte* const any = request.at[first_lane(request.lanes())];
    Counts& counts = account_[{request.place, what, request.space, request.bytes, buffer_of(any)}];
    ++counts.times;
    counts.lanes += std::popcount(request.lanes());
    if (request.kind == Kind::Atomic) counts.meeting += most_at_one_address(request);
    if (copies || request.space != Space::Device) {
      const Passes passes = passes_of(copies ? request.to : request.at, request.bytes);
      counts.passes += passes.taken;
      counts.passes_needed += passes.needed;
    }
    if (request.space != Space::Device) return;
    Sectors sectors = sectors_of(request);
    counts.bytes += sectors.useful_bytes;
    if (is_across_link(any)) counts.link_bytes += sectors.useful_bytes;
    const bool is_atomic = request.kind == Kind::Atomic;
    counts.sectors += is_atomic ? sectors_sent(request) : sectors.numbers.size();
    if (request.kind == Kind::Load) {
      std::vector<bool> written;
      for (const std::uint64_t sector : sectors.numbers)
        written.push_back(launch_.written.has(sector));
      warps_[warp].loads.push_back(
          {&counts, std::move(sectors), std::move(written), request.past_l1});
      return;
    }
    for (const std::uint64_t sector : sectors.numbers) launch_.written.first_touch(sector);
  }

  // Sends the warps' loads since the last barrier through the caches, one request per warp in turn.
  void ask_caches() {
    bool more = true;
    for (std::size_t turn = 0; more; ++turn) {
      more = false;
      for (Warp& warp : warps_) {
        if (turn >= warp.loads.size()) continue;
        more = true;
        const Load& load = warp.loads[turn];
        for (std::size_t i = 0; i < load.written.size(); ++i) ask_caches(load, i);
      }
    }
    for (Warp& warp : warps_) warp.loads.clear();
  }
  void ask_caches(const Load& load, std::size_t i) {
    Counts& counts = *load.counts;
    const std::uint64_t sector = load.sectors.numbers[i];
    if (load.past_l1) {
      if (in_l2(sector, load.written[i])) ++counts.held_by_l2;
      return;
    }
    const bool is_own = l1_.knows(sector);
    if (l1_.holds(sector)) {
      ++counts.held_by_l1;
      return;
    }
    if (!in_l2(sector, load.written[i])) return;
    // Data that all blocks read, such as weight: a multiprocessor's first block loads it into L1.
    if (!is_own && !is_first_of_multiprocessor_)
      ++counts.held_by_l1;
    else
      ++counts.held_by_l2;
  }
  // Whether L2 holds a sector; from now on it does. Unless all of the launch's data fits in L2, a
  // block keeps only its share; sectors that others have read, above all weight, stay.
  bool in_l2(std::uint64_t sector, bool written) {
    const bool others_had_it = !launch_.read.first_touch(sector) || written;
    if (launch_.fits_in_l2) return others_had_it;
    const bool is_own = l2_.knows(sector);
    const bool held = l2_.holds(sector);
    return is_own ? held : others_had_it;
  }

  LaunchCounts& launch_;
  const bool is_first_of_multiprocessor_;
  const std::size_t max_bytes_;
  std::size_t noted_ = 0;  // bytes of steps since the last meetings
  std::vector<Warp> warps_;
  Cache l1_;
  Cache l2_;
  Account account_;
};

class Counter : public Observer {
 public:
  explicit Counter(const Names& names, std::int64_t elements)
      : names_(names), elements_(elements) {}

  void begins(const simt::Launch& launch) override {
    launches_.push_back(std::make_unique<LaunchCounts>(launch));
  }
  std::unique_ptr<simt::Witness> begins_block(const simt::BlockInfo& block) override {
    LaunchCounts& launch = running_launch(launches_, block.launch);
    if (!is_counted(block.number, launch.blocks)) return std::make_unique<Toucher>(launch);
    return std::make_unique<BlockCounter>(launch, block.number, max_bytes_);
  }

  Json seen() const override {
    Json launches = Json::array();
    for (const auto& launch : launches_) launches.push_back(as_json(*launch));
    return launches;
  }

 private:
  // For a large problem only some blocks are counted: evenly spread, with the first and the last.
  bool is_counted(std::uint64_t block, std::uint64_t blocks) const {
    constexpr std::int64_t kAllBelow = 1 << 23;  // elements
    constexpr std::uint64_t kFewest = 8;
    if (elements_ <= kAllBelow) return true;
    const std::uint64_t wanted = std::max<std::uint64_t>(
        kFewest, blocks * kAllBelow / static_cast<std::uint64_t>(elements_));
    if (wanted >= blocks) return true;
    const std::uint64_t before = block * (wanted - 1) / (blocks - 1);
    return block == 0 || block == blocks - 1 || (block - 1) * (wanted - 1) / (blocks - 1) != before;
  }

  Json as_json(const LaunchCounts& launch) const {
    const auto shape = [](dim3 d) { return Json{d.x, d.y, d.z}; };
    Json lines = Json::array();
    for (const auto& [key, counts] : launch.account) {
      Json line{{"place", number_of(key.place)},
                {"what", kWhat[static_cast<int>(key.what)]},
                {"space", kSpace[static_cast<int>(key.space)]},
                {"access_bytes", key.bytes},
                {"times", counts.times}};
      if (key.buffer != nullptr) line["tensor"] = names_.in_buffer(key.buffer);
      line["lanes"] = counts.lanes;
      line["bytes"] = counts.bytes;
      line["sectors"] = counts.sectors;
      line["held_by_l1"] = counts.held_by_l1;
      line["held_by_l2"] = counts.held_by_l2;
      line["passes"] = counts.passes;
      line["passes_needed"] = counts.passes_needed;
      line["meeting"] = counts.meeting;
      if (launch.gpu) line["link_bytes"] = counts.link_bytes;
      lines.push_back(std::move(line));
    }
    Json json{{"kernel", launch.kernel},
              {"grid", shape(launch.launch.grid)},
              {"block", shape(launch.launch.block)},
              {"shared_bytes", launch.launch.shared_bytes},
              {"cluster", launch.launch.cluster},
              {"blocks", launch.blocks},
              {"blocks_counted", launch.counted},
              {"fewest_of_a_block", launch.fewest},
              {"most_of_a_block", launch.most},
              {"fits_in_l2", launch.fits_in_l2},
              {"l1_bytes_a_block", launch.shares.l1_bytes},
              {"l2_bytes_a_block", launch.shares.l2_bytes},
              {"sectors_read_once", launch.read.sectors()},
              {"sectors_written_once", launch.written.sectors()}};
    if (launch.gpu) json["gpu"] = *launch.gpu;
    json["lines"] = std::move(lines);
    return json;
  }

  const Names& names_;
  const std::int64_t elements_;
  static constexpr int kPart = 4;  // each counted block may use a quarter of the free memory
  const std::size_t max_bytes_ = static_cast<std::size_t>(free_host_bytes() / kPart);
  std::vector<std::unique_ptr<LaunchCounts>> launches_;
};

}  // namespace

std::unique_ptr<Observer> count_requests(const Names& names, std::int64_t elements) {
  return std::make_unique<Counter>(names, elements);
}

}  // namespace lnc
