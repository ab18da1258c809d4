// The drawing part of the chart of the progression: scales, axes, dots and lines as SVG, one unit a pixel. chart_records.js
// comes before this file; chart.js chooses what is drawn.
//
// `model` is what chart.js shows: `state` (the controls' values), the rows `dots`, `behind` (the H100's, behind the reader's
// own) and `peers`, `chapters` and `gpus` of the data, `root` (from the page to the book's root), and `tips`, a Map that
// gets each mark's row and place.
'use strict';

window.lncDrawing = (() => {
  const {ROOF_NAMES, number, percent, by} = window.lncRecords;
  const MAIN = 'main line';
  const NARROW = 620; // pixels of the drawing; below it there are fewer words
  const ACCENTS = 3; // chapters of the main line that are in colour over the columns
  const LETTER = 7.4; // pixels of a letter, about
  const TOP = 26; // pixels above the plot, for the name of the upright axis
  const LINE = 15; // pixels of a line of words
  const DIRECTIONS = {forward: 'forward', backward: 'backward'};

  /** What is measured, of a row. `low` and `high` are the least and the greatest value of p10 and p90; null where nobody
   *  knows them, as of cycles, which are computed from the median. */
  const MEASURES = {
    time: {label: 'time, µs', log: true, of: row => row.median_us, low: row => row.p10_us, high: row => row.p90_us,
      words: value => `${number(value)} µs`, roof: row => row.roof_us},
    cycles: {label: 'SM cycles', log: true, of: row => row.cycles, low: () => null, high: () => null,
      words: value => `${number(value)} cycles`, roof: () => null},
    share: {label: '% of the roof', log: false, of: row => row.share, low: row => row.share * row.median_us / row.p90_us,
      high: row => row.share * row.median_us / row.p10_us, words: value => `${percent(value)} %`,
      roof: row => (row.share === null ? null : 100)},
  };
  // --- Elements ---

  /** An HTML element with attributes and children; a string becomes text. */
  function html(tag, attributes = {}, ...children) {
    return filled(document.createElement(tag), attributes, children);
  }

  /** The same in SVG. */
  function svg(tag, attributes = {}, ...children) {
    return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
  }

  /** Sets attributes (true: an empty one; null or false: none) and appends children. */
  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) {
        element.setAttribute(name, value === true ? '' : value);
      }
    }
    element.append(...children.filter(child => child !== null));
    return element;
  }
  // --- Scales ---

  /** A function from a value to a pixel, and its ticks. */
  function makeScale(log, [low, high], [from, to]) {
    const part = log ? value => Math.log(value / low) / Math.log(high / low) : value => (value - low) / (high - low);
    return {at: value => from + part(value) * (to - from), ticks: log ? logTicks(low, high) : linearTicks(low, high)};
  }

  /** 10, 20, 50 or 10, 30, 100 or powers of ten: three at least, where the span allows. */
  function logTicks(low, high) {
    const many = [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
    for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], many]) {
      const ticks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        ticks.push(...steps.map(step => step * 10 ** power).filter(tick => tick >= low && tick <= high));
      }
      if (ticks.length > 2) {
        return ticks;
      }
    }
    return [low, high];
  }

  function linearTicks(low, high) {
    const ticks = [];
    for (let tick = 0; tick <= high; tick += 20) {
      ticks.push(tick);
    }
    return ticks.filter(tick => tick >= low);
  }

  /** The span of a measure over some rows, with room around it. */
  function spanOf(measure, rows) {
    const values = rows.flatMap(row => [measure.of(row), measure.low(row), measure.high(row), measure.roof(row)])
      .filter(value => value !== null);
    return measure.log ? [Math.min(...values) / 1.35, Math.max(...values) * 1.3] : [0, Math.max(105, ...values) * 1.04];
  }

  /** Moves places apart until neighbours are `gap` from each other, between `low` and `high`. Keeps their order. */
  function spread(places, gap, low, high) {
    const order = places.map((place, at) => at).sort((a, b) => places[a] - places[b]);
    const moved = [...places];
    order.forEach((at, rank) => {
      moved[at] = Math.max(moved[at], rank ? moved[order[rank - 1]] + gap : low);
    });
    [...order].reverse().forEach((at, rank) => {
      const after = order[order.length - rank];
      moved[at] = Math.min(moved[at], rank ? moved[after] - gap : high);
    });
    return moved;
  }

  // --- Drawing ---

  /** The empty chart: its <svg>, the box of its plot, and its scales. `right`: pixels for words behind the plot. */
  function frame(width, height, {right, bottom, measure, rows, label}) {
    const y = makeScale(measure.log, spanOf(measure, rows), [height - bottom, TOP]);
    const numbers = y.ticks.map(tick => number(tick, tick % 1 > 0 ? 2 : 1));
    const left = 12 + LETTER * Math.max(...numbers.map(text => text.length));
    const box = {left, top: TOP, right: width - right, bottom: height - bottom};
    const root = svg('svg', {viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': label});
    const axes = svg('g', {class: 'lnc-axes', 'aria-hidden': 'true'});
    y.ticks.forEach((tick, at) => {
      axes.append(svg('line', {class: 'lnc-grid', x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick)}),
        words(box.left - 6, y.at(tick), numbers[at], {'text-anchor': 'end'}));
    });
    axes.append(words(0, 9, measure.label + (measure.log ? ' (log)' : ''), {class: 'lnc-title'}));
    root.append(axes);
    return {root, box, y, axes, measure, width, narrow: width < NARROW};
  }

  /** Words whose middle is at a height. */
  function words(x, y, text, attributes = {}) {
    return svg('text', {x, y, dy: '0.35em', ...attributes}, text);
  }

  /** From p10 to p90, a thin line. */
  function whisker(chart, row, x) {
    const {measure, y} = chart;
    return measure.low(row) === null ? null
      : svg('line', {class: 'lnc-whisker', x1: x, x2: x, y1: y.at(measure.low(row)), y2: y.at(measure.high(row))});
  }

  /** A shape around a point: 'circle', 'square', 'triangle' or 'diamond'. */
  function shape(name, x, y, size, attributes = {}) {
    const side = 1.4 * size;
    const paths = {
      square: `M${x - size},${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
      triangle: `M${x},${y - 1.2 * size}l${1.2 * size},${2.2 * size}h${-2.4 * size}z`,
      diamond: `M${x},${y - side}l${side},${side}l${-side},${side}l${-side},${-side}z`,
    };
    return name === 'circle' ? svg('circle', {cx: x, cy: y, r: size, ...attributes})
      : svg('path', {d: paths[name], ...attributes});
  }

  /** A link to a row's chapter (or a mark without a link, where there is no such page), with its whisker and its shape. */
  function dot(model, chart, row, {x, mark, size, look, tab = '0', withWhisker = true}) {
    const y = chart.y.at(chart.measure.of(row));
    const chapter = model.chapters.get(row.who);
    const name = nameOf(row, model.state);
    const attributes = {class: `lnc-dot ${look}`, tabindex: tab, 'aria-label': name, 'data-row': `${row.who} ${row.key}`};
    const element = chapter ? svg('a', {...attributes, href: model.root + chapter.href})
      : svg('g', {...attributes, role: 'img'});
    const parts = [withWhisker ? whisker(chart, row, x) : null, svg('circle', {class: 'lnc-target', cx: x, cy: y, r: 12}),
      shape(mark, x, y, size, {class: 'lnc-mark'})];
    element.append(...parts.filter(Boolean));
    model.tips.set(element, {row, x, y});
    return element;
  }

  /** 'fwd02, 34.9 µs, 29 % of the roof': what a screen reader says. */
  function nameOf(row, state) {
    return [row.who, state.view === 'width' ? `${row.cols} columns` : '', `${number(row.median_us)} µs`,
      state.measure === 'cycles' && row.cycles ? `${number(row.cycles)} cycles` : '',
      row.share === null ? '' : `${percent(row.share)} % of the roof`].filter(Boolean).join(', ');
  }

  /** Words at the right of the plot, each with a thin line to its place: [{x, y, text, look}]. */
  function labelEnds(chart, ends) {
    const {box, root} = chart;
    const places = spread(ends.map(end => end.y), LINE, box.top, box.bottom + 8);
    const group = svg('g', {'aria-hidden': 'true'});
    ends.forEach((end, at) => {
      const early = end.x < box.right - 20 ? ' lnc-faint' : '';
      group.append(svg('line', {class: `lnc-leader${early}`, x1: end.x, x2: box.right + 3, y1: end.y, y2: end.y}),
        svg('line', {class: 'lnc-leader', x1: box.right + 3, x2: box.right + 14, y1: end.y, y2: places[at]}),
        words(box.right + 17, places[at], end.text, {class: `lnc-end ${end.look}`}));
    });
    root.append(group);
  }

  /** One problem: the chapters in their order over the roof, the main line joined, and the peers as dashed marks. */
  function drawProgression(model, width) {
    const {dots, behind, peers, state} = model;
    const measure = MEASURES[state.measure];
    const narrow = width < NARROW;
    const ends = peerEnds(peers, measure, narrow);
    const right = ends.length ? 26 + LETTER * Math.max(...ends.map(end => end.text.length)) : 16;
    const order = [...new Set([...model.chapters.keys(), ...dots.map(row => row.who)])]
      .filter(who => [...dots, ...behind].some(row => row.who === who));
    const places = [...order, ...(peers.length ? ['peers'] : [])];
    const chart = frame(width, narrow ? 380 : 460, {right, bottom: 58, measure, rows: [...dots, ...behind, ...peers],
      label: `${DIRECTIONS[state.direction]}, ${measure.label}, chapter by chapter`});
    const step = (chart.box.right - chart.box.left) / places.length;
    const x = row => chart.box.left + (places.indexOf(row.who) + 0.5) * step;
    const main = dots.filter(row => roadOf(model, row) === MAIN && row.direction !== 'copy');
    const first = [...main.slice(0, 1), ...main.slice(-1), ...main].map(row => row.who);
    labelPlaces(chart, [...new Set([...first, ...places])].map(who => ({who, x: x({who})})), step);
    drawRoof(chart, dots, `the roof: ${ROOF_NAMES[state.direction]}`);
    drawPeers(model, chart, peers, x({who: 'peers'}));
    chart.root.append(svg('polyline', {class: `lnc-main lnc-${state.direction}`,
      points: main.map(row => `${x(row)},${chart.y.at(measure.of(row))}`).join(' ')}));
    behind.forEach(row => chart.root.append(shape('circle', x(row), chart.y.at(measure.of(row)), 7, {class: 'lnc-behind'})));
    const links = svg('g');
    for (const row of dots) {
      links.append(dot(model, chart, row, {x: x(row), ...lookOf(model, row)}));
    }
    chart.root.append(links);
    if (step > 30) {
      labelDots(chart, dots, x, behind);
    }
    labelEnds(chart, ends.map(end => ({...end, x: x({who: 'peers'}) + 8, y: chart.y.at(end.value)})));
    return chart.root;
  }

  /** The names below the plot; where they have too little room they are turned, and some left out: the last of the list. */
  function labelPlaces(chart, places, step) {
    const turned = step < 46;
    const below = chart.box.bottom + (turned ? 8 : 16);
    const taken = [];
    for (const {who, x} of places) {
      if (!turned || taken.every(other => Math.abs(other - x) > LINE - 1)) {
        taken.push(x);
        chart.axes.append(words(x, below, who, turned
          ? {'text-anchor': 'end', transform: `rotate(-55 ${x} ${below})`} : {'text-anchor': 'middle'}));
      }
    }
  }

  /** How a chapter's dot looks: the main line filled, side roads hollow; of the reader's own records, all filled. */
  function lookOf(model, row) {
    const marked = model.state.marked.includes(row.who) ? ' lnc-marked' : '';
    if (row.direction === 'copy') {
      return {mark: 'square', size: 5, look: `lnc-side${marked}`};
    }
    const own = row.gpu.startsWith('own:') ? ' lnc-own' : '';
    return roadOf(model, row) === MAIN ? {mark: 'circle', size: 6, look: `lnc-${row.direction}${marked}`}
      : {mark: 'circle', size: 4.5, look: `lnc-side${own}${marked}`};
  }

  /** The road of a row's chapter; empty for one of the reader's own. */
  function roadOf(model, row) {
    return (model.chapters.get(row.who) || {road: ''}).road;
  }

  /** The value of each dot above it; below it where the H100's stands above. */
  function labelDots(chart, dots, x, behind) {
    for (const row of dots) {
      const other = behind.find(one => one.who === row.who);
      const below = other && chart.measure.of(other) > chart.measure.of(row);
      const text = chart.measure.words(chart.measure.of(row)).replace(/ (µs|cycles)$/, '');
      chart.root.append(words(x(row), chart.y.at(chart.measure.of(row)) + (below ? 18 : -17), text,
        {class: 'lnc-value', 'text-anchor': 'middle', 'aria-hidden': 'true'}));
    }
  }

  /** The roof of one problem: a line at the median of what the chapters' runs measured. */
  function drawRoof(chart, rows, name) {
    const roofs = rows.map(chart.measure.roof).filter(roof => roof !== null).sort((a, b) => a - b);
    if (roofs.length) {
      const roof = roofs[Math.floor(roofs.length / 2)];
      const y = chart.y.at(roof);
      const text = chart.measure === MEASURES.time ? `${name}, ${number(roof)} µs` : name;
      chart.root.append(svg('line', {class: 'lnc-roof', x1: chart.box.left, x2: chart.box.right, y1: y, y2: y}),
        words(chart.box.left + 4, y + (chart.measure.log ? 10 : -9), text, {class: 'lnc-value', 'aria-hidden': 'true'}));
    }
  }

  /** What stands at the right for our library and the peers: their value, and the peer's time over ours. */
  function peerEnds(peers, measure, narrow) {
    const library = peers.find(row => row.role === 'library');
    return peers.map(row => {
      const ours = row === library;
      const ratio = library && !ours ? `, × ${(row.median_us / library.median_us).toFixed(2)}` : '';
      const name = ours ? `ours (${row.chosen})` : row.who;
      const text = narrow ? (ours ? 'ours' : row.who) : `${name} ${measure.words(measure.of(row))}${ratio}`;
      return {value: measure.of(row), text, look: ours ? 'lnc-ours' : 'lnc-peer'};
    });
  }

  /** The peers of one problem, and ours of the same run: marks in a place of their own, with a faint line across. */
  function drawPeers(model, chart, peers, x) {
    for (const row of peers) {
      const y = chart.y.at(chart.measure.of(row));
      const look = row.role === 'library' ? 'lnc-ours' : 'lnc-peer';
      const name = contenderName(row, model.state);
      const mark = svg('g', {class: `lnc-contender ${look}`, role: 'img', tabindex: '0', 'aria-label': name},
        svg('line', {class: 'lnc-dash lnc-faint', x1: chart.box.left, x2: x, y1: y, y2: y}),
        svg('circle', {class: 'lnc-target', cx: x, cy: y, r: 9}),
        ...[whisker(chart, row, x), row.role === 'library' ? shape('diamond', x, y, 4, {class: 'lnc-mark'})
          : svg('line', {class: 'lnc-bar', x1: x - 6, x2: x + 6, y1: y, y2: y})].filter(Boolean));
      model.tips.set(mark, {row, x, y});
      chart.root.append(mark);
    }
  }

  /** 'torch, 13.5 µs, 76 % of the roof', 'our library, which chose fwd06, …'. */
  function contenderName(row, state) {
    return nameOf(row.role === 'library' ? {...row, who: `our library, which chose ${row.chosen},`} : row, state)
      .replace(',,', ',');
  }

  /** Many widths: a line a chapter, the main line's best in colour, the others grey, peers dashed, each named at its end. */
  function drawWidths(model, width) {
    const {dots, behind, peers, state} = model;
    const measure = MEASURES[state.measure];
    const lines = [...by(dots, row => row.who)].map(([who, list]) => ({who, list: byWidth(list), accent: -1}));
    accents(model).forEach((who, at) => {
      lines.find(line => line.who === who).accent = at;
    });
    lines.sort((a, b) => (a.accent < 0 ? 0 : ACCENTS - a.accent) - (b.accent < 0 ? 0 : ACCENTS - b.accent));
    const others = [...by(peers, row => row.who)].map(([who, list]) => ({who, list: byWidth(list)}));
    const accented = lines.filter(line => line.accent >= 0).map(line => line.who);
    const firsts = [...by(behind.filter(row => accented.includes(row.who)), row => row.who).values()];
    const behindName = list => `${list[0].who}, ${model.gpus[0].name}`;
    const texts = [...[...lines, ...others].map(line => endName(line.who)), 'the roof', ...firsts.map(behindName)];
    const right = 26 + LETTER * Math.max(...texts.map(text => text.length));
    const chart = frame(width, width < NARROW ? 400 : 460, {right, bottom: 44, measure, rows: [...dots, ...behind, ...peers],
      label: `${DIRECTIONS[state.direction]}, ${measure.label}, over the columns`});
    const x = widthAxis(chart, [...dots, ...peers]);
    const ends = drawRoofLine(chart, dots, x);
    firsts.forEach(list => ends.push(drawBehind(chart, byWidth(list), x, behindName(list))));
    others.forEach(line => ends.push(drawOther(model, chart, line, x)));
    lines.forEach(line => ends.push(drawLine(model, chart, line, x)));
    labelEnds(chart, ends);
    return chart.root;
  }

  /** How a line is called at its end. */
  function endName(who) {
    return who === 'dispatch' ? 'ours' : who;
  }

  /** Rows from the narrowest to the widest. */
  function byWidth(rows) {
    return [...rows].sort((a, b) => a.cols - b.cols);
  }

  /** The ids of the main line's chapters with the best mean part of the fastest's speed, the best first. */
  function accents(model) {
    const merits = window.lncRecords.merits(model.dots.filter(row => row.direction !== 'copy'));
    const main = [...merits.keys()].filter(who => (model.chapters.get(who) || {}).road === MAIN);
    return main.sort((a, b) => merits.get(b) - merits.get(a)).slice(0, ACCENTS);
  }

  /** The columns' axis: a log scale with the powers of two that have room. Returns the function from a row to a pixel. */
  function widthAxis(chart, rows) {
    const {box, axes, width} = chart;
    const widths = [...new Set(rows.map(row => row.cols))].sort((a, b) => a - b);
    const scale = makeScale(true, [widths[0] / 1.06, widths[widths.length - 1] * 1.06], [box.left, box.right]);
    const powers = widths.filter(cols => Number.isInteger(Math.log2(cols)));
    let last = -Infinity;
    for (const cols of powers.length > 1 ? powers : widths) {
      const at = scale.at(cols);
      if (at - last > 52) {
        axes.append(words(at, box.bottom + 14, String(cols), {'text-anchor': 'middle'}),
          svg('line', {class: 'lnc-grid', x1: at, x2: at, y1: box.top, y2: box.bottom}));
        last = at;
      }
    }
    axes.append(words(box.left, box.bottom + 34, width < NARROW ? 'N, columns (log)' : 'N, the columns of a row (log)',
      {class: 'lnc-title'}));
    return row => scale.at(row.cols);
  }

  /** The roof at each width; returns its end for labelEnds(), in a list that is empty without a roof. */
  function drawRoofLine(chart, rows, x) {
    const roofs = byWidth([...by(rows.filter(row => chart.measure.roof(row) !== null), row => row.cols).values()]
      .map(list => list.sort((a, b) => chart.measure.roof(a) - chart.measure.roof(b))[Math.floor(list.length / 2)]));
    if (roofs.length < 2) {
      return [];
    }
    const points = roofs.map(row => [x(row), chart.y.at(chart.measure.roof(row))]);
    chart.root.append(svg('polyline', {class: 'lnc-roof', points: points.join(' ')}));
    const [endX, endY] = points[points.length - 1];
    return [{x: endX, y: endY, text: 'the roof', look: 'lnc-ours'}];
  }

  /** The points of a line, for an attribute. */
  function pointsOf(chart, list, x) {
    return list.map(row => `${x(row)},${chart.y.at(chart.measure.of(row))}`).join(' ');
  }

  /** The H100's line behind one of the reader's own, with hollow dots; returns its end. */
  function drawBehind(chart, list, x, name) {
    chart.root.append(svg('polyline', {class: 'lnc-behind', points: pointsOf(chart, list, x)}),
      ...list.map(row => shape('circle', x(row), chart.y.at(chart.measure.of(row)), 4, {class: 'lnc-behind'})));
    return endOf(chart, list, x, name, 'lnc-peer');
  }

  /** A peer's line, or our library's beside them; returns its end. */
  function drawOther(model, chart, {who, list}, x) {
    const look = who === 'dispatch' ? 'lnc-ours' : 'lnc-peer';
    const group = svg('g', {class: `lnc-contender ${look}`},
      svg('polyline', {class: 'lnc-dash', points: pointsOf(chart, list, x)}));
    for (const row of list) {
      const [at, y] = [x(row), chart.y.at(chart.measure.of(row))];
      const mark = svg('g', {class: 'lnc-contender', role: 'img', 'aria-label': contenderName(row, model.state)},
        shape('diamond', at, y, 3, {class: 'lnc-mark'}), svg('circle', {class: 'lnc-target', cx: at, cy: y, r: 9}));
      model.tips.set(mark, {row, x: at, y});
      group.append(mark);
    }
    chart.root.append(group);
    return endOf(chart, list, x, endName(who), look);
  }

  /** A chapter's line with its dots; the last dot takes part in the order of Tab, the arrows lead to the others. */
  function drawLine(model, chart, {who, list, accent}, x) {
    const marked = model.state.marked.includes(who) ? ' lnc-marked' : '';
    const look = (accent < 0 ? 'lnc-other' : `lnc-accent${accent}`) + marked;
    const mark = ['circle', 'square', 'triangle'][accent] || 'circle';
    const group = svg('g', {class: `lnc-line ${look}`},
      svg('polyline', {class: 'lnc-path', points: pointsOf(chart, list, x)}));
    const loud = accent >= 0 || marked !== '';
    list.forEach((row, at) => group.append(dot(model, chart, row, {x: x(row), mark, size: loud ? 3.5 : 2, look,
      tab: at === list.length - 1 ? '0' : '-1', withWhisker: loud})));
    chart.root.append(group);
    return endOf(chart, list, x, who, look);
  }

  /** What labelEnds() takes of a line. */
  function endOf(chart, list, x, text, look) {
    const last = list[list.length - 1];
    return {x: x(last), y: chart.y.at(chart.measure.of(last)), text, look};
  }

  return {MEASURES, DIRECTIONS, html, endName, byWidth, drawProgression, drawWidths};
})();
