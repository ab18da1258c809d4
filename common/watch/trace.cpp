// make trace: what the warps of one block do, event by event.
//
// A lane's accesses are steps of its warp's paths, which merge them into requests (warp_paths.h).
// Everything else that a lane does (an arrival at a barrier, a fence, a copy, the end of a wait) is
// a step too, so that it keeps its position among the accesses, and lanes that do the same together
// form one event. Paths become events when lanes meet, and when no lane of the warp can continue;
// then the waiting lanes are reported. What happens without a thread (a copy arrives) becomes an
// event immediately.
//
// The machine runs a warp until all its lanes wait, then the next: the order of the events is one
// of many that are possible on a GPU.
#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/simt/gpus.h"
#include "common/simt/words.h"
#include "common/watch/observer.h"
#include "common/watch/warp_paths.h"

namespace lnc {
namespace {

using simt::Op;
using simt::Place;
using simt::Scope;
using simt::Space;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostBytes =
    1'250'000;                               // of events as JSON; trace.py adds names, cuts at 1 MB
constexpr std::size_t kMostSteps = 1 << 16;  // of a lane between two meetings

/// The name of an operation at which a thread waits.
const char* name(Op op) {
  switch (op) {
    case Op::BlockBarrier:
      return "block barrier";
    case Op::BarrierWait:
      return "mbarrier";
    case Op::BulkWait:
      return "bulk stores";
    case Op::ClusterWait:
      return "cluster";
    case Op::SyncWarp:
      return "warp sync";
    case Op::Shuffle:
    case Op::ShuffleUp:
    case Op::ShuffleDown:
    case Op::ShuffleXor:
      return "shuffle";
    default:
      return "vote";
  }
}

const char* name(Scope scope) {
  constexpr const char* kNames[] = {"block", "cluster", "device", "system"};
  return kNames[static_cast<int>(scope)];
}

const char* name(const Request& request) {
  if (request.kind == simt::Kind::Load) return "load";
  return request.kind == simt::Kind::Store ? "store" : "atomic";
}

bool is_of_warp(Op op) { return op >= Op::SyncWarp && op <= Op::Match; }

/// The first fields of an event.
Json does(const char* what) {
  Json event = Json::object();
  event["do"] = what;
  return event;
}
template <typename Value>
Json does(const char* what, const char* key, const Value& value) {
  Json event = does(what);
  event[key] = value;
  return event;
}

// ------------------------------------------------------------------------------- where in memory

/// A place in memory: the tensor or the part of shared memory, and the number of the element or
/// byte in it.
struct Spot {
  std::string in;
  std::int64_t at;
};

std::optional<Spot> spot_in(const SharedMemory& memory, const std::byte* p) {
  const std::optional<SharedMemory::Place> place = memory.find(p);
  if (!place) return std::nullopt;
  return Spot{place->part, place->byte};
}

/// Another block of the cluster.
struct Neighbour {
  unsigned rank;
  SharedMemory shared;
};

// -------------------------------------------------------------------------------- what is recorded

/// How many more bytes of events fit in a trace, over all its launches.
struct Room {
  std::size_t left = kMostBytes;
  std::string ended;  ///< why recording has ended; empty while it goes on

  bool is_full() const { return !ended.empty(); }
  bool take(std::size_t bytes) {
    if (bytes > left) ended = "1 MB is full";
    if (!is_full()) left -= bytes;
    return !is_full();
  }
};

struct LaunchTrace {
  const simt::Launch* of;  ///< the machine's, while it runs
  std::optional<int> gpu;  ///< of several
  std::string kernel;
  simt::Launch launch;
  std::uint64_t blocks;
  bool traced = false;  ///< whether the launch has the block
  Json code = Json::array();
  Json barriers = Json::array();
  Json events = Json::array();
  CodeOrder order;
  std::map<Place, std::size_t> code_numbers;
  std::mutex mutex;                   // of `neighbours`: blocks begin on several cores
  std::vector<Neighbour> neighbours;  ///< the other blocks of the cluster

  explicit LaunchTrace(const simt::Launch& l)
      : of(&l),
        gpu(simt::one_of_several_gpus()),
        kernel(simt::kernel_name(l)),
        launch(l),
        blocks(simt::volume(l.grid)) {}

