// What orders the threads of a block, for `make race`: a thread learns what others have done when
// it meets them, when it waits, or through an atomic between two fences.
#include <optional>

#include "common/watch/races.h"

namespace lnc::race {

using simt::Kind;
using simt::Scope;
using simt::Space;

/// A Barrier, and the knowledge that each of its phases passes on.
struct BarrierState {
  std::uint32_t near, wide;  ///< its numbers: for bulk loads, and for stores from other blocks
  Gathering by_threads, by_blocks;
  struct Phase {
    Knowledge near, wide;
  };
  std::vector<Phase> complete;
};

/// Watches a block.
class BlockRaces final : public simt::Witness {
 public:
  BlockRaces(Races& all, const simt::BlockInfo& info, Serial serial,
             std::shared_ptr<ClusterState> cluster)
      : all_(all),
        serial_(serial),
        shared_(info, serial),
        threads_(volume(info.launch.block), Thread{all.streams_[info.gpu].at_start}),
        cluster_(std::move(cluster)) {
    cluster_->blocks.push_back(&shared_);
  }
  ~BlockRaces() override {
    const std::lock_guard lock(all_.mutex_);
    std::erase(cluster_->blocks, &shared_);
    if (!all_.several_gpus_) return;
    Knowledge& on_gpu = all_.streams_[gpu_of(serial_)].knows;
    for (const Thread& thread : threads_) on_gpu = all_.join_(on_gpu, thread.knows);
  }

  void touches(unsigned thread, const simt::Access& access) override {
    take(thread);
    Way way = access.kind == Kind::Load ? Way::Load : Way::Store;
    if (access.kind == Kind::Atomic)
      way = access.scope == Scope::Block    ? Way::BlockAtomic
            : access.scope == Scope::System ? Way::SystemAtomic
                                            : Way::Atomic;
    if (access.is_word) way = Way::WordStore;
    ++all_.accesses_;
    if (access.space != Space::Device) ++all_.shared_accesses_;
    const auto memory =
        access.space == Space::Device ? all_.of_device() : memory_of(access.address);
    if (!memory) return;
    all_.touch(*memory, actor(thread), way, access.place, access.address, access.bytes);
    if (access.kind == Kind::Atomic) update(thread, access, memory->locations);
    if (access.is_word) send(thread, access);
  }
  bool loads_word(unsigned thread, const simt::Access& access) override {
    Thread& self = threads_[thread];
    ++all_.accesses_;
    all_.touch(all_.of_device(), actor(thread), Way::WordLoad, access.place, access.address,
               access.bytes);
    if (std::find(self.polled.begin(), self.polled.end(), access.address) == self.polled.end())
      self.polled.push_back(access.address);
    const auto* const seen = self.words_seen.find(access.address);
    const bool is_newest = all_.load(access.address, actor(thread), access.place, seen);
    const Word& word = all_.words_[access.address];
    const std::uint64_t version = word.version - (is_newest ? 0 : 1);
    if (seen != nullptr && *seen == version) return is_newest;
    self.words_seen[access.address] = version;
    if (!is_newest) return false;
    loads_words_ = self.has_loaded_word = true;
    all_.handshakes_.access(access.address, {serial_, thread, self.now, self.knows}, access.place,
                            "load_word()");
    const auto found = all_.locations_.find(access.address);
    if (found != all_.locations_.end()) see(self, found->second, Scope::System);
    self.knows = all_.join_(self.knows, word.by_words);
    return true;
  }

  void meets(unsigned warp, unsigned lanes, simt::Op op, Place) override {
    const unsigned first = warp * kWarpSize;
    if (op != simt::Op::SyncWarp) return exchange(first, lanes);
    const unsigned there = std::min<std::size_t>(kWarpSize, threads_.size() - first);
    const bool whole = lanes == ~0u >> (kWarpSize - there);
    const auto met = [&](BlockClock& clock, Tick tick) {
      if (whole) return clock.learn_warp(warp, tick);
      for (unsigned lane = 0; lane < there; ++lane)
        if ((lanes >> lane & 1) != 0) clock.learn_thread(first + lane, tick);
    };
    meet(first, there, lanes, met);
  }
  void block_meets(Place) override {
    for (unsigned thread = 0; thread < threads_.size(); ++thread) take(thread);
    const auto met = [](BlockClock& clock, Tick tick) { clock.learn_all(tick); };
    meet(0, threads_.size(), ~0u, met);
  }

