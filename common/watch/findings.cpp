// What `make race` reports about two accesses that nothing orders.
#include "common/watch/races.h"

namespace lnc::race {
namespace {

std::string name_of(Copy::Kind kind) {
  switch (kind) {
    case Copy::Kind::OfThread:
      return "__pipeline_memcpy_async";
    case Copy::Kind::BulkLoad:
      return "bulk_load";
    case Copy::Kind::BulkStore:
      return "bulk_store";
    case Copy::Kind::RemoteStore:
      return "remote_store_async";
  }
  return "copy";
}

std::string name_of(Way way) {
  if (is_word(way)) return way == Way::WordLoad ? "load_word" : "store_word";
  if (way == Way::Load) return "load";
  return way == Way::Store ? "store" : "atomic";
}

/// What a read of a copy's destination lacks. Both answers are given, since the tool cannot know
/// whether the read wants the data of this copy or what was there before.
std::string between_read_and(Copy::Kind copy) {
  if (copy == Copy::Kind::RemoteStore)
    return "a wait_at_cluster_scope() before the read, or, where that wants what was there before, "
           "a cluster_sync() or a remote_arrive() after the read and before the other block sends";
  return "a wait for the Barrier before the read, or, where that wants what was there before, a "
         "__syncthreads() after the read and before the copy is requested";
}

}  // namespace

void Races::report(const Record& earlier, const Actor& actor, const Record& mine, Order order,
                   const Memory& memory, const std::byte* word) {
  const auto pair = std::minmax(earlier.place, mine.place);
  const auto [known, is_new] = known_.emplace(pair, findings_.size());
  if (is_new) findings_.emplace_back();
  Finding& finding = findings_[known->second];
  const bool by_convention = order == Order::ByConvention;
  if (by_convention && !finding.by_convention) return;
  const bool is_first = is_new || finding.by_convention != by_convention;  // races outrank them
  finding.by_convention = by_convention;
  finding.count = is_first ? 1 : finding.count + 1;
  // The pair of threads that are furthest apart tells most about the missing synchronisation.
  if (!is_first && finding.apart == Apart::Gpus) return;
  const unsigned thread = unknown_thread(earlier, actor);
  const Apart apart = apart_of(earlier.block, thread, actor);
  if (!is_first && finding.apart >= apart) return;
  const auto of_copy = [&](const Record& record) -> std::optional<Copy::Kind> {
    if (!record.is_copy()) return std::nullopt;
    return copies_[record.tick].kind;
  };
  unsigned byte = 0;
  while ((earlier.bytes & mine.bytes & 1u << byte) == 0) ++byte;
  const std::byte* const address = word + byte;
  finding.apart = apart;
  finding.first = {earlier.place, earlier.block, thread, earlier.way, of_copy(earlier)};
  finding.second = {mine.place, mine.block, actor.thread, mine.way, of_copy(mine)};
  finding.where = memory.shared == nullptr ? Json{{"element", names_.element(address)}}
                                           : memory.shared->where(address);
  finding.missing = missing(earlier, actor, mine, order, memory);
}

/// The first of a record's threads whose access the actor does not know of.
unsigned Races::unknown_thread(const Record& record, const Actor& actor) const {
  if (record.is_copy()) return copies_[record.tick].thread;
  unsigned first = kWarpSize;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((record.lanes >> lane & 1) == 0) continue;
    const unsigned thread = record.warp * kWarpSize + lane;
    if (!actor.moment().is_after(record.block, thread, record.tick)) return thread;
    first = std::min(first, lane);
  }
  return record.warp * kWarpSize + first;
}

Missing Races::missing(const Record& earlier, const Actor& actor, const Record& mine, Order order,
                       const Memory& memory) const {
  const unsigned thread = unknown_thread(earlier, actor);
  const bool is_shared = memory.shared != nullptr;
  if (order == Order::TooEarly)
    return {
        "a loop that loads the word until it has the launch's epoch: without one the thread goes "
        "on "
        "with what was there before"};
  if (order == Order::Overwritten)
    return {
        "a guarantee that the word has been loaded before the next one overwrites it: a second "
        "slot "
        "(epoch % 2), or a word back; if the load does not wait for its word, a loop until that "
        "has "
        "the launch's epoch"};
  if (order == Order::Unfenced) {
    if (!is_shared)
      return {
          "the end of the kernel: fence_proxy_async() speaks of shared memory, and the copy "
          "engine need not see here what this kernel has stored"};
    const std::string of_thread =
        "a fence_proxy_async() of " + name_of_thread(earlier.block, thread);
    if (earlier.way == Way::Load)
      return {of_thread +
              " after its load, before the threads meet: the copy engine may overwrite what it "
              "has not read yet"};
    return {of_thread +
            " after its store, before the threads meet: the copy engine need not see it yet"};
  }
  const bool between_gpus = gpu_of(earlier.block) != gpu_of(actor.block);
  if (!between_gpus && &launch_of(earlier.block) != &launch_of(actor.block))
    return {"a grid_dependency_wait() before the later access: its kernel starts early"};
  if (earlier.is_copy()) return missing_of_copy(earlier, actor, mine.way);
  if (actor.copy != nullptr && actor.copy->barrier != nullptr && earlier.way == Way::Load)
    return {between_read_and(actor.copy->kind)};

  const Moment first{earlier.block, thread, earlier.tick, streams_[gpu_of(earlier.block)].at_start};
  if (between_gpus) return missing_between_gpus(earlier, actor, mine, first);
  const auto name = [this](Serial block, unsigned number) { return name_of_thread(block, number); };
  const bool is_near = earlier.block == actor.block;
  if (!is_near && is_atomic(earlier.way) && is_atomic(mine.way))
    return {"an atomic at the device's scope: one of a block orders nothing between blocks"};
  if (const auto handshake = handshakes_.missing(first, actor.moment(), name)) return *handshake;
  if (apart_of(earlier.block, thread, actor) == Apart::Lanes)
    return {
        "a __syncwarp() or a __syncthreads() between them: they are lanes of one warp, which "
        "need not run together, and a shuffle orders no memory"};
  if (is_near) return {"a __syncthreads() between them: they are in different warps of a block"};
  if (is_shared) return {"a cluster_sync() between them: they are in two blocks of a cluster"};
  if (is_atomic(earlier.way) != is_atomic(mine.way))
    return {"an atomic in place of the " + name_of(is_atomic(mine.way) ? earlier.way : mine.way) +
            ", or what orders the two: they are in different blocks"};
  return {
      "a kernel of its own for the later access, or a handshake by an atomic and "
      "__threadfence() on both sides: they are in different blocks"};
}

