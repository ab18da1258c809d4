// The replay of a trace: what is so in a block after each of its events. Nothing is drawn here.
//
//   const run = lncPlayer.read(trace, 0);        the first launch of a trace of common/watch/trace.py
//   let state = lncPlayer.stateAt(run, 12);      after event 12
//   state = lncPlayer.stateAt(run, 11, state);   a step back: replayed, and the same as it was on the way there
//
// A mask has a bit for each lane of a warp. An element of a tensor is counted from its first; shared memory is counted
// in words of 4 bytes.
'use strict';

window.lncPlayer = window.lncPlayer || {};

(() => {
  const LANES = 32;
  const SECTOR = 32; // bytes
  const WORD = 4; // bytes: what a bank of shared memory gives in a pass
  const BANKS = 32;
  const SHORT = 256; // units of a row, where a part is shown of what is no table
  const ALL = 0xffffffff;
  const READ = 1; // what has been done to an element
  const WRITTEN = 2;
  const REQUESTS = ['load', 'store', 'atomic'];
  const COPIES = ['bulk load', 'bulk store', 'remote store'];

  /** [0, 1, …]: the lanes of a mask. */
  function lanesIn(mask) {
    return Array.from({ length: LANES }, (_, lane) => lane).filter((lane) => (mask >>> lane) & 1);
  }

  function maskOf(event) {
    return (event.lanes === undefined ? ALL : event.lanes) >>> 0;
  }

  function count(mask) {
    return lanesIn(mask).length;
  }

  /** [where each lane begins, …], in the order of the lanes; prefix 'to_': where its copy goes. */
  function placesOf(event, prefix = '') {
    const at = event[`${prefix}at`];
    if (Array.isArray(at)) {
      return at;
    }
    const lanes = lanesIn(maskOf(event));
    const step = event[`${prefix}step`] || 0;
    return lanes.map((lane) => at + step * (lane - lanes[0]));
  }

  // --- Where in memory ---

  /** Bytes of what the state counts in: an element of a tensor, a word of shared memory. */
  function unitOf(tensor) {
    return tensor.space === 'device' ? tensor.element_bytes : WORD;
  }

  /** {name, first, count} in units of the tensor, from a place in the trace's own counting and a number of bytes. */
  function stretch(run, name, at, bytes) {
    const tensor = run.trace.memory[name];
    const unit = unitOf(tensor);
    const begin = at * tensor.element_bytes;
    const first = Math.floor(begin / unit);
    return { name, first, count: Math.max(1, Math.ceil((begin + bytes) / unit) - first) };
  }

  /** The stretches that an event reads and those that it writes: {reads: [stretch, …], writes: [stretch, …]}. */
  function touches(run, event) {
    const from = () => placesOf(event).map((at) => stretch(run, event.in, at, event.each));
    if (REQUESTS.includes(event.do)) {
      return { reads: event.do === 'store' ? [] : from(), writes: event.do === 'load' ? [] : from() };
    }
    if (event.do === 'async copy') {
      const to = placesOf(event, 'to_').map((at) => stretch(run, event.to_in, at, event.each));
      return { reads: event.in ? from() : [], writes: to };
    }
    if (COPIES.includes(event.do)) {
      const reads = event.in ? [stretch(run, event.in, event.at, event.bytes)] : [];
      return { reads, writes: [stretch(run, event.to_in, event.to_at, event.bytes)] };
    }
    return { reads: [], writes: [] };
  }

  function overlap(a, b) {
    return a.name === b.name && a.first < b.first + b.count && b.first < a.first + a.count;
  }

  function isOnDevice(run, name) {
    return run.trace.memory[name].space === 'device';
  }

  // --- What a request costs ---

  /** The sectors that a request names, rising: [{number, used, lanes}], used a mask of the sector's 32 bytes. */
  function sectorsOf(run, event) {
    const tensor = run.trace.memory[event.in];
    const found = new Map();
    const lanes = lanesIn(maskOf(event));
    placesOf(event).forEach((at, i) => {
      const begin = tensor.starts_at + at * tensor.element_bytes;
      for (let byte = begin; byte < begin + event.each; byte++) {
        const number = Math.floor(byte / SECTOR);
        const sector = found.get(number) || { number, used: 0, lanes: [] };
        sector.used = (sector.used | (1 << (byte % SECTOR))) >>> 0;
        if (!sector.lanes.includes(lanes[i])) {
          sector.lanes.push(lanes[i]);
        }
        found.set(number, sector);
      }
    });
    return [...found.values()].sort((a, b) => a.number - b.number);
  }

  /** How many lanes of a request name the address that most of them name. */
  function mostAtOneAddress(event) {
    const at = new Map();
    for (const place of placesOf(event)) {
      at.set(place, (at.get(place) || 0) + 1);
    }
    return Math.max(...at.values());
  }

  /** The words of each bank that some lanes want, lanes given as [[lane, byte], …]: 32 sets. */
  function wordsOfBanks(places, bytes) {
    const banks = Array.from({ length: BANKS }, () => new Set());
    for (const [, byte] of places) {
      for (let word = Math.floor(byte / WORD); word <= Math.floor((byte + bytes - 1) / WORD); word++) {
        banks[word % BANKS].add(word);
      }
    }
    return banks;
  }

  /** Whether all lanes of a part want what their partner wants, whose number differs in one bit. */
  function inPairs(places, bit) {
    const at = new Map(places);
    return places.every(([lane, byte]) => !at.has(lane ^ bit) || at.get(lane ^ bit) === byte);
  }

  /**
   * The passes of a request through shared memory, {taken, needed}: as it is, and without bank conflicts. Accesses of
   * 8 bytes go by half warps, of 16 by quarters; two neighbouring parts go as one where their lanes want the same in
   * pairs.
   */
  function passesOf(run, event) {
    const lanes = lanesIn(maskOf(event));
    const size = run.trace.memory[event.in].element_bytes;
    const places = placesOf(event).map((at, i) => [lanes[i], at * size]);
    const part = event.each <= 4 ? LANES : event.each <= 8 ? LANES / 2 : LANES / 4;
    const two = Math.min(2 * part, LANES);
    const passes = { taken: 0, needed: 0 };
    for (let first = 0; first < LANES; first += two) {
      const both = places.filter(([lane]) => lane >= first && lane < first + two);
      const width = inPairs(both, 1) || inPairs(both, 2) ? two : part;
      for (let begin = first; begin < first + two; begin += width) {
        const banks = wordsOfBanks(both.filter(([lane]) => lane >= begin && lane < begin + width), event.each);
        const sizes = banks.map((words) => words.size);
        passes.taken += Math.max(...sizes);
        passes.needed += Math.ceil(sizes.reduce((sum, size_) => sum + size_, 0) / BANKS);
      }
    }
    return passes;
  }

  // --- What is known of a launch before it is replayed ---

  /**
   * Of each tensor that the block touches at all: {name: {cols, rows, indexOf}}, the numbers of the rows that it
   * touches and where each stands among them. What is no table is one row, or many short ones where the block touches
   * few of them.
   */
  function touchedParts(run) {
    const found = {};
    for (const event of run.events) {
      const { reads, writes } = touches(run, event);
      for (const { name, first, count: n } of [...reads, ...writes]) {
        found[name] = found[name] || new Set();
        for (let unit = first; unit < first + n; unit++) {
          found[name].add(unit);
        }
      }
    }
    return Object.fromEntries(Object.entries(found).map(([name, units]) => {
      const cols = colsOf(run, name, units.size);
      const rows = [...new Set([...units].map((unit) => Math.floor(unit / cols)))].sort((a, b) => a - b);
      return [name, { cols, rows, indexOf: new Map(rows.map((row, i) => [row, i])) }];
    }));
  }

  /** How many units there are of a tensor. */
  function sizeOf(run, name) {
    const tensor = run.trace.memory[name];
    const elements = tensor.shape.reduce((product, n) => product * n, 1);
    return Math.ceil((elements * tensor.element_bytes) / unitOf(tensor));
  }

  /** The units of a row, of a tensor of which so many are touched. */
  function colsOf(run, name, touched) {
    const { shape } = run.trace.memory[name];
    const all = sizeOf(run, name);
    return shape.length === 2 ? shape[1] : all > SHORT && touched < all / 2 ? SHORT : all;
  }

  /** Sets a bit of the units of a stretch, in an array of the touched rows. */
  function setBits(run, units, { name, first, count: n }, bit) {
    const { cols, indexOf } = run.parts[name];
    for (let unit = first; unit < first + n; unit++) {
      units[indexOf.get(Math.floor(unit / cols)) * cols + (unit % cols)] |= bit;
    }
  }

  /** An array with a place for each unit of the rows of a tensor that are touched. */
  function unitsOf(run, name) {
    const { cols, rows } = run.parts[name];
    return new Uint8Array(cols * rows.length);
  }

  /**
   * The slots of shared memory that copies fill, in the order of their places: [{warp, mbarrier, parts, fillings}]. A
   * bulk copy's slot is known by the mbarrier that counts its bytes; a lane's own copies by their warp and the place of
   * a group. `fillings`: how often it is filled.
   */
  function slotsOf(run) {
    const slots = new Map();
    const groups = {}; // the slot of a warp's open group
    for (const event of run.events) {
      if (event.do === 'commit') {
        delete groups[event.warp];
      }
      if (event.do !== 'bulk load' && event.do !== 'async copy') {
        continue;
      }
      const [first] = placesOf(event, 'to_');
      const isBulk = event.do === 'bulk load';
      groups[event.warp] = groups[event.warp] ?? `${event.warp}:${event.to_in}:${first}`;
      const key = isBulk ? `mbarrier ${event.mbarrier}` : groups[event.warp];
      const warp = isBulk ? null : event.warp;
      const slot = slots.get(key) || { key, warp, mbarrier: event.mbarrier, parts: [], fillings: 0 };
      const { writes } = touches(run, event);
      const isFirst = !slot.parts.length || overlap(slot.parts[0], writes[0]);
      slot.fillings += isFirst ? 1 : 0;
      for (const part of writes) {
        if (!slot.parts.some((other) => other.name === part.name && other.first === part.first)) {
          slot.parts.push(part);
        }
      }
      slots.set(key, slot);
    }
    const begin = (slot) => [slot.warp ?? -1, slot.parts[0].first];
    const inOrder = [...slots.values()].sort((a, b) => begin(a)[0] - begin(b)[0] || begin(a)[1] - begin(b)[1]);
    const numbers = {};
    for (const slot of inOrder) {
      numbers[slot.warp] = (numbers[slot.warp] ?? -1) + 1;
      slot.number = numbers[slot.warp];
    }
    return inOrder;
  }

  /** The number of the slot in run.slots that an event's copy fills, or that a stretch lies in; -1: none. */
  function slotOf(run, part) {
    return run.slots.findIndex((slot) => slot.parts.some((own) => overlap(own, part)));
  }

  /**
   * What each barrier of the block is there for: [{at, written, read, filled, inits}], at the event's number.
   * `written`: words of shared memory that one warp writes before it and another reads behind it, [{name, word, done}].
   * `read`: who reads, before it, words that another warp writes anew behind it; `filled`: that a bulk copy fills anew;
   * both [{name, warp, done}]. done is the event after which nobody need wait for it. `inits`: whether mbarriers are
   * set up before it that are waited at behind it.
   */
  function reasonsOf(run) {
    const reasons = [];
    const phase = () => ({ words: new Map(), inits: false, mbarriers: false });
    let before = phase();
    let now = phase();
    let barrier = null;
    const close = () => {
      if (barrier !== null) {
        reasons.push({ at: barrier, ...between(before.words, now.words), inits: before.inits && now.mbarriers });
      }
    };
    run.events.forEach((event, i) => {
      if (event.do === 'barrier') {
        close();
        [barrier, before, now] = [i, now, phase()];
      } else if (event.do === 'bulk load' || (REQUESTS.includes(event.do) && !isOnDevice(run, event.in))) {
        noteWords(now.words, run, event, i);
      }
      now.inits = now.inits || event.do === 'init';
      now.mbarriers = now.mbarriers || (['wait', 'go on'].includes(event.do) && event.mbarrier !== undefined);
    });
    close();
    return reasons;
  }

  /** Notes who reads and writes a word, and when last. */
  function noteWords(words, run, event, i) {
    const { reads, writes } = touches(run, event);
    const isCopy = event.do === 'bulk load';
    for (const [kind, parts] of [['readers', isCopy ? [] : reads], [isCopy ? 'fillers' : 'writers', writes]]) {
      for (const { name, first, count: n } of parts) {
        for (let word = first; word < first + n; word++) {
          const key = `${name}:${word}`;
          const entry = words.get(key) || { name, word, readers: new Map(), writers: new Map(), fillers: new Map() };
          entry[kind].set(event.warp, i);
          words.set(key, entry);
        }
      }
    }
  }

  /** The words for whose sake a barrier stands between what was noted before and behind it. */
  function between(before, behind) {
    const written = [];
    const [read, filled] = [new Map(), new Map()];
    const others = (warps, by) => [...warps.keys()].some((warp) => [...by.keys()].some((other) => other !== warp));
    const note = (readers, { name, readers: by }) => {
      for (const [warp, done] of by) {
        const key = `${name}:${warp}`;
        readers.set(key, { name, warp, done: Math.max(done, readers.get(key)?.done ?? 0) });
      }
    };
    for (const [key, then] of behind) {
      const first = before.get(key);
      if (first && others(first.writers, then.readers)) {
        written.push({ name: then.name, word: then.word, done: Math.max(...first.writers.values()) });
      }
      if (first && others(first.readers, then.writers)) {
        note(read, first);
      }
      if (first && then.fillers.size) {
        note(filled, first);
      }
    }
    const byWarp = (readers) => [...readers.values()].sort((a, b) => a.warp - b.warp);
    return { written: written.sort((a, b) => a.word - b.word), read: byWarp(read), filled: byWarp(filled) };
  }

  /** The names of shared memory into which single lanes put what a warp or a block has added up. */
  function partialsOf(run) {
    const byOne = new Set();
    const byMany = new Set();
    for (const event of run.events) {
      if (event.do === 'remote store') {
        byOne.add(event.to_in);
      } else if (event.do === 'store') {
        (count(maskOf(event)) === 1 ? byOne : byMany).add(event.in);
      }
    }
    return [...byOne].filter((name) => !byMany.has(name));
  }

  /** A launch of a trace, with what the replay asks again and again. */
  function read(trace, number) {
    const launch = trace.launches[number];
    const run = { trace, launch, events: launch.events };
    run.parts = touchedParts(run);
    run.slots = slotsOf(run);
    run.reasons = reasonsOf(run);
    run.partials = partialsOf(run);
    return run;
  }

  // --- The replay ---

  /** The state before the first event. */
  function start(run) {
    const threads = run.launch.block.reduce((product, n) => product * n, 1);
    const warp = (_, i) => ({
      exist: threads >= (i + 1) * LANES ? ALL : (2 ** (threads - i * LANES) - 1) >>> 0,
      waits: 0, // masks
      ended: 0,
      waitsFor: '', // and at which mbarrier
      mbarrier: null,
      released: false, // what it waits for has come, and it has not gone on yet
      began: false,
      sums: null, // of a butterfly on its way
      lastRead: '', // the partial sums in shared memory that it read last, if it read them last
      groups: [], // slots of its own copies, a list a group; the last is open
    });
    const touched = {};
    for (const name of Object.keys(run.parts)) {
      touched[name] = unitsOf(run, name);
    }
    return {
      at: -1,
      code: null, // the place in the code that was named last
      warp: null, // the one that acts, or acted last
      warps: Array.from({ length: run.launch.warps }, warp),
      touched,
      slots: run.slots.map(() => ({ state: 'empty', fillings: [], onTheWay: 0 })), // a filling: the stretches that come
      slotInTurn: null,
      slotsOfCopies: {},
      totals: { requests: 0, sectors: 0, used: 0, passes: 0, conflicts: 0, copied: 0 },
    };
  }

  /** Goes on to the next event. */
  function step(run, state) {
    state.at += 1;
    const event = run.events[state.at];
    state.code = event.code ?? state.code;
    settleSlots(state);
    if (event.warp !== undefined) {
      state.warp = event.warp;
      state.warps[event.warp].began = true;
    }
    const act = ACTS[event.do];
    if (act) {
      act(run, state, event, state.warps[event.warp]);
    }
    if (event.do !== 'shuffle' && event.warp !== undefined) {
      state.warps[event.warp].sums = null;
    }
    mark(run, state, event);
  }

  /** A slot that was being read has been read once the next event comes. */
  function settleSlots(state) {
    for (const slot of state.slots) {
      if (slot.state === 'being read') {
        slot.state = 'read';
      }
    }
  }

  /** Notes what is read and written from now on. */
  function mark(run, state, event) {
    const { reads, writes } = touches(run, event);
    for (const [bit, parts] of [[READ, reads], [WRITTEN, writes]]) {
      for (const each of parts) {
        setBits(run, state.touched[each.name], each, bit);
      }
    }
  }

  function request(run, state, event, warp) {
    if (isOnDevice(run, event.in)) {
      const sectors = sectorsOf(run, event);
      state.totals.requests += 1;
      state.totals.sectors += sectors.length;
      state.totals.used += sectors.reduce((sum, sector) => sum + count(sector.used), 0);
      warp.lastRead = '';
      return;
    }
    const passes = passesOf(run, event);
    state.totals.passes += passes.taken;
    state.totals.conflicts += passes.taken - passes.needed;
    const { reads, writes } = touches(run, event);
    const slot = slotOf(run, [...reads, ...writes][0]);
    if (slot >= 0 && writes.length) {
      state.slots[slot].state = 'in other use';
    } else if (slot >= 0 && ['here', 'read'].includes(state.slots[slot].state)) {
      state.slots[slot].state = 'being read';
      state.slotInTurn = slot;
    } else {
      warp.lastRead = run.partials.includes(event.in) ? event.in : '';
    }
  }

  /** Which lanes' values each lane holds: those of its partner, too. */
  function shuffle(run, state, event, warp) {
    const far = event.xor ?? event.down ?? event.up;
    if (far === undefined) {
      warp.sums = null;
      return;
    }
    const before = warp.sums;
    if (before && before.far === far) {
      before.value += 1; // the same step for another value
      return;
    }
    const goesOn = before && far < before.far;
    const old = goesOn ? before.held : Array.from({ length: LANES }, (_, lane) => (1 << lane) >>> 0);
    const partner = (lane) => (event.xor ? lane ^ far : event.down ? lane + far : lane - far);
    const held = old.map((mask, lane) => {
      const takesPart = (maskOf(event) >>> lane) & 1 && partner(lane) >= 0 && partner(lane) < LANES;
      return takesPart ? (mask | old[partner(lane)]) >>> 0 : mask;
    });
    warp.sums = { far, held, value: 1, of: goesOn ? before.of : warp.lastRead };
    warp.lastRead = '';
  }

  function wait(run, state, event, warp) {
    warp.waits = (warp.waits | maskOf(event)) >>> 0;
    warp.waitsFor = event.for;
    warp.mbarrier = event.mbarrier ?? null;
    warp.released = false;
    const slot = run.slots.findIndex((each) => event.mbarrier !== undefined && each.mbarrier === event.mbarrier);
    state.slotInTurn = slot >= 0 ? slot : state.slotInTurn;
  }

  function endWait(warp, mask) {
    warp.waits = (warp.waits & ~mask) >>> 0;
    if (!warp.waits) {
      [warp.waitsFor, warp.mbarrier, warp.released] = ['', null, false];
    }
  }

  function goOn(run, state, event, warp) {
    endWait(warp, maskOf(event));
    const slot = run.slots.findIndex((each) => event.mbarrier !== undefined && each.mbarrier === event.mbarrier);
    state.slotInTurn = slot >= 0 ? slot : state.slotInTurn;
    if (event.from === 'async copies') {
      for (const index of warp.groups.splice(0, Math.max(0, warp.groups.length - 1 - event.but)).flat()) {
        state.slots[index].state = 'here';
      }
    }
  }

  function barrier(run, state) {
    for (const warp of state.warps) {
      endWait(warp, ALL);
    }
  }

  /** A slot is asked for: what it holds is the new rows from now on. */
  function ask(run, state, event, index) {
    const slot = state.slots[index];
    if (slot.state !== 'on its way') {
      Object.assign(slot, { state: 'on its way', fillings: [...slot.fillings, []], onTheWay: 0 });
    }
    slot.fillings[slot.fillings.length - 1].push(...touches(run, event).reads);
    slot.onTheWay += 1;
  }

  function bulkLoad(run, state, event) {
    const index = run.slots.findIndex((slot) => slot.key === `mbarrier ${event.mbarrier}`);
    state.totals.copied += event.bytes;
    state.slotsOfCopies[event.copy] = index;
    ask(run, state, event, index);
  }

  function asyncCopy(run, state, event, warp) {
    const index = slotOf(run, touches(run, event).writes[0]);
    state.totals.copied += event.each * count(maskOf(event));
    warp.groups.length = Math.max(1, warp.groups.length);
    const open = warp.groups[warp.groups.length - 1] || [];
    if (!open.includes(index)) {
      open.push(index);
    }
    warp.groups[warp.groups.length - 1] = open;
    ask(run, state, event, index);
  }

  function commit(run, state, event, warp) {
    if (event.copies === 'async copies') {
      warp.groups = [...warp.groups.slice(0, -1), warp.groups[warp.groups.length - 1] || [], []];
    }
  }

  function arrives(run, state, event) {
    const slot = state.slots[state.slotsOfCopies[event.copy]];
    if (!slot) {
      return;
    }
    slot.onTheWay -= 1;
    if (slot.onTheWay === 0) {
      slot.state = 'here';
    }
  }

  function complete(run, state, event) {
    for (const warp of state.warps) {
      warp.released = warp.released || (warp.waits !== 0 && warp.mbarrier === event.mbarrier);
    }
  }

  function exit(run, state, event, warp) {
    warp.ended = (warp.ended | maskOf(event)) >>> 0;
  }

  const ACTS = {
    load: request,
    store: request,
    atomic: request,
    shuffle,
    wait,
    'go on': goOn,
    barrier,
    'bulk load': bulkLoad,
    'async copy': asyncCopy,
    commit,
    'copy arrives': arrives,
    complete,
    exit,
  };

  /** The state after an event, from an earlier state where one is given; going back begins anew. */
  function stateAt(run, index, from) {
    const state = from && from.at <= index ? from : start(run);
    while (state.at < index) {
      step(run, state);
    }
    return state;
  }

  /** The barrier that is met next, or at this event: an entry of run.reasons; undefined behind the last. */
  function nextBarrier(run, index) {
    return run.reasons.find((reason) => reason.at >= index);
  }

  /** Whether a warp waits at the block's barrier with all of its lanes. */
  function isAtBarrier(warp) {
    const lanes = ((warp.waits | warp.ended) & warp.exist) >>> 0;
    return warp.waitsFor === 'block barrier' && lanes === warp.exist;
  }

  /** How a warp stands: 'ready', 'runs', 'waits', 'may go on', 'ended'. */
  function standing(run, state, number) {
    const warp = state.warps[number];
    const event = run.events[state.at];
    if ((warp.ended & warp.exist) >>> 0 === warp.exist) {
      return 'ended';
    }
    if (warp.waits) {
      return warp.released ? 'may go on' : 'waits';
    }
    return event.warp === number ? 'runs' : 'ready';
  }

  Object.assign(window.lncPlayer, {
    LANES, SECTOR, WORD, BANKS, READ, WRITTEN, REQUESTS, COPIES,
    count, isAtBarrier, isOnDevice, lanesIn, maskOf, mostAtOneAddress, nextBarrier, passesOf, placesOf, read, sectorsOf, setBits,
    sizeOf, slotOf, standing, stateAt, touches, unitsOf, wordsOfBanks,
  });
})();