  void fence(unsigned thread, Scope scope) override {
    Thread& self = threads_[thread];
    take(thread);
    self.knows = all_.join_(self.knows, self.seen_in_block);
    if (scope != Scope::Block) self.knows = all_.join_(self.knows, self.seen);
    if (scope == Scope::System) self.knows = all_.join_(self.knows, self.seen_in_system);
    const Knowledge released =
        with_more(self.knows, [&](BlockClock& clock) { clock.learn_thread(thread, self.now); });
    self.released_in_block = released;
    if (scope != Scope::Block) self.released = released;
    if (scope == Scope::System) self.released_to_system = released;
    all_.handshakes_.fence({serial_, thread, self.now, self.knows}, scope);
    ++self.now;
  }
  void fence_for_copies(unsigned thread) override {
    Thread& self = threads_[thread];
    all_.add_proxy_fence(serial_, thread, self.now);
    ++self.now;
  }

  void inits(unsigned thread, const void* barrier) override {
    use(thread, barrier, Way::Store);
    barriers_[barrier] = {all_.next_barrier_, all_.next_barrier_ + 1, {}, {}, {}};
    all_.next_barrier_ += 2;
  }
  void arrives(unsigned thread, const void* barrier) override {
    take(thread);
    use(thread, barrier, Way::Atomic);
    const auto found = barriers_.find(barrier);
    if (found == barriers_.end()) return;  // a fault
    Thread& self = threads_[thread];
    found->second.by_threads.bring(self.knows, serial_, thread, self.now);
    ++self.now;
  }
  void arrives_at(unsigned thread, simt::Witness& other, const void* barrier) override {
    take(thread);
    use(thread, barrier, Way::Atomic);
    auto& barriers = static_cast<BlockRaces&>(other).barriers_;
    const auto found = barriers.find(barrier);
    if (found == barriers.end()) return;  // a fault
    Thread& self = threads_[thread];
    found->second.by_blocks.bring_in_shared(*self.knows, serial_, thread, self.now);
    ++self.now;
  }
  void completes(const void* barrier) override {
    BarrierState& state = barriers_.at(barrier);
    const auto phases = static_cast<Tick>(state.complete.size() + 1);
    auto near = std::make_shared<Clocks>(state.by_threads.take(threads_.size()));
    near->learn_barrier(state.near, phases);
    auto wide = std::make_shared<Clocks>(*near);
    wide->join(state.by_blocks.take(threads_.size()));
    wide->learn_barrier(state.wide, phases);
    state.complete.push_back({near, wide});
  }
  void passes(unsigned thread, const void* barrier, Scope scope) override {
    use(thread, barrier, Way::Atomic);
    const BarrierState& state = barriers_.at(barrier);
    Thread& self = threads_[thread];
    // A parity distinguishes the last phase that a thread knows of only from the next one. Further
    // phases may be complete, but only by luck.
    const Tick known = self.knows->of_barrier(state.near);
    const Tick phases = known + ((known ^ state.complete.size()) & 1);
    if (phases == 0 || phases > state.complete.size()) return;
    const BarrierState::Phase& last = state.complete[phases - 1];
    if (scope == Scope::Block) {
      if (phases > known) self.knows = all_.join_(self.knows, last.near);
    } else if (phases > self.knows->of_barrier(state.wide)) {
      self.knows = all_.join_(self.knows, last.wide);
    }
  }

  void fence_barrier_init(unsigned thread) override {
    Thread& self = threads_[thread];
    self.initialised = self.knows;
    self.initialised_until = self.now;
    ++self.now;
  }
  void cluster_arrives(unsigned thread, simt::Publishes what) override {
    take(thread);
    Thread& self = threads_[thread];
    Gathering& gathering = cluster_->gathered[self.cluster_phase++];
    if (what == simt::Publishes::All)
      gathering.bring(self.knows, serial_, thread, self.now);
    else if (self.initialised != nullptr)  // only what came before its fence
      gathering.bring(self.initialised, serial_, thread, self.initialised_until);
    ++self.now;
  }
  void cluster_passes(unsigned thread) override {
    Thread& self = threads_[thread];
    if (self.cluster_phase == 0) return;
    const unsigned phase = self.cluster_phase - 1;
    Knowledge& released = cluster_->released[phase];
    if (released == nullptr) {
      released = std::make_shared<Clocks>(cluster_->gathered[phase].take(threads_.size()));
      cluster_->gathered.erase(phase);
    }
    self.knows = all_.join_(self.knows, released);
  }

