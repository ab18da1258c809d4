// What the player shows of a state, each part as HTML: lncPlayer.parts(run, state, width) in pixels.
// Colour is never the only sign: what is written fills the lower half, what waits is half as high.
'use strict';

(() => {
  const player = window.lncPlayer;
  const { LANES, SECTOR, BANKS } = player;
  const LANE_TOP = 16; // pixels: over the lanes stand their numbers
  const LANE_HEIGHT = 14;
  const MEMORY_TOP = 104; // sectors and banks
  const SECTOR_HEIGHT = 22;
  const MOST_WORDS = 48; // that are shown one by one

  function escape(text) {
    return String(text).replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' }[sign]));
  }

  function svg(width, height, label, content, classes = '') {
    return `<svg class="${classes}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" `
      + `aria-label="${escape(label)}">${content}</svg>`;
  }

  function rect(x, y, width, height, classes) {
    return `<rect class="${classes}" x="${x.toFixed(2)}" y="${y}" width="${width.toFixed(2)}" height="${height}"/>`;
  }

  function text(x, y, what, anchor = 'middle', classes = '') {
    return `<text class="${classes}" x="${x.toFixed(1)}" y="${y}" text-anchor="${anchor}">${escape(what)}</text>`;
  }

  function part(title, content, classes) {
    return `<p class="player-title">${escape(title)}</p><div class="${classes}">${content}</div>`;
  }

  // --- The lanes of the warp that acts ---

  /** 32 cells; those of the mask are filled. */
  function lanes(mask, width, top, classes) {
    const cell = width / LANES;
    let out = '';
    for (let lane = 0; lane < LANES; lane++) {
      const takesPart = (mask >>> lane) & 1;
      out += rect(lane * cell + 1, top, cell - 2, LANE_HEIGHT, `player-lane ${takesPart ? classes : ''}`);
    }
    return out;
  }

  function laneNumbers(width, y) {
    const cell = width / LANES;
    const shown = width < 420 ? [0, 16, 31] : [0, 4, 8, 12, 16, 20, 24, 28, 31];
    return shown.map((lane) => text((lane + 0.5) * cell, y, lane === 0 ? (width < 420 ? '0' : 'lane 0') : lane,
      lane === 0 ? 'start' : 'middle').replace(/x="[\d.]+"/, (x) => (lane === 0 ? 'x="0"' : x))).join('');
  }

  // --- A request of device memory ---

  /** x where the sectors begin, and how wide each is: as wide as a lane, under the lanes that ask for them. */
  function sectorPlaces(sectors, width) {
    const each = width / Math.max(LANES, sectors.length);
    const asking = sectors.flatMap((sector) => sector.lanes);
    const middle = ((asking.reduce((sum, lane) => sum + lane, 0) / asking.length + 0.5) * width) / LANES;
    const whole = each * sectors.length;
    return { each, left: Math.min(Math.max(0, middle - whole / 2), width - whole) };
  }

  /** The rectangles of a sector's used bytes, from a mask of 32 bytes. */
  function usedBytes(used, x, width, kind) {
    let out = '';
    for (let byte = 0; byte < SECTOR;) {
      let end = byte;
      while (end < SECTOR && (used >>> end) & 1) {
        end += 1;
      }
      if (end > byte) {
        const wide = ((end - byte) / SECTOR) * width;
        out += rect(x + (byte / SECTOR) * width, MEMORY_TOP, wide, SECTOR_HEIGHT, `player-used ${kind}`);
      }
      byte = Math.max(end, byte + 1);
    }
    return out;
  }

  function drawSectors(run, event, width) {
    const kind = event.do === 'async copy' ? 'load' : event.do;
    const sectors = player.sectorsOf(run, event);
    const { each, left } = sectorPlaces(sectors, width);
    const index = new Map(sectors.map((sector, i) => [sector.number, i]));
    const tensor = run.trace.memory[event.in];
    const mask = player.maskOf(event);
    const asking = player.lanesIn(mask);
    let out = laneNumbers(width, 10) + lanes(mask, width, LANE_TOP, `player-takes-part ${kind}`);
    player.placesOf(event).forEach((at, i) => {
      const middle = tensor.starts_at + at * tensor.element_bytes + event.each / 2;
      const x = left + (index.get(Math.floor((middle - 0.5) / SECTOR)) + (middle % SECTOR || SECTOR) / SECTOR) * each;
      out += `<path class="player-line-to ${kind}" d="M${(((asking[i] + 0.5) * width) / LANES).toFixed(1)} `
        + `${LANE_TOP + LANE_HEIGHT}L${x.toFixed(1)} ${MEMORY_TOP}"/>`;
    });
    sectors.forEach((sector, i) => {
      const joined = i > 0 && sectors[i - 1].number === sector.number - 1;
      const gap = joined ? 0 : 1.5;
      const box = (classes) => rect(left + i * each + gap, MEMORY_TOP, each - gap, SECTOR_HEIGHT, classes);
      out += box('player-sector') + box('player-waste').replace('/>', ' fill="url(#player-waste)"/>');
      out += usedBytes(sector.used, left + i * each + gap, each - gap, kind) + box('player-edge');
    });
    const name = `${player.plural(sectors.length, 'sector')} of ${event.in}`;
    out += text(Math.min(left, width - 90), MEMORY_TOP + SECTOR_HEIGHT + 14, name, 'start');
    return svg(width, MEMORY_TOP + SECTOR_HEIGHT + 20, 'lanes above, the sectors that they ask for below', out)
      + drawUse(sectors, event);
  }

  /** A bar: what is asked for, and of it what is used. A whole bar is 32 sectors. */
  function drawUse(sectors, event) {
    const moved = sectors.length * SECTOR;
    const used = sectors.reduce((sum, sector) => sum + player.count(sector.used), 0);
    const whole = Math.max(moved, LANES * SECTOR);
    const most = player.mostAtOneAddress(event);
    const turns = event.do === 'atomic' && most > 1 ? ` <b>${most} lanes add at one address: ${most} turns.</b>` : '';
    return `<div class="player-use"><span class="player-moved" style="width:${(100 * moved) / whole}%">`
      + `<span class="player-of-use" style="width:${(100 * used) / moved}%"></span></span></div>`
      + `<p class="player-caption"><b>${player.plural(sectors.length, 'sector')}</b> × 32 bytes = ${moved} bytes `
      + `asked for, ${used} used: <b>${player.percent(used, moved)}</b>.${turns}</p>`;
  }

  // --- A request of shared memory ---

  function drawBanks(run, event, width) {
    const mask = player.maskOf(event);
    const asking = player.lanesIn(mask);
    const size = run.trace.memory[event.in].element_bytes;
    const places = player.placesOf(event).map((at, i) => [asking[i], at * size]);
    const banks = player.wordsOfBanks(places, event.each).map((words) => [...words].sort((a, b) => a - b));
    const passes = player.passesOf(run, event);
    const cell = width / BANKS;
    const high = Math.max(...banks.map((words) => words.length));
    const row = Math.min(12, 60 / high);
    let out = laneNumbers(width, 10) + lanes(mask, width, LANE_TOP, `player-takes-part ${event.do}`);
    for (const [lane, byte] of places) {
      const word = Math.floor(byte / player.WORD);
      const y = MEMORY_TOP + banks[word % BANKS].indexOf(word) * row;
      out += `<path class="player-line-to ${event.do}" d="M${((lane + 0.5) * cell).toFixed(1)} `
        + `${LANE_TOP + LANE_HEIGHT}L${((word % BANKS + 0.5) * cell).toFixed(1)} ${y.toFixed(1)}"/>`;
    }
    banks.forEach((words, bank) => {
      out += rect(bank * cell + 1, MEMORY_TOP, cell - 2, row, 'player-sector');
      words.forEach((word, i) => {
        out += rect(bank * cell + 1, MEMORY_TOP + i * row, cell - 2, row - 1, `player-used ${event.do}`);
      });
    });
    const bottom = MEMORY_TOP + high * row;
    out += text(0, bottom + 14, `32 banks of shared memory: ${event.in}`, 'start');
    const lost = passes.taken - passes.needed;
    const halves = event.each > 8 ? 'quarter' : 'half';
    const parts = event.each > 4 ? ` Accesses of ${event.each} bytes go by ${halves} warps.` : '';
    return svg(width, bottom + 18, 'lanes above, the banks of shared memory below', out)
      + `<p class="player-caption"><b>${player.plural(passes.taken, 'pass')}</b>, `
      + `${lost ? `${lost} of them for bank conflicts` : 'no bank conflict'}.${parts}</p>`;
  }

  // --- A shuffle ---

  function drawShuffle(run, state, event, width) {
    const { sums } = state.warps[event.warp];
    const cell = width / LANES;
    const top = 76;
    const mask = player.maskOf(event);
    const held = sums ? sums.held.map(player.count) : null;
    const shown = (lane) => (held && cell >= 15 ? held[lane] : '');
    let out = '';
    for (const lane of player.lanesIn(mask)) {
      const from = partnerOf(event, lane);
      if (from === null || from < 0 || from >= LANES || from === lane || (event.xor && from < lane)) {
        continue;
      }
      const [x1, x2] = [(from + 0.5) * cell, (lane + 0.5) * cell];
      const high = Math.min(58, 6 + Math.abs(from - lane) * 3.4);
      const middle = `${((x1 + x2) / 2).toFixed(1)} ${(top - 2 * high).toFixed(1)}`;
      out += `<path class="player-arc" d="M${x1.toFixed(1)} ${top}Q${middle} ${x2.toFixed(1)} ${top}"`
        + `${event.xor ? '' : ' marker-end="url(#player-arrow)"'}/>`;
    }
    for (let lane = 0; lane < LANES; lane++) {
      const share = held ? Math.log2(held[lane]) / 5 : 0.3;
      out += rect(lane * cell + 1, top, cell - 2, 20, 'player-lane');
      out += rect(lane * cell + 1, top, cell - 2, 20, 'player-sum')
        .replace('/>', ` style="opacity:${(0.12 + 0.5 * share).toFixed(2)}"/>`);
      out += shown(lane) !== '' ? text((lane + 0.5) * cell, top + 14, shown(lane), 'middle', 'player-inside') : '';
    }
    out += laneNumbers(width, top + 34);
    return svg(width, top + 40, 'the 32 lanes, and who takes from whom', out) + drawDoublings(held, sums, event);
  }

  /** The lane that a lane takes from, or null. */
  function partnerOf(event, lane) {
    if (event.xor !== undefined) {
      return lane ^ event.xor;
    }
    if (event.down !== undefined) {
      return lane + event.down;
    }
    if (event.up !== undefined) {
      return lane - event.up;
    }
    return Array.isArray(event.from) ? event.from[player.lanesIn(player.maskOf(event)).indexOf(lane)] : event.from;
  }

  /** How many lanes' values lane 0 holds, among the doublings from 1 to 32. */
  function drawDoublings(held, sums, event) {
    if (!held) {
      return '';
    }
    const steps = [1, 2, 4, 8, 16, 32].map((n) => (n === held[0] ? `<b aria-current="step">${n}</b>` : n));
    const whose = event.xor ? 'Values in each sum' : 'Values in the sum of lane 0';
    const which = sums.value > 1 ? ` (value ${sums.value})` : '';
    return `<p class="player-caption player-doublings">${whose}: ${steps.join(' → ')}${which}</p>`;
  }

  // --- A copy that the engine makes ---

  function drawCopy(run, state, event, width) {
    const { reads, writes } = player.touches(run, event);
    const from = reads.length ? [event.in, player.where(run, reads)] : ['a register', ''];
    const index = player.slotOf(run, writes[0]);
    const to = index >= 0 ? [player.slotName(run, index), event.to_in] : [event.to_in, player.where(run, writes)];
    const box = Math.min(220, width * 0.36);
    const ends = [0, width - box];
    let out = laneNumbers(width, 10) + lanes(player.maskOf(event), width, LANE_TOP, 'player-takes-part load');
    [from, to].forEach(([name, place], i) => {
      out += rect(ends[i] + 1, 56, box - 2, 48, i === 0 ? 'player-source-of-copy' : 'player-sector');
      out += text(ends[i] + box / 2, 76, name, 'middle', 'player-strong') + text(ends[i] + box / 2, 94, place);
    });
    out += `<path class="player-arc" d="M${box + 6} 80H${width - box - 8}" marker-end="url(#player-arrow)"/>`;
    out += text(width / 2, 72, player.plural(event.bytes, 'byte'));
    out += text(width / 2, 98, event.do);
    return svg(width, 116, `${event.do} from ${from.join(', ')} to ${to.join(', ')}`, out)
      + '<p class="player-caption">One lane asks; no register waits for the bytes.</p>';
  }

  // --- What happens now ---

  function now(run, state, width) {
    const event = run.events[state.at];
    if (player.REQUESTS.includes(event.do) || (event.do === 'async copy' && event.in)) {
      return player.isOnDevice(run, event.in) ? drawSectors(run, event, width) : drawBanks(run, event, width);
    }
    if (event.do === 'shuffle') {
      return drawShuffle(run, state, event, width);
    }
    if (player.COPIES.includes(event.do)) {
      return drawCopy(run, state, event, width);
    }
    if (event.warp === undefined) {
      const who = event.do === 'barrier' ? 'All threads of the block.' : 'No thread does this: it happens by itself.';
      return `<p class="player-caption">${who}</p>`;
    }
    const classes = { wait: 'player-waits', exit: 'player-ended' }[event.do] || 'player-takes-part';
    return svg(width, 40, `lanes of warp ${event.warp}`,
      laneNumbers(width, 10) + lanes(player.maskOf(event), width, LANE_TOP, classes));
  }

  function nowTitle(run, state) {
    const event = run.events[state.at];
    return event.warp === undefined ? 'Now' : `Now: warp ${event.warp}, its 32 lanes`;
  }

  // --- The warps of the block ---

  /** A path of cells, a unit wide and `height` high, for the bits of a mask. */
  function cells(mask, height) {
    return player.lanesIn(mask).map((lane) => `M${lane * 10 + 1} ${10 - height}h8v${height}h-8z`).join('');
  }

  function standsAt(warp, how) {
    if (how !== 'waits') {
      return how;
    }
    const at = {
      'block barrier': 'at the barrier',
      mbarrier: `at mbarrier ${warp.mbarrier}`,
      cluster: 'for the cluster',
    };
    return `waits ${at[warp.waitsFor] || `for ${warp.waitsFor}`}`;
  }

  function warps(run, state) {
    const event = run.events[state.at];
    const rows = state.warps.map((warp, i) => {
      const how = player.standing(run, state, i);
      const active = event.warp === i && event.do !== 'exit' && event.do !== 'wait' ? player.maskOf(event) : 0;
      const kinds = [['player-cell', warp.exist, 10], ['player-cell-on', active, 10],
        ['player-cell-waits', warp.waits, 5], ['player-cell-ended', warp.ended, 2]];
      const paths = kinds.map(([kind, mask, high]) => `<path class="${kind}" d="${cells(mask, high)}"/>`);
      return `<li class="player-warp ${how.replace(/ /g, '-')}"><span class="player-warp-name">${i}</span>`
        + `<svg viewBox="0 0 320 10" preserveAspectRatio="none" aria-hidden="true">${paths.join('')}</svg>`
        + `<span class="player-stands">${escape(standsAt(warp, how))}</span></li>`;
    });
    const many = state.warps.length > 8 ? ' player-many' : '';
    const all = run.launch.warps_in_all || state.warps.length;
    const some = all > state.warps.length ? `${state.warps.length} of the ${all} warps` : '';
    return part(`${some || `The ${player.plural(all, 'warp')}`} of the block`, `<ol class="player-warp-list${many}">${rows.join('')}</ol>`, '');
  }

  // --- Barriers of the block ---

  /** A box for each word or warp that others wait for, or only how many are done, where they are many. */
  function boxes(list, at, did) {
    const isWords = list[0].warp === undefined;
    const done = list.filter((each) => each.done <= at).length;
    const tells = `${done} of ${player.plural(list.length, isWords ? 'word' : 'warp')} ${did}`;
    if (list.length > MOST_WORDS) {
      return `<span class="player-words">${tells}</span>`;
    }
    const shown = list.map((each) => {
      const title = isWords ? `${each.name}, word ${each.word}` : `warp ${each.warp}`;
      const [classes, sign] = each.done <= at ? ['player-word done', '✓'] : ['player-word', '–'];
      return `<span class="${classes}" title="${escape(title)}">${sign}</span>`;
    });
    return `<span class="player-words">${shown.join('')} ${tells}</span>`;
  }

  function names(list) {
    return `<b>${escape([...new Set(list.map((each) => each.name))].join(', '))}</b>`;
  }

  /** Why the block meets here. */
  function reason(entry, at) {
    const left = (list) => list.filter((each) => each.done > at).length;
    const { written, read, filled } = entry;
    let out = '';
    if (written.length) {
      const missing = left(written) === 1 ? 'one' : left(written);
      const who = missing ? `Who went on now would miss ${missing} of them.` : 'Nothing is missing.';
      out += `<p>Behind it warps read ${names(written)}, which other warps write before it: `
        + `${boxes(written, at, 'written')}. ${who}</p>`;
    }
    if (read.length) {
      const who = left(read) ? ' Who went on now would write over what is still needed.' : '';
      out += `<p>Behind it warps write ${names(read)} anew, which others read before it: `
        + `${boxes(read, at, 'have read')}.${who}</p>`;
    }
    if (filled.length) {
      out += `<p>Behind it a copy fills a slot of ${names(filled)} anew, which warps read before it: `
        + `${boxes(filled, at, 'have read')}.</p>`;
    }
    return out + (entry.inits ? '<p>Behind it warps wait at mbarriers that one thread sets up before it.</p>' : '');
  }

  function barriers(run, state) {
    if (!run.reasons.length || run.launch.warps === 1) {
      return '';
    }
    const entry = player.nextBarrier(run, state.at);
    if (!entry) {
      return part('The barrier', '<p>No barrier is ahead.</p>', 'player-barrier');
    }
    const opens = entry.at === state.at;
    const chips = state.warps.map((warp, i) => {
      const there = opens || player.isAtBarrier(warp);
      return `<li class="${there ? 'there' : ''}">${i}<span>${there ? '✓' : '…'}</span></li>`;
    });
    const there = opens ? state.warps.length : state.warps.filter((warp) => player.isAtBarrier(warp)).length;
    const tells = opens ? 'all are there: it opens' : `${there} of ${state.warps.length} warps are there`;
    const which = run.reasons.indexOf(entry) + 1;
    return part(`Barrier ${which} of ${run.reasons.length}: ${tells}`,
      `<ol class="player-chips">${chips.join('')}</ol>${reason(entry, state.at)}`, 'player-barrier');
  }

  // --- The ring ---

  const SIGNS = { 'on its way': '◔', here: '●', 'being read': '▶', read: '✓', 'in other use': '–' };
  const FILLINGS = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth', 'seventh', 'eighth'];

  /** What a filling of a slot is now: the slot's last one has its state, those before were read. */
  function filling(run, at, round) {
    const last = round === at.fillings.length - 1;
    const how = last ? at.state : 'read';
    return `<td class="${how.replace(/ /g, '-')}${last ? '' : ' past'}">${SIGNS[how]} `
      + `${escape(player.holding(run, at.fillings[round]))}: ${how}</td>`;
  }

  /** The slots, one below the other, and beside each what has come to it, filling by filling. */
  function ring(run, state) {
    const own = run.slots.some((slot) => slot.warp !== null);
    const warp = state.warp ?? 0;
    const shown = run.slots.map((slot, i) => [slot, state.slots[i], i]).filter(([slot]) => !own || slot.warp === warp);
    if (!shown.length) {
      return '';
    }
    const rounds = Math.max(...run.slots.map((slot) => slot.fillings));
    const heads = Array.from({ length: rounds }, (_, i) => FILLINGS[i] || `${i + 1}th`);
    const rows = shown.map(([slot, at, i]) => {
      const done = at.fillings.map((_, round) => filling(run, at, round)).join('');
      const [classes, sign] = i === state.slotInTurn ? ['in-turn', '▸ '] : ['', ''];
      return `<tr class="${classes}"><th scope="row">${sign}slot ${slot.number}</th>${done}`
        + `${'<td></td>'.repeat(rounds - at.fillings.length)}</tr>`;
    });
    const whose = own && run.launch.warps > 1 ? ` of warp ${warp}` : '';
    const again = rounds > 1 ? '<p class="player-again">Behind the last slot comes slot 0 again.</p>' : '';
    const head = heads.map((nth) => `<th scope="col">${nth} filling</th>`).join('');
    return part(`The ring${whose}: slots of shared memory that copies fill`,
      `<table><thead><tr><td></td>${head}</tr></thead><tbody>${rows.join('')}</tbody></table>${again}`, 'player-slots');
  }

  // --- Memory ---

  /** A path of the units that pass a test, row by row; the upper `left` of each is left free. */
  function runs(units, cols, test, left = 0) {
    let path = '';
    for (let i = 0; i < units.length; i++) {
      const begin = i;
      const end = (Math.floor(i / cols) + 1) * cols;
      while (i < end && test(units[i])) {
        i += 1;
      }
      if (i > begin) {
        path += `M${begin % cols} ${Math.floor(begin / cols) + left}h${i - begin}v${1 - left}h${begin - i}z`;
        i -= 1;
      }
    }
    return path;
  }

  /** Bits of what the event reads and writes of a tensor. */
  function touchedNow(run, event, name) {
    const units = player.unitsOf(run, name);
    const { reads, writes } = player.touches(run, event);
    for (const [bit, stretches] of [[player.READ, reads], [player.WRITTEN, writes]]) {
      stretches.filter((each) => each.name === name).forEach((each) => player.setBits(run, units, each, bit));
    }
    return units;
  }

  /** '4 × 128', '8 words', and which rows of a table are shown if not all */
  function shapeOf(run, name) {
    const { shape } = run.trace.memory[name];
    const { cols, rows } = run.parts[name];
    if (shape.length === 1) {
      const all = player.sizeOf(run, name);
      return player.plural(all, player.unitName(run, name)) + (cols < all ? ', a part' : '');
    }
    const last = rows[rows.length - 1];
    const neighbours = last - rows[0] === rows.length - 1;
    const some = `rows ${rows.slice(0, 4).join(', ')}${rows.length > 4 ? ', …' : ''}`;
    const which = rows.length === 1 ? `row ${last}` : neighbours ? `rows ${rows[0]} to ${last}` : some;
    return shape.join(' × ') + (rows.length < shape[0] ? `: ${which}` : '');
  }

  function strip(run, state, name, width) {
    const { cols, rows } = run.parts[name];
    const units = state.touched[name];
    const present = touchedNow(run, run.events[state.at], name);
    const high = rows.length * Math.min(10, Math.max(2, Math.floor(72 / rows.length)));
    const paths = `<rect class="player-tensor" width="${cols}" height="${rows.length}"/>`
      + `<path class="player-read" d="${runs(units, cols, (bits) => bits & player.READ)}"/>`
      + `<path class="player-written" d="${runs(units, cols, (bits) => bits & player.WRITTEN, 0.5)}"/>`
      + `<path class="player-present" d="${runs(present, cols, (bits) => bits)}"/>`;
    const isNow = present.some((bits) => bits);
    return `<li class="${isNow ? 'now' : ''}"><span><b>${escape(name)}</b> ${shapeOf(run, name)}</span>`
      + `<svg viewBox="0 0 ${cols} ${rows.length}" width="${Math.min(width, cols * 12) - 2}" `
      + `height="${Math.max(high, 10)}" preserveAspectRatio="none" aria-hidden="true">${paths}</svg></li>`;
  }

  function memory(run, state, width) {
    const room = width < 420 ? width : width - 140; // beside the names
    const tensors = Object.keys(run.trace.memory).filter((name) => run.parts[name]);
    const list = (spaces) => tensors.filter((name) => spaces.includes(run.trace.memory[name].space))
      .map((name) => strip(run, state, name, room)).join('');
    const shared = list(['shared', 'remote']);
    return part('What this block has read and written so far', `<ul class="player-strips">${list(['device'])}</ul>`
      + (shared ? `<p class="player-title">Shared memory</p><ul class="player-strips">${shared}</ul>` : '')
      + '<p class="player-key"><span class="player-key-read">read</span> '
      + '<span class="player-key-written">written</span> <span class="player-key-now">now</span></p>', '');
  }

  // --- Sums ---

  function totals(state) {
    const { requests, sectors, used, passes, conflicts, copied } = state.totals;
    const tells = [];
    if (requests) {
      tells.push(`${player.plural(requests, 'request')} of device memory for <b>${player.plural(sectors, 'sector')}</b>, `
        + `<b>${player.percent(used, sectors * SECTOR)}</b> of their bytes used; caches may have some of them`);
    }
    if (passes) {
      tells.push(`${player.plural(passes, 'pass')} through shared memory, ${conflicts} for bank conflicts`);
    }
    if (copied) {
      tells.push(`${player.plural(copied, 'byte')} asked for by copies`);
    }
    return tells.length ? `So far: ${tells.join(' · ')}.` : 'So far: nothing of memory.';
  }

  /** The parts of the stage, {name: HTML}; an empty one is not shown. */
  function parts(run, state, width) {
    return {
      now: part(nowTitle(run, state), now(run, state, width), 'player-picture'),
      totals: totals(state),
      barriers: barriers(run, state),
      ring: ring(run, state),
      warps: warps(run, state),
      memory: memory(run, state, width),
    };
  }

  /** What the pictures refer to, once a page. */
  const DEFINITIONS = '<svg class="player-definitions" width="0" height="0" aria-hidden="true"><defs>'
    + '<marker id="player-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    + '<path class="player-arrow" d="M0 0L8 4L0 8z"/></marker>'
    + '<pattern id="player-waste" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    + '<path class="player-stripe" d="M0 0V4"/></pattern></defs></svg>';

  Object.assign(player, { parts, DEFINITIONS });
})();