  unsigned cluster() const { return std::max(launch.cluster, 1u); }

  void add(const Neighbour& neighbour) {
    const std::lock_guard lock(mutex);
    neighbours.push_back(neighbour);
  }
  std::optional<Spot> find_at_neighbours(const std::byte* p) {
    const std::lock_guard lock(mutex);
    for (const Neighbour& neighbour : neighbours) {
      if (std::optional<Spot> spot = spot_in(neighbour.shared, p)) {
        spot->in += " of block " + std::to_string(neighbour.rank);
        return spot;
      }
    }
    return std::nullopt;
  }
  std::size_t code_number(Place place) {
    const auto [entry, is_new] = code_numbers.try_emplace(place, code.size());
    if (is_new) code.push_back(Json::object({{"place", number_of(place)}}));
    return entry->second;
  }
};

/// What a lane does other than an access. The lane's path has it as a step of no bytes, whose
/// address is the note's.
struct Note {
  Json says;                        ///< lanes whose notes say the same form one event
  const std::byte* from = nullptr;  ///< of a copy by each lane
  const std::byte* to = nullptr;
  std::optional<std::size_t> since = std::nullopt;  ///< the event that began the wait ending here
};

// ------------------------------------------------------------------------------- the traced block

class BlockTracer : public simt::Witness {
 public:
  BlockTracer(const Names& names, LaunchTrace& trace, Room& room, const simt::BlockInfo& block)
      : names_(names),
        trace_(trace),
        room_(room),
        own_(block),
        threads_(simt::volume(trace.launch.block)),
        warps_(warps_of(trace.launch), WarpPaths(trace.order)) {}
  ~BlockTracer() override {
    for (unsigned warp = 0; warp < warps_.size(); ++warp) tell(warp, kAllLanes);  // after a fault
  }

  void enters(unsigned thread, Place place) override { add(thread, Step::block(place)); }
  void touches(unsigned thread, const simt::Access& access) override {
    if (!access.is_again) add(thread, Step::access(access));
  }

  void shuffles(unsigned, const std::array<unsigned, kLanes>& from) override { reads_ = from; }
  void meets(unsigned warp, unsigned lanes, Op op, Place place) override {
    tell(warp, lanes);
    for_lanes(lanes, [&](unsigned lane) { threads_[warp * kLanes + lane].state = State::Runs; });
    Json event = does(name(op));
    if (op >= Op::Shuffle && op <= Op::ShuffleXor) add_reads(event, op, lanes);
    emit(warp, lanes, place, std::move(event));
  }
  void block_meets(Place place) override {
    for (Thread& thread : threads_) {  // the last to arrive has not waited
      if (thread.state == State::Runs) thread.begin_wait(Op::BlockBarrier, nullptr, place);
    }
    Json since = Json::array();
    for (unsigned warp = 0; warp < warps_.size(); ++warp) {
      tell(warp, kAllLanes);
      since.push_back(threads_[warp * kLanes].waits_since.value_or(0));
    }
    for (Thread& thread : threads_) thread.end_wait();
    Json event = does("barrier", "code", trace_.code_number(place));
    event["since"] = std::move(since);
    emit(std::move(event));
  }
  void waits(unsigned thread, Op op, Place place, const void* object) override {
    threads_[thread].begin_wait(op, object, place);
    tell_if_stuck(thread / kLanes);
  }
  void goes_on(unsigned thread) override {
    if (threads_[thread].state == State::Waits)
      release(threads_[thread].op, threads_[thread].object);
  }
  void exits(unsigned thread) override {
    threads_[thread].state = State::Exited;
    threads_[thread].told = false;
    tell_if_stuck(thread / kLanes);
  }

  void fence(unsigned thread, Scope scope) override {
    note(thread, {does("fence", "for", name(scope))});
  }
  void fence_for_copies(unsigned thread) override {
    note(thread, {does("fence", "for", "bulk copies")});
  }
  void fence_barrier_init(unsigned thread) override {
    note(thread, {does("fence", "for", "mbarriers")});
  }