  void begins(unsigned thread, std::uint64_t number, const Copy& copy) override {
    take(thread);
    Thread& self = threads_[thread];
    CopyState& state =
        all_.add_copy(number, {copy.kind, serial_, thread, copy.barrier, self.now, self.knows});
    const Actor actor{self.knows, serial_, thread, self.now, &state};
    const auto touch = [&](const void* at, Way way) {
      const auto* const address = static_cast<const std::byte*>(at);
      if (const auto memory = memory_of(address))
        all_.touch(*memory, actor, way, copy.place, address, copy.bytes);
    };
    if (copy.barrier != nullptr) use(thread, copy.barrier, Way::Atomic);
    if (copy.from != nullptr) touch(copy.from, Way::Load);
    touch(copy.to, Way::Store);
    if (copy.kind == Copy::Kind::BulkStore) self.stores.push_back({number, self.groups});
    ++self.now;
  }
  void arrives(std::uint64_t number) override {
    CopyState& copy = all_.copy(number);
    if (copy.kind == Copy::Kind::BulkStore) return;  // see waited(): its thread waits for it
    if (copy.kind == Copy::Kind::OfThread) {
      copy.read = {Over::By::Thread, 0, threads_[copy.thread].now};
    } else {
      const bool is_load = copy.kind == Copy::Kind::BulkLoad;
      BarrierState& state = barriers_.at(copy.barrier);
      const auto phases = static_cast<Tick>(state.complete.size() + 1);
      copy.read = {Over::By::Barrier, is_load ? state.near : state.wide, phases};
      if (!is_load)
        state.by_blocks.bring_by_convention(*copy.knows, copy.block, copy.thread, copy.tick);
    }
    copy.knows = nullptr;
    copy.written = copy.read;
  }
  void commits(unsigned thread, Copy::Kind kind) override {
    if (kind == Copy::Kind::BulkStore) ++threads_[thread].groups;
  }
  void waited(unsigned thread, Copy::Kind kind, std::size_t prior) override {
    if (kind != Copy::Kind::BulkStore) return;
    Thread& self = threads_[thread];
    std::erase_if(self.stores, [&](const BulkStore& store) {
      const bool is_read = store.group + prior < self.groups;
      if (is_read) all_.copy(store.number).read = {Over::By::Thread, 0, self.now};
      return is_read;
    });
  }

  void waits_for_grid(unsigned thread) override {
    Thread& self = threads_[thread];
    self.knows = all_.join_(self.knows, all_.streams_[gpu_of(serial_)].after_wait);
  }
  void exits(unsigned thread) override { take(thread); }

 private:
  struct BulkStore {
    std::uint64_t number;
    unsigned group;
  };
  struct Thread {
    Knowledge knows;
    Tick now = 1;
    // By its last fence; its atomics and words pass it on.
    Knowledge released{}, released_in_block{}, released_to_system{};
    // By its atomics and words; its next fence acquires it.
    Knowledge seen{}, seen_in_block{}, seen_in_system{};
    Knowledge initialised{};  // at its last fence_barrier_init
    Tick initialised_until = 0;
    unsigned cluster_phase = 0;
    unsigned groups = 0;  // of bulk stores
    std::vector<BulkStore> stores{};
    std::vector<const std::byte*> polled{};                 // words, since it did anything else
    FlatMap<const std::byte*, std::uint64_t> words_seen{};  // the last version of each
    bool has_loaded_word = false;                           // since it last exchanged values
    Knowledge exchanged{};                                  // by shuffles and votes
  };

  Actor actor(unsigned thread) const {
    const Thread& self = threads_[thread];
    return {self.knows, serial_, thread, self.now};
  }
  /// A copy of `knows` in which this block's clock has learned more.
  template <typename Learn>
  Knowledge with_more(const Knowledge& knows, const Learn& learn) const {
    auto more = std::make_shared<Clocks>(*knows);
    auto& mine = more->blocks[serial_];
    auto clock =
        mine == nullptr ? std::make_shared<BlockClock>() : std::make_shared<BlockClock>(*mine);
    learn(*clock);
    mine = clock;
    return more;
  }

  /// Threads of the block have met: each now knows what any of them knew and has done.
  template <typename Met>
  void meet(unsigned first, std::size_t count, unsigned lanes, const Met& met) {
    Knowledge sum;
    Tick latest = 0;
    const auto for_each = [&](auto&& body) {
      for (unsigned i = 0; i < count; ++i)
        if ((lanes >> i % kWarpSize & 1) != 0) body(threads_[first + i]);
    };
    for_each([&](const Thread& thread) {
      if (sum != thread.knows) sum = all_.join_(sum, thread.knows);
      latest = std::max(latest, thread.now);
    });
    const Knowledge knows = with_more(sum, [&](BlockClock& clock) { met(clock, latest); });
    for_each([&](Thread& thread) {
      thread.knows = knows;
      thread.now = latest + 1;
    });
  }

