// What an event is, in a sentence. lncPlayer.say(run, state) tells of the event that the state stands at.
'use strict';

(() => {
  const player = window.lncPlayer;
  const OF_ROWS = ['mean', 'rstd', 'rowscale']; // tensors with an element a row

  function plural(n, word) {
    const many = /s$/.test(word) ? `${word}es` : `${word}s`;
    return `${n.toLocaleString('en').replace(/,/g, '\u00a0')} ${n === 1 ? word : many}`;
  }

  function percent(part, whole) {
    const share = (100 * part) / whole;
    return `${Number.isInteger(share) || share >= 20 ? Math.round(share) : share.toFixed(1)} %`;
  }

  /** '3', '3 and 4' or '3 to 7' */
  function span(first, last) {
    return first === last ? `${first}` : `${first} ${last === first + 1 ? 'and' : 'to'} ${last}`;
  }

  function some(word, first, last) {
    return `${word}${first === last ? '' : 's'} ${span(first, last)}`;
  }

  /** The units that stretches of one tensor cover, in rising order, each once. */
  function unitsOf(stretches) {
    const units = new Set();
    for (const { first, count } of stretches) {
      for (let unit = first; unit < first + count; unit++) {
        units.add(unit);
      }
    }
    return [...units].sort((a, b) => a - b);
  }

  /** What a unit of a tensor is called: the workspace is told in bytes. */
  function unitName(run, name) {
    const tensor = run.trace.memory[name];
    return tensor.space !== 'device' ? 'word' : tensor.element_bytes === 1 ? 'byte' : 'element';
  }

  /** Where stretches of one tensor lie: 'columns 0 to 31 of row 0', 'words 0 to 7'. */
  function where(run, stretches) {
    const { name } = stretches[0];
    const { shape, space } = run.trace.memory[name];
    const units = unitsOf(stretches);
    const [first, last] = [units[0], units[units.length - 1]];
    const whole = units.length === last - first + 1;
    if (shape.length === 1) {
      const isColumn = space === 'device' && shape[0] === run.trace.problem.cols;
      const isRow = space === 'device' && OF_ROWS.includes(name);
      const word = isRow ? 'row' : isColumn ? 'column' : unitName(run, name);
      return whole ? some(word, first, last) : `${plural(units.length, word)} from ${first} to ${last}`;
    }
    const cols = shape[1];
    const [top, bottom] = [Math.floor(first / cols), Math.floor(last / cols)];
    if (top === bottom) {
      const rest = whole ? some('column', first % cols, last % cols) : plural(units.length, 'column');
      return units.length === cols ? `all of row ${top}` : `${rest} of row ${top}`;
    }
    if (units.length === cols * (bottom - top + 1)) {
      return some('row', top, bottom);
    }
    const columns = [...new Set(units.map((unit) => unit % cols))].sort((a, b) => a - b);
    if (units.length === columns.length * (bottom - top + 1)) {
      const right = columns[columns.length - 1];
      const neighbours = columns.length === right - columns[0] + 1;
      const told = neighbours ? some('column', columns[0], right) : plural(columns.length, 'column');
      return `${told} of ${some('row', top, bottom)}`;
    }
    return `${plural(units.length, 'element')} of ${some('row', top, bottom)}`;
  }

  /** 'lane 0', '8 lanes', '32 lanes' */
  function who(event) {
    const lanes = player.lanesIn(player.maskOf(event));
    return lanes.length === 1 ? `lane ${lanes[0]}` : `${lanes.length} lanes`;
  }

  function verb(event, one, many) {
    return player.count(player.maskOf(event)) === 1 ? one : many;
  }

  /** What a filling of a slot brings: 'row 4 of x and dy' */
  function holding(run, filling) {
    const parts = new Map();
    for (const part of filling || []) {
      parts.set(part.name, [...(parts.get(part.name) || []), part]);
    }
    const told = [...parts].map(([name, stretches]) => [name, where(run, stretches).replace('all of ', '')]);
    const same = told.every(([, place]) => place === told[0][1]);
    return same && told.length ? `${told[0][1]} of ${told.map(([name]) => name).join(' and ')}`
      : told.map(([name, place]) => `${place} of ${name}`).join(' and ');
  }

  /** The filling of a slot that came last. */
  function lastOf(slot) {
    return slot.fillings[slot.fillings.length - 1];
  }

  function slotName(run, index) {
    const slot = run.slots[index];
    const whose = slot.warp === null || run.launch.warps === 1 ? '' : ` of warp ${slot.warp}`;
    return `slot ${slot.number}${whose}`;
  }

  // --- Requests ---

  const DOES = { load: ['loads', 'load'], store: ['stores', 'store'], atomic: ['adds to', 'add to'] };

  function request(run, state, event) {
    const { reads, writes } = player.touches(run, event);
    const stretches = reads.length ? reads : writes;
    const begin = `Warp ${event.warp}: ${who(event)} ${verb(event, ...DOES[event.do])} ${event.in}, `
      + where(run, stretches);
    return player.isOnDevice(run, event.in) ? onDevice(run, event, begin) : inShared(run, event, begin, reads);
  }

  function onDevice(run, event, begin) {
    const sectors = player.sectorsOf(run, event);
    const used = sectors.reduce((sum, sector) => sum + player.count(sector.used), 0);
    const lanes = player.count(player.maskOf(event));
    const most = player.mostAtOneAddress(event);
    if (event.do === 'atomic') {
      return most > 1 ? `${begin}: ${most === lanes ? 'all' : most} of them at one address, so they take turns.`
        : `${begin}: ${lanes > 1 ? 'each at its own address, in ' : ''}${plural(sectors.length, 'sector')}.`;
    }
    if (most === lanes && lanes > 1) {
      return `${begin}: all of them the same ${event.each} bytes, 1 sector.`;
    }
    const moved = sectors.length * player.SECTOR;
    const share = used === moved ? 'all' : `${percent(used, moved)} of ${sectors.length === 1 ? 'its' : 'their'}`;
    return `${begin}: ${plural(sectors.length, 'sector')}, ${share} bytes used.`;
  }

  function inShared(run, event, begin, reads) {
    const passes = player.passesOf(run, event);
    const more = passes.taken > passes.needed ? `${passes.taken - passes.needed} more than without bank conflicts`
      : 'no bank conflict';
    const slot = reads.length ? player.slotOf(run, reads[0]) : -1;
    const from = slot >= 0 ? ` (${slotName(run, slot)})` : '';
    return `${begin}${from}: ${plural(passes.taken, 'pass')} through shared memory, ${more}.`;
  }

  // --- Shuffles ---

  function shuffle(run, state, event) {
    const begin = `Warp ${event.warp}:`;
    const { sums } = state.warps[event.warp];
    if (!sums) {
      const from = Array.isArray(event.from) ? 'another lane each' : `lane ${event.from}`;
      return `${begin} ${who(event)} read a register of ${from}.`;
    }
    const how = event.xor ? `lanes that are ${event.xor} apart swap` : `each lane takes from the lane ${sums.far} `
      + (event.down ? 'further on' : 'before');
    if (sums.value > 1) {
      return `${begin} ${how} once more, for value number ${sums.value} of each lane.`;
    }
    const held = sums.held.map(player.count);
    const of = sums.of ? ` (a lane's value: what it read from ${sums.of})` : '';
    return event.xor ? `${begin} ${how}: each sum now has the values of ${held[0]} lanes${of}.`
      : `${begin} ${how}: lane 0 now has the values of ${held[0]} lanes${of}.`;
  }

  // --- Waits ---

  function wait(run, state, event) {
    const begin = `Warp ${event.warp} waits`;
    if (event.for === 'block barrier' && !player.isAtBarrier(state.warps[event.warp])) {
      const here = player.count(state.warps[event.warp].waits);
      return `${here} lanes of warp ${event.warp} wait at the barrier for the others of their warp.`;
    }
    if (event.for === 'block barrier') {
      const there = state.warps.filter((warp) => player.isAtBarrier(warp)).length;
      const are = there === 1 ? 'is' : 'are';
      return `${begin} at the barrier: ${there} of ${plural(state.warps.length, 'warp')} ${are} there.`;
    }
    if (event.for === 'mbarrier') {
      const slot = run.slots.findIndex((each) => each.mbarrier === event.mbarrier);
      if (slot < 0) {
        return `${begin} at mbarrier ${event.mbarrier}.`;
      }
      return `${begin} for ${slotName(run, slot)} (${holding(run, lastOf(state.slots[slot]))}), which is not full yet.`;
    }
    return `${begin} ${event.for === 'cluster' ? 'for the other blocks of the cluster' : `for its ${event.for}`}.`;
  }

  function goOn(run, state, event) {
    const begin = `Warp ${event.warp} goes on${event.since === undefined ? ' without a wait' : ''}`;
    if (event.from === 'mbarrier') {
      const slot = run.slots.findIndex((each) => each.mbarrier === event.mbarrier);
      return slot >= 0 ? `${begin}: ${slotName(run, slot)} is full (${holding(run, lastOf(state.slots[slot]))}).`
        : `${begin}: mbarrier ${event.mbarrier} is complete.`;
    }
    if (event.from === 'cluster') {
      return `${begin}: all blocks of the cluster have arrived.`;
    }
    const but = event.but ? ` but the last ${plural(event.but, 'group')}` : '';
    return `Warp ${event.warp} has waited for its ${event.from}: all${but} are there.`;
  }

  // --- Copies ---

  function copied(run, event) {
    const { reads } = player.touches(run, event);
    return reads.length ? `${where(run, reads).replace('all of ', '')} of ${event.in}` : 'a register';
  }

  function bulkLoad(run, state, event) {
    const slot = run.slots.findIndex((each) => each.key === `mbarrier ${event.mbarrier}`);
    return `Warp ${event.warp}: ${who(event)} asks the copy engine for ${copied(run, event)}, `
      + `${plural(event.bytes, 'byte')}, to ${slotName(run, slot)}, and goes on at once.`;
  }

  function asyncCopy(run, state, event) {
    const to = player.touches(run, event).writes;
    return `Warp ${event.warp}: ${who(event)} ${verb(event, 'asks', 'ask')} for ${copied(run, event)}, `
      + `${event.each} bytes a lane, to ${slotName(run, player.slotOf(run, to[0]))}, and go on at once.`;
  }

  const COPYING = ['bulk store', 'remote store'];

  function arrives(run, state, event) {
    if (event.copy === undefined) {
      return 'What another block has sent arrives.';
    }
    const index = state.slotsOfCopies[event.copy];
    if (index === undefined) {
      const begun = run.events.find((each) => COPYING.includes(each.do) && each.copy === event.copy);
      return begun ? `${plural(begun.bytes, 'byte')} have arrived in ${begun.to_in}.` : 'A copy has arrived.';
    }
    const slot = state.slots[index];
    const what = holding(run, lastOf(slot));
    return slot.onTheWay ? `The copy engine has brought a part of what ${slotName(run, index)} waits for (${what}).`
      : `The copy engine has filled ${slotName(run, index)}: ${what}.`;
  }

  function complete(run, state, event) {
    const slot = run.slots.findIndex((each) => each.mbarrier === event.mbarrier);
    const what = slot >= 0 ? `The mbarrier of ${slotName(run, slot)}` : `Mbarrier ${event.mbarrier}`;
    return `${what} is complete: who waits at it may go on.`;
  }

  // --- The rest ---

  const FENCES = {
    mbarriers: 'makes its new mbarriers known to the copy engine',
    'bulk copies': 'makes its stores known to the copy engine',
    device: 'sets a fence: whoever sees what it stores from here on can see what it stored before',
  };
  /** What a warp, or who of its lanes, does: a sentence without its beginning. */
  const OTHERS = {
    'warp sync': () => 'the lanes wait for each other, __syncwarp',
    vote: () => 'the lanes vote',
    fence: (run, event) => `${who(event)} ${FENCES[event.for] || 'sets a fence'}`,
    init: (run, event) => `${who(event)} sets up mbarrier ${event.mbarrier}`,
    arrive: (run, event) => `${who(event)} ${verb(event, 'arrives', 'arrive')} at mbarrier ${event.mbarrier}`,
    'arrive at cluster': () => 'its lanes arrive at the barrier of the cluster, and go on',
    'bulk store': (run, event) => `${who(event)} asks the copy engine to write ${copied(run, event)}, `
      + `${plural(event.bytes, 'byte')}, to ${event.to_in}`,
    'remote store': (run, event) => `${who(event)} sends ${plural(event.bytes, 'byte')} to ${event.to_in}`,
    commit: () => 'each lane closes a group of its copies',
    'wait for grid': () => 'its lanes wait until the kernel before has ended',
    'launch dependents': () => 'the next kernel may begin to start',
  };

  function barrier(run) {
    const { warps } = run.launch;
    return warps === 1 ? 'The one warp of the block is at the barrier: it goes on.'
      : `${warps === 2 ? 'Both' : `All ${warps}`} warps are at the barrier: it opens.`;
  }

  function exit(run, state, event) {
    const { ended, exist } = state.warps[event.warp];
    return ended === exist ? `Warp ${event.warp} has ended.`
      : `Warp ${event.warp}: ${who(event)} ${verb(event, 'has', 'have')} ended.`;
  }

  const SAYS = {
    load: request,
    store: request,
    atomic: request,
    shuffle,
    wait,
    'go on': goOn,
    'bulk load': bulkLoad,
    'async copy': asyncCopy,
    'copy arrives': arrives,
    complete,
    barrier,
    exit,
  };

  /** The event that the state stands at, as a sentence. */
  function say(run, state) {
    const event = run.events[state.at];
    const says = SAYS[event.do];
    if (says) {
      return says(run, state, event);
    }
    const other = OTHERS[event.do];
    return `Warp ${event.warp}: ${other ? other(run, event) : event.do}.`;
  }

  Object.assign(player, { holding, percent, plural, say, slotName, unitName, where });
})();