  void inits(unsigned thread, const void* barrier) override {
    note(thread, {does("init", "mbarrier", barrier_number(barrier))});
  }
  void arrives(unsigned thread, const void* barrier) override {
    note(thread, {does("arrive", "mbarrier", barrier_number(barrier))});
    arriver_ = thread;
  }
  void completes(const void* barrier) override {
    release(Op::BarrierWait, barrier);
    Json says = does("complete", "mbarrier", barrier_number(barrier));
    if (arriver_)
      note(*arriver_, {std::move(says)});
    else
      emit(std::move(says));
  }
  void passes(unsigned thread, const void* barrier, Scope) override {
    Json says = does("go on", "from", name(Op::BarrierWait));
    says["mbarrier"] = barrier_number(barrier);
    go_on(thread, std::move(says));
  }

  void cluster_arrives(unsigned thread, simt::Publishes) override {
    note(thread, {does("arrive at cluster")});
  }
  void cluster_passes(unsigned thread) override {
    if (!threads_[thread].waits_since) release(Op::ClusterWait, nullptr);
    go_on(thread, does("go on", "from", name(Op::ClusterWait)));
  }

  void begins(unsigned thread, std::uint64_t number, const simt::Copy& copy) override {
    if (room_.is_full()) return;
    if (copy.kind == simt::Copy::Kind::OfThread) {
      copies_[number] = {std::nullopt, thread / kLanes};
      Note each{does("async copy", "each", copy.bytes)};
      each.from = copy.bytes == 0 ? nullptr : static_cast<const std::byte*>(copy.from);
      each.to = static_cast<const std::byte*>(copy.to);
      return note(thread, copy.place, std::move(each));
    }
    copies_[number] = {begun_, thread / kLanes};
    note(thread, copy.place, {begun(copy, begun_)});
    ++begun_;
  }
  void arrives(std::uint64_t number) override {
    arriver_ = std::nullopt;
    const auto copy = copies_.find(number);
    if (copy == copies_.end()) return emit(does("copy arrives", "from", "another block"));
    const Begun begun = copy->second;
    copies_.erase(copy);
    if (!begun.number) return;    // a lane's own copy: its wait reports this
    tell(begun.warp, kAllLanes);  // the copy's start must come first
    emit(does("copy arrives", "copy", *begun.number));
  }
  void commits(unsigned thread, simt::Copy::Kind kind) override {
    note(thread, {does("commit", "copies", name_of_copies(kind))});
  }
  void waited(unsigned thread, simt::Copy::Kind kind, std::size_t prior) override {
    Json says = does("go on", "from", name_of_copies(kind));
    says["but"] = prior;
    go_on(thread, std::move(says));
  }

  void waits_for_grid(unsigned thread) override { note(thread, {does("wait for grid")}); }
  void launches_dependents(unsigned thread) override { note(thread, {does("launch dependents")}); }

 private:
  enum class State { Runs, Waits, Exited };
  struct Thread {
    State state = State::Runs;
    Op op = Op::BlockBarrier;  // at which it waits, or last waited
    const void* object = nullptr;
    Place place = nullptr;
    bool told = false;                       // whether this wait, or its exit, was reported
    std::optional<std::size_t> waits_since;  // the event's number
    std::size_t steps = 0;                   // since its path was last reported
    std::size_t untold = 0;                  // of these, all except starts of basic blocks

    void begin_wait(Op at, const void* for_what, Place where) {
      state = State::Waits;
      op = at;
      object = for_what;
      place = where;
      told = is_of_warp(at) || waits_since.has_value();
    }
    void end_wait() {
      state = State::Runs;
      waits_since.reset();
    }
  };
  struct Begun {
    std::optional<std::size_t> number;  // none for a lane's own copy
    unsigned warp;
  };

  // ---------------------------------------------------------------------------- lanes' steps

  void add(unsigned thread, const Step& step) {
    Thread& self = threads_[thread];
    if (room_.is_full() || self.steps == kMostSteps) return;
    ++self.steps;
    if (step.address != nullptr) ++self.untold;
    warps_[thread / kLanes].add(thread % kLanes, step);
  }
  static Step step_of(const Note& note, Place place) {
    Step step = Step::block(place);
    step.address = reinterpret_cast<const std::byte*>(&note);
    return step;
  }
  void note(unsigned thread, Place place, Note note) {
    if (room_.is_full()) return;
    notes_.push_back(std::move(note));
    add(thread, step_of(notes_.back(), place));
  }
  void note(unsigned thread, Note what) { note(thread, simt::here(), std::move(what)); }
  void go_on(unsigned thread, Json says) {
    Note end{std::move(says)};
    end.since = std::exchange(threads_[thread].waits_since, std::nullopt);
    note(thread, std::move(end));
  }