Missing Races::missing_between_gpus(const Record& earlier, const Actor& actor, const Record& mine,
                                    const Moment& first) const {
  if (is_atomic(earlier.way) && is_atomic(mine.way))
    return {
        "an atomic for the whole system, such as atomicAdd_system(): one of the device orders "
        "nothing "
        "between GPUs"};
  const auto name = [this](Serial block, unsigned number) { return name_of_thread(block, number); };
  if (const auto handshake = handshakes_.missing(first, actor.moment(), name)) return *handshake;
  if (is_word(earlier.way) != is_word(mine.way)) {
    const Way plain = is_word(mine.way) ? earlier.way : mine.way;
    const std::string word = is_load(plain) ? "load_word()" : "store_word()";
    return {"a " + word + " in place of the " + name_of(plain) +
            ", or what orders the two: they are on different GPUs"};
  }
  return {
      "a message between them: a __threadfence_system(), a store_word(), a load_word() until it "
      "has "
      "the epoch, and a __threadfence_system(). They are on different GPUs, and the end of a "
      "kernel "
      "on one orders nothing on the other"};
}

Missing Races::missing_of_copy(const Record& earlier, const Actor& actor, Way way) const {
  const CopyState& copy = copies_[earlier.tick];
  const bool is_own = copy.block == actor.block && copy.thread == actor.thread;
  const std::string whose = name_of_thread(copy.block, copy.thread);
  const Over& over = earlier.way == Way::Load ? copy.read : copy.written;
  switch (copy.kind) {
    case Copy::Kind::OfThread:
      if (is_own) return {"a __pipeline_wait_prior() between the copy and this access"};
      if (over.by == Over::By::Nothing)
        return {"a __pipeline_wait_prior() of " + whose + ", and then a __syncthreads()"};
      return {"a __syncthreads() after the __pipeline_wait_prior() of " + whose};
    case Copy::Kind::BulkLoad:
      if (way == Way::Load) return {between_read_and(copy.kind)};
      return {"a wait for the Barrier on which the copy completes"};
    case Copy::Kind::BulkStore:
      if (earlier.way == Way::Store)
        return {"the end of the kernel: nothing else says that a bulk_store has been written"};
      if (over.by == Over::By::Nothing)
        return {"a wait_bulk_stores_read() of " + whose + " before the source is written to"};
      return {"a __syncthreads() after the wait_bulk_stores_read() of " + whose};
    case Copy::Kind::RemoteStore: {
      // A Barrier's near number is one less than its wide number.
      const bool has_waited =
          over.by == Over::By::Barrier && actor.knows->of_barrier(over.barrier - 1) >= over.tick;
      if (has_waited)
        return {
            "a wait at cluster scope, wait_at_cluster_scope(): the value comes from another "
            "block"};
      if (way == Way::Load) return {between_read_and(copy.kind)};
      return {"a wait_at_cluster_scope() for the Barrier on which the value arrives"};
    }
  }
  return {};
}

Json Races::party(const Party& party) const {
  Json json{{"does", party.copy ? name_of(*party.copy) : name_of(party.way)},
            {"stores", !is_load(party.way)},
            {"place", number_of(party.place)},
            {"kernel", launch_of(party.block).kernel},
            {"block", number_of_block(party.block)},
            {"thread", party.thread}};
  if (had_several_gpus_) json["gpu"] = gpu_of(party.block);
  return json;
}

Json Races::seen() const {
  Json races = Json::array();
  for (const Finding& finding : findings_)
    races.push_back({{"where", finding.where},
                     {"first", party(finding.first)},
                     {"second", party(finding.second)},
                     {"missing", finding.missing.words},
                     {"missing_at", number_of(finding.missing.place)},
                     {"by_convention", finding.by_convention},
                     {"count", finding.count}});
  Json kernels = Json::array();
  for (const Stream& stream : streams_)
    for (const LaunchState& launch : stream.launches) kernels.push_back(launch.kernel);
  return {{"accesses", accesses_},  {"to_shared", shared_accesses_},
          {"copies", copies_seen_}, {"forgotten", forgotten_},
          {"kernels", kernels},     {"races", races}};
}

}  // namespace lnc::race
