// Figures to move: sliders that redraw a small SVG and a sentence. Nothing is measured here: what is
// measured comes from chapter zero's constants (window.lncMachine, which explore.py writes).
'use strict';

(() => {
  const machine = window.lncMachine;
  const SMS = 132, LANES = 32, SECTOR = 32;
  const WIDTH = 640;

  const whole = (x) => Math.round(x).toLocaleString('en').replaceAll(',', '\u202f');
  const digits = (x) => x >= 1000 ? whole(x) : String(Number(x.toPrecision(3)));
  const percent = (x) => `${Math.round(100 * x)} %`;
  const few = (n, word) => `${whole(n)} ${word}${n === 1 ? '' : 's'}`;
  const rect = (x, y, width, height, kind) =>
    `<rect x="${x.toFixed(1)}" y="${y}" width="${Math.max(width, 0).toFixed(1)}" height="${height}" class="${kind}"/>`;
  const text = (x, y, words, anchor = 'start') => `<text x="${x}" y="${y}" text-anchor="${anchor}">${words}</text>`;

  /** The value at x on a line through points, by the logarithms of both. */
  function between(points, x) {
    const last = points.length - 1;
    if (x <= points[0][0]) return points[0][1] * x / points[0][0];
    for (let i = 0; i < last; ++i) {
      const [[x0, y0], [x1, y1]] = [points[i], points[i + 1]];
      if (x <= x1) return y0 * (y1 / y0) ** (Math.log(x / x0) / Math.log(x1 / x0));
    }
    return points[last][1];
  }

  /** Bars one below the other, each of parts: [[label, [[value, kind], …]], …]. */
  function bars(rows, most) {
    const scale = (WIDTH - 150) / most;
    return rows.map(([label, parts], i) => {
      let x = 140;
      const drawn = parts.map(([value, kind]) => rect((x += value * scale) - value * scale, 10 + 34 * i, value * scale, 24, kind));
      return text(132, 27 + 34 * i, label, 'end') + drawn.join('');
    }).join('');
  }

  // Each figure: its sliders, [name, label, from, to, value, shown], and what it draws: [height, SVG, sentence].
  // A slider whose `shown` is a list has its entries as values.
  const powers = (from, to) => Array.from({length: to - from + 1}, (_, i) => 2 ** (from + i));
  const figures = {
    sectors: {
      sliders: [['stride', 'elements from lane to lane', 1, 32, 1], ['offset', 'first element', 0, 16, 0],
        ['bytes', 'bytes of an element', [2, 4, 8, 16], 4]],
      draw({stride, offset, bytes}) {
        const used = new Map();
        for (let lane = 0; lane < LANES; ++lane) {
          for (let b = 0; b < bytes; ++b) {
            const sector = Math.floor(((offset + lane * stride) * bytes + b) / SECTOR);
            used.set(sector, (used.get(sector) ?? 0) + 1);
          }
        }
        const size = WIDTH / LANES;
        const drawn = [...used.values()].map((count, i) => {
          const [x, y] = [i % LANES * size, 26 + Math.floor(i / LANES) * (size + 6)];
          const full = (size - 3) * count / SECTOR;
          return rect(x, y, size - 3, size - 3, 'empty') + rect(x, y + size - 3 - full, size - 3, full, 'full');
        });
        const moved = used.size * SECTOR;
        return [26 + Math.ceil(used.size / LANES) * (size + 6), text(0, 16, 'the sectors of one request, filled by what is used') +
          drawn.join(''), `${LANES} lanes ask for ${LANES * bytes} bytes; ${few(used.size, 'sector')} move ${whole(moved)}. ` +
          `${percent(LANES * bytes / moved)} of them are used.`];
      },
    },
    flight: {
      sliders: [['warps', 'warps per multiprocessor', 1, 64, 8], ['loads', 'loads in flight per thread', 1, 16, 1],
        ['bytes', 'bytes of a load', [2, 4, 8, 16], 4]],
      draw({warps, loads, bytes}) {
        const kb = warps * LANES * loads * bytes / 1024;
        const most = 128;
        const reached = Math.min(between(machine.flight, Math.min(kb, 64)), machine.bandwidth);
        const x = (v) => 40 + (WIDTH - 60) * Math.log2(Math.max(v, 0.0625) * 16) / Math.log2(most * 16);
        const y = (v) => 150 - 120 * v / machine.bandwidth;
        const ticks = [0.0625, 0.25, 1, 4, 16, 64].map((v) => text(x(v), 170, v < 1 ? `1/${1 / v}` : v, 'middle')).join('');
        const curve = Array.from({length: 60}, (_, i) => 0.0625 * (most * 16) ** (i / 59))
          .map((v) => `${x(v).toFixed(1)},${y(between(machine.flight, Math.min(v, 64))).toFixed(1)}`).join(' ');
        const dot = `<circle cx="${x(Math.min(kb, most)).toFixed(1)}" cy="${y(reached).toFixed(1)}" r="7" class="full"/>`;
        return [178, `<polyline points="${curve}" class="line"/>` + ticks + dot + text(40, 20, 'TB/s, by KB in flight per multiprocessor'),
          `${warps} warps · ${LANES} lanes · ${few(loads, 'load')} · ${bytes} bytes = ${digits(kb)} KB in flight: ` +
          `about ${digits(reached)} TB/s, ${percent(reached / machine.bandwidth)} of what memory can do.`];
      },
    },
    model: {
      sliders: [['rows', 'rows', powers(5, 17), 1024], ['cols', 'columns', powers(7, 14), 2048],
        ['bytes', 'bytes of an element', [2, 4], 4], ['tensors', 'tensors read or written', 1, 4, 2],
        ['waits', 'waits that nothing hides', 0, 16, 1]],
      draw({rows, cols, bytes, tensors, waits}) {
        const mb = rows * cols * bytes * tensors / 1e6;
        const parts = [machine.launch, mb / machine.bandwidth, waits * machine.wait];
        const total = parts.reduce((a, b) => a + b);
        const copied = machine.launch + (mb < machine.copies[0][0] ? mb / machine.copies[0][0] : 1) *
          (between(machine.copies, Math.max(mb, machine.copies[0][0])) - machine.launch);
        return [84, bars([['the model', [[parts[0], 'launch'], [parts[1], 'full'], [parts[2], 'wait']]],
          ['a copy, measured', [[copied, 'other']]]], Math.max(total, copied)),
        `${digits(parts[0])} µs (launch) + ${digits(parts[1])} µs (${digits(mb)} MB) + ${digits(parts[2])} µs (${few(waits, 'wait')}) = ` +
          `${digits(total)} µs. A copy of as many bytes takes about ${digits(copied)} µs.`];
      },
    },
    waves: {
      sliders: [['threads', 'threads per block', powers(5, 10), 1024], ['registers', 'registers per thread', 16, 255, 32],
        ['shared', 'KB of shared memory per block', 0, 227, 8], ['blocks', 'blocks', powers(6, 17), 1024]],
      draw({threads, registers, shared, blocks}) {
        const limits = {threads: Math.floor(2048 / threads), registers: Math.floor(65536 / (Math.ceil(registers / 8) * 8 * threads)),
          'shared memory': Math.floor(228 / (shared + 1)), 'the limit of 32 blocks': 32};
        const [limit, fit] = Object.entries(limits).reduce((a, b) => (b[1] < a[1] ? b : a));
        if (fit === 0) return [40, '', `No block fits: ${threads} threads with ${registers} registers need more than 65 536.`];
        const waves = blocks / (SMS * fit);
        const rounds = Math.ceil(waves);
        const shown = Math.min(rounds, 16);
        const each = WIDTH / shown;
        const drawn = Array.from({length: shown}, (_, i) => {
          const full = i < shown - 1 ? 1 : waves - (rounds - 1);
          return rect(i * each, 26, each - 2, 60, 'empty') + rect(i * each, 26 + 60 * (1 - full), each - 2, 60 * full, 'full');
        });
        const left = rounds > shown ? `the last ${shown} of ${whole(rounds)} waves` : few(rounds, 'wave');
        return [92, text(0, 16, `${left}, filled by the blocks that they have`) + drawn.join(''),
          `A multiprocessor holds ${few(fit, 'block')}, limited by ${limit}: ${whole(fit * threads)} of 2048 threads. ` +
          `${whole(blocks)} blocks make ${digits(waves)} waves, and ${percent(waves / rounds)} of the places are used.`];
      },
    },
    groups: {
      sliders: [['rows', 'rows', powers(8, 17), 1024], ['cols', 'columns', powers(7, 13), 4096],
        ['group', 'rows per block', powers(0, 9), 1]],
      draw({rows, cols, group}) {
        const blocks = Math.ceil(rows / group);
        const atomics = 2 * cols * blocks / 1e6;
        const adding = atomics * machine.atomics;
        const walking = 3 * rows * cols * 4 / 1e6 / machine.bandwidth;
        const idle = Math.max(1 - blocks / SMS, 0);
        const slowed = walking / (1 - idle) - walking;
        return [84, bars([['bytes', [[walking, 'full'], [slowed, 'wait']]], ['atomics', [[adding, 'launch']]]],
          Math.max(walking + slowed, adding)),
        `${few(blocks, 'block')}: ${digits(atomics)} million atomics take ${digits(adding)} µs at the rate of chapter zero; the bytes ` +
          (idle > 0 ? `take ${digits(walking + slowed)} µs, because ${percent(idle)} of the multiprocessors idle.`
            : `take ${digits(walking)} µs, and no multiprocessor idles.`)];
      },
    },
    ring: {
      sliders: [['depth', 'slots', 1, 8, 3], ['latency', 'time of a load, in times of a row', 1, 8, 3]],
      draw({depth, latency}) {
        const rows = 12;
        const [arrives, ends, drawn] = [[], [], []];
        for (let i = 0; i < rows; ++i) {
          const asked = i < depth ? 0 : ends[i - depth];
          arrives.push(asked + latency);
          ends.push(Math.max(arrives[i], ends[i - 1] ?? 0) + 1);
        }
        const scale = WIDTH / ends[rows - 1];
        for (let i = 0; i < rows; ++i) {
          const [asked, before] = [arrives[i] - latency, ends[i - 1] ?? 0];
          const y = 50 + (i % depth) * 14;
          drawn.push(rect(asked * scale, y, latency * scale - 1, 11, 'other'));
          drawn.push(rect((ends[i] - 1) * scale, 22, scale - 1, 20, 'full'));
          if (ends[i] - 1 > before) drawn.push(rect(before * scale, 22, (ends[i] - 1 - before) * scale - 1, 20, 'wait'));
        }
        const waits = ends[rows - 1] - rows;
        return [56 + depth * 14, text(0, 14, 'the block, and below it the loads into each slot') + drawn.join(''),
          `${few(rows, 'row')} take ${ends[rows - 1]} row times, of which the block waits ${waits}: ${percent(waits / ends[rows - 1])}. ` +
          (depth > latency ? 'After the first load it never waits.' : `${latency + 1} slots would keep it busy after the first load.`)];
      },
    },
  };

  /** A labelled slider; returns how to read it. */
  function slider(holder, figure, [name, label, ...range], redraw) {
    const list = Array.isArray(range[0]) ? range[0] : null;
    const [from, to, value] = list ? [0, list.length - 1, list.indexOf(range[1])] : range;
    const row = document.createElement('label');
    const input = Object.assign(document.createElement('input'), {type: 'range', min: from, max: to, step: 1, value});
    const shown = document.createElement('output');
    const read = () => list ? list[input.value] : Number(input.value);
    const show = () => {
      shown.textContent = whole(read());
      input.setAttribute('aria-valuetext', shown.textContent);
    };
    row.append(Object.assign(document.createElement('span'), {textContent: label}), input, shown);
    input.addEventListener('input', () => (show(), redraw()));
    show();
    holder.append(row);
    return [name, read];
  }

  for (const holder of document.querySelectorAll('figure.explore')) {
    const figure = figures[holder.dataset.figure];
    const controls = Object.assign(document.createElement('div'), {className: 'explore-controls'});
    const drawing = Object.assign(document.createElement('div'), {className: 'explore-drawing'});
    const sentence = Object.assign(document.createElement('p'), {className: 'explore-sentence'});
    sentence.setAttribute('role', 'status');
    const readers = [];
    const redraw = () => {
      const [height, svg, words] = figure.draw(Object.fromEntries(readers.map(([name, read]) => [name, read()])));
      drawing.innerHTML = `<svg viewBox="0 0 ${WIDTH} ${height}" aria-hidden="true">${svg}</svg>`;
      sentence.textContent = words;
    };
    for (const each of figure.sliders) readers.push(slider(controls, figure, each, redraw));
    redraw();
    holder.prepend(controls, drawing, sentence);
  }
})();