  // ------------------------------------------------------------------------ steps become events

  // Their wait is over: until these threads have continued, their warps are not stuck.
  void release(Op op, const void* object) {
    for (Thread& thread : threads_) {
      if (thread.state == State::Waits && thread.op == op && thread.object == object)
        thread.state = State::Runs;
    }
  }
  void tell_if_stuck(unsigned warp) {
    bool stuck = true;
    for_lanes(lanes_of(trace_.launch, warp), [&](unsigned lane) {
      stuck = stuck && threads_[warp * kLanes + lane].state != State::Runs;
    });
    if (stuck) tell(warp, kAllLanes);
  }
  // Reports what the lanes have done since the last report, and which of them now wait or have
  // exited. Omits a wait that ended while other lanes of the warp ran: the warp did not wait.
  void tell(unsigned warp, unsigned lanes) {
    warps_[warp].meet(lanes, [&](const Request& request) {
      if (request.bytes == 0)
        tell_notes(warp, request);
      else
        tell_request(warp, request);
      for_lanes(request.lanes(), [&](unsigned lane) { count_told(warp * kLanes + lane); });
    });
    lanes &= lanes_of(trace_.launch, warp);
    for_lanes(lanes, [&](unsigned lane) { threads_[warp * kLanes + lane].steps = 0; });
    tell_states(warp, lanes);
    const bool all_told = std::all_of(threads_.begin(), threads_.end(),
                                      [](const Thread& thread) { return thread.steps == 0; });
    if (all_told) notes_.clear();
  }
  // A lane's steps beyond kMostSteps are not recorded, so the trace ends at the last recorded one.
  void count_told(unsigned thread) {
    Thread& self = threads_[thread];
    --self.untold;
    if (self.untold == 0 && self.steps == kMostSteps && !room_.is_full())
      room_.ended = "a lane takes more than " + std::to_string(kMostSteps) + " steps in one go";
  }
  void tell_states(unsigned warp, unsigned lanes) {
    const auto thread_of = [&](unsigned lane) -> Thread& { return threads_[warp * kLanes + lane]; };
    unsigned left = 0;
    for_lanes(lanes, [&](unsigned lane) {
      const Thread& thread = thread_of(lane);
      if (thread.state != State::Runs && !thread.told) left |= 1u << lane;
    });
    while (left != 0 && !room_.is_full()) {
      const Thread& first = thread_of(first_lane(left));
      const bool exits = first.state == State::Exited;
      unsigned alike = 0;
      for_lanes(left, [&](unsigned lane) {
        const Thread& other = thread_of(lane);
        const bool same = other.state == first.state && other.op == first.op &&
                          other.object == first.object && other.place == first.place;
        if (same || (exits && other.state == State::Exited)) alike |= 1u << lane;
      });
      left &= ~alike;
      Json says = exits ? does("exit") : wait_at(first.op, first.object);
      emit(warp, alike, exits ? nullptr : first.place, std::move(says));
      for_lanes(alike, [&](unsigned lane) {
        thread_of(lane).told = true;
        if (!exits) thread_of(lane).waits_since = trace_.events.size() - 1;
      });
    }
  }

  static const Note& note_of(const Request& request, unsigned lane) {
    return *reinterpret_cast<const Note*>(request.at[lane]);
  }
  void tell_notes(unsigned warp, const Request& request) {
    unsigned left = request.lanes();
    while (left != 0 && !room_.is_full()) {
      const Note& note = note_of(request, first_lane(left));
      unsigned alike = 0;
      for_lanes(left, [&](unsigned lane) {
        const Note& other = note_of(request, lane);
        if (other.says == note.says) alike |= 1u << lane;
      });
      left &= ~alike;
      tell_note(warp, alike, request);
    }
  }
  // One event for lanes whose notes are the same.
  void tell_note(unsigned warp, unsigned lanes, const Request& request) {
    const Note& note = note_of(request, first_lane(lanes));
    Json event = note.says;
    if (note.to != nullptr) add_copies(event, request, lanes);
    if (note.since) event["since"] = *note.since;
    emit(warp, lanes, request.place, std::move(event));
  }
  void add_copies(Json& event, const Request& request, unsigned lanes) {
    std::array<const std::byte*, kLanes> from{};
    std::array<const std::byte*, kLanes> to{};
    for_lanes(lanes, [&](unsigned lane) {
      from[lane] = note_of(request, lane).from;
      to[lane] = note_of(request, lane).to;
    });
    if (from[first_lane(lanes)] != nullptr) add_lanes(event, "", from, lanes);
    add_lanes(event, "to_", to, lanes);
  }