  /// An atomic passes on what its thread has released by a fence, and receives what others have.
  void update(unsigned thread, const simt::Access& access, Locations& locations) {
    Thread& self = threads_[thread];
    all_.handshakes_.access(access.address, {serial_, thread, self.now, self.knows}, access.place,
                            "atomic");
    auto found = locations.find(access.address);
    if (found == locations.end()) {
      if (self.released_in_block == nullptr) return;
      found = locations.emplace(access.address, Location()).first;
    }
    Location& location = found->second;
    see(self, location, access.scope);
    const auto pass_on = [&](Knowledge& to, const Knowledge& released) {
      to = all_.join_(to, released);
    };
    pass_on(location.to_block[serial_], self.released_in_block);
    if (access.scope != Scope::Block) pass_on(location.to_gpu[gpu_of(serial_)], self.released);
    if (access.scope == Scope::System) pass_on(location.to_all, self.released_to_system);
  }
  /// A thread receives what others have passed on at a location.
  void see(Thread& self, Location& location, Scope scope) {
    self.seen_in_block = all_.join_(self.seen_in_block, location.to_block[serial_]);
    if (scope == Scope::Block) return;
    self.seen = all_.join_(self.seen, location.to_gpu[gpu_of(serial_)]);
    if (scope == Scope::System)
      self.seen_in_system = all_.join_(self.seen_in_system, location.to_all);
  }

  /// A thread stores a word; who sees it receives what its sender has released, and no one else.
  void send(unsigned thread, const simt::Access& access) {
    Thread& self = threads_[thread];
    all_.overwrite(access.address, actor(thread), access.place);
    Location& location = all_.locations_[access.address];
    location = {self.released_to_system,
                {gpu_of(serial_), self.released},
                {serial_, self.released_in_block}};
    all_.handshakes_.access(access.address, {serial_, thread, self.now, self.knows}, access.place,
                            "store_word()");
    ++self.now;
  }
  /// Lanes shuffle or vote. This orders no memory, but a word that a lane sends from now on implies
  /// that the others have loaded theirs.
  void exchange(unsigned first, unsigned lanes) {
    if (!loads_words_) return;
    std::vector<Thread*> met;
    for (unsigned lane = 0; lane < kWarpSize; ++lane)
      if ((lanes >> lane & 1) != 0) met.push_back(&threads_[first + lane]);
    const auto is_new = [&](const Thread* thread) {
      return thread->has_loaded_word || thread->exchanged != met.front()->exchanged;
    };
    if (std::none_of(met.begin(), met.end(), is_new)) return;
    auto sum = std::make_shared<Clocks>();
    BlockClock own;
    for (const Thread* thread : met) {
      sum->learn_by_words(*thread->knows);
      own.learn_thread(static_cast<unsigned>(thread - threads_.data()), thread->now);
    }
    join(sum->by_words.blocks, {serial_, std::make_shared<const BlockClock>(own)});
    for (Thread* thread : met) {
      thread->knows = all_.join_(thread->knows, sum);
      thread->exchanged = sum;
      thread->has_loaded_word = false;
      ++thread->now;
    }
  }
  /// A thread does something else than to poll.
  void take(unsigned thread) {
    Thread& self = threads_[thread];
    for (const std::byte* const word : self.polled) all_.take(word, actor(thread));
    self.polled.clear();
  }

  /// A thread accesses a Barrier, whose initialisation it must know of.
  void use(unsigned thread, const void* barrier, Way way) {
    const auto* const address = static_cast<const std::byte*>(barrier);
    constexpr std::size_t kBarrierBytes = 8;
    if (const auto memory = memory_of(address))
      all_.touch(*memory, actor(thread), way, simt::here(), address, kBarrierBytes);
  }

  static Races::Memory shared_of(WatchedMemory& memory) {
    return {memory.shadow, memory.locations, &memory};
  }
  /// The memory that an address is in; none if it is private to a thread.
  std::optional<Races::Memory> memory_of(const std::byte* address) {
    if (shared_.holds(address)) return shared_of(shared_);
    for (WatchedMemory* const other : cluster_->blocks)
      if (other->holds(address)) return shared_of(*other);
    for (const simt::DeviceBuffer& buffer : simt::device_buffers())
      if (address >= buffer.begin && address < buffer.begin + buffer.bytes) return all_.of_device();
    return std::nullopt;
  }

  Races& all_;
  const Serial serial_;
  WatchedMemory shared_;
  std::vector<Thread> threads_;
  const std::shared_ptr<ClusterState> cluster_;
  std::map<const void*, BarrierState> barriers_;
  bool loads_words_ = false;
};

std::unique_ptr<simt::Witness> watch_block(Races& all, const simt::BlockInfo& info, Serial serial,
                                           std::shared_ptr<ClusterState> cluster) {
  return std::make_unique<BlockRaces>(all, info, serial, std::move(cluster));
}

}  // namespace lnc::race