  void tell_request(unsigned warp, const Request& request) {
    unsigned left = request.lanes();
    while (left != 0 && !room_.is_full()) {  // once, unless lanes chose among tensors
      const std::string in = spot(request.at[first_lane(left)]).in;
      unsigned together = 0;
      for_lanes(left, [&](unsigned lane) {
        if (spot(request.at[lane]).in == in) together |= 1u << lane;
      });
      left &= ~together;
      Json event = does(name(request));
      add_lanes(event, "", request.at, together);
      event["each"] = request.bytes;
      emit(warp, together, request.place, std::move(event));
    }
  }

  // ---------------------------------------------------------------------------- an event's words

  void emit(unsigned warp, unsigned lanes, Place place, Json says) {
    if (room_.is_full()) return;
    Json event = Json::object();
    event["warp"] = warp;
    if (place != nullptr) event["code"] = trace_.code_number(place);
    event.update(says);
    if (lanes != kAllLanes) event["lanes"] = lanes;
    emit(std::move(event));
  }
  void emit(Json event) {
    if (room_.is_full() || !room_.take(event.dump().size() + 1)) return;
    trace_.events.push_back(std::move(event));
  }

  /// The elements that lanes access: "in" which tensor, "at" which element the first lane, and the
  /// "step" from lane to lane; or a list of all elements, if they are not evenly spaced.
  void add_lanes(Json& event, const std::string& prefix,
                 const std::array<const std::byte*, kLanes>& at, unsigned lanes) {
    const unsigned first = first_lane(lanes);
    const Spot start = spot(at[first]);
    event[prefix + "in"] = start.in;
    std::vector<std::int64_t> all;
    for_lanes(lanes, [&](unsigned lane) { all.push_back(spot(at[lane]).at); });
    const unsigned others = lanes & (lanes - 1);
    const unsigned span = others == 0 ? 1 : first_lane(others) - first;
    const std::int64_t step = others == 0 ? 0 : (all[1] - all[0]) / span;
    bool even = true;
    std::size_t i = 0;
    for_lanes(lanes,
              [&](unsigned lane) { even = even && all[i++] == all[0] + (lane - first) * step; });
    event[prefix + "at"] = even ? Json(all[0]) : Json(all);
    if (even && others != 0) event[prefix + "step"] = step;
  }

  // Which lane each lane of a shuffle reads: one distance for all, one lane for all, or a list.
  void add_reads(Json& event, Op op, unsigned lanes) const {
    const unsigned first = first_lane(lanes);
    std::vector<unsigned> all;
    for_lanes(lanes, [&](unsigned lane) { all.push_back(reads_[lane]); });
    unsigned far = 0;  // the largest: a lane without a source reads itself
    for_lanes(lanes, [&](unsigned lane) {
      const unsigned from = reads_[lane];
      far = std::max(far, op == Op::ShuffleXor ? lane ^ from
                          : from > lane        ? from - lane
                                               : lane - from);
    });
    const bool same =
        std::all_of(all.begin(), all.end(), [&](unsigned from) { return from == reads_[first]; });
    if (op == Op::ShuffleXor)
      event["xor"] = far;
    else if (op == Op::ShuffleUp)
      event["up"] = far;
    else if (op == Op::ShuffleDown)
      event["down"] = far;
    else if (same)
      event["from"] = reads_[first];
    else
      event["from"] = all;
  }

  Json wait_at(Op op, const void* object) {
    Json says = does("wait", "for", name(op));
    if (op == Op::BarrierWait) says["mbarrier"] = barrier_number(object);
    return says;
  }

  Json begun(const simt::Copy& copy, std::size_t number) {
    using CopyKind = simt::Copy::Kind;
    const bool loads = copy.kind == CopyKind::BulkLoad;
    const bool is_remote = copy.kind == CopyKind::RemoteStore;
    Json says{{"do", loads       ? "bulk load"
                     : is_remote ? "remote store"
                                 : "bulk store"},
              {"copy", number}};
    if (!is_remote) {
      const Spot from = spot(static_cast<const std::byte*>(copy.from));
      says["in"] = from.in;
      says["at"] = from.at;
    }
    const Spot to = spot(static_cast<const std::byte*>(copy.to));
    says["to_in"] = to.in;
    says["to_at"] = to.at;
    says["bytes"] = copy.bytes;
    if (copy.barrier != nullptr) says["mbarrier"] = barrier_number(copy.barrier);
    return says;
  }
  static const char* name_of_copies(simt::Copy::Kind kind) {
    return kind == simt::Copy::Kind::OfThread ? "async copies" : "bulk stores";
  }

  std::size_t barrier_number(const void* barrier) {
    const auto [entry, is_new] = barriers_.try_emplace(barrier, trace_.barriers.size());
    if (is_new) {
      const Spot at = spot(static_cast<const std::byte*>(barrier));
      trace_.barriers.push_back({{"in", at.in}, {"at", at.at}});
    }
    return entry->second;
  }

  Spot spot(const std::byte* p) const {
    if (const auto found = spot_in(own_, p)) return *found;
    if (const auto found = trace_.find_at_neighbours(p)) return *found;
    const Names::Numbered element = names_.numbered(p);
    return {element.tensor, element.number};
  }

  const Names& names_;
  LaunchTrace& trace_;
  Room& room_;
  const SharedMemory own_;
  std::vector<Thread> threads_;
  std::vector<WarpPaths> warps_;
  std::deque<Note> notes_;  // a deque: steps keep the addresses of its notes
  std::array<unsigned, kLanes> reads_{};
  std::map<const void*, std::size_t> barriers_;
  std::map<std::uint64_t, Begun> copies_;  // in flight
  std::size_t begun_ = 0;
  std::optional<unsigned> arriver_;  // whose arrival completes an mbarrier; none if a copy's does
};

// ---------------------------------------------------------------------------------- all launches

class Tracer : public Observer {
 public:
  Tracer(const Names& names, std::uint64_t block) : names_(names), block_(block) {}

  void begins(const simt::Launch& launch) override {
    launches_.push_back(std::make_unique<LaunchTrace>(launch));
    memory_.update(names_.as_json());  // now: a program may free its buffers
  }
  std::unique_ptr<simt::Witness> begins_block(const simt::BlockInfo& block) override {
    LaunchTrace& trace = running_launch(launches_, block.launch);
    if (block.number / trace.cluster() != block_ / trace.cluster()) return nullptr;
    if (block.number != block_) {
      trace.add({block.rank, SharedMemory(block)});
      return nullptr;
    }
    trace.traced = true;
    return std::make_unique<BlockTracer>(names_, trace, room_, block);
  }

  Json seen() const override {
    Json launches = Json::array();
    for (const auto& launch : launches_) launches.push_back(as_json(*launch));
    return {{"block", block_},
            {"ended", room_.ended},
            {"memory", memory_},
            {"launches", std::move(launches)}};
  }

 private:
  static Json as_json(const LaunchTrace& trace) {
    const auto shape = [](dim3 d) { return Json{d.x, d.y, d.z}; };
    Json json{{"kernel", trace.kernel}};
    if (trace.gpu) json["gpu"] = *trace.gpu;
    json.update({{"grid", shape(trace.launch.grid)},
                 {"block", shape(trace.launch.block)},
                 {"cluster", trace.launch.cluster},
                 {"shared_bytes", trace.launch.shared_bytes},
                 {"blocks", trace.blocks},
                 {"warps", warps_of(trace.launch)},
                 {"traced", trace.traced},
                 {"mbarriers", trace.barriers},
                 {"code", trace.code},
                 {"events", trace.events}});
    return json;
  }

  const Names& names_;
  const std::uint64_t block_;
  Room room_;
  Json memory_ = Json::object();
  std::vector<std::unique_ptr<LaunchTrace>> launches_;
};

}  // namespace

std::unique_ptr<Observer> trace_block(const Names& names, std::uint64_t block) {
  return std::make_unique<Tracer>(names, block);
}

}  // namespace lnc
