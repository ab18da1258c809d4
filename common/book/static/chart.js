// The chart of the progression, in <div id="progression" data-root="../../">: every measured time of the chapters, chosen by
// controls, drawn as SVG at one unit a pixel, and said once more in sentences and in a table. The state is in the address
// behind #chart?, so a view can be linked. chart_data.js and chart_records.js come before this file.
'use strict';

(() => {
  const {KIND_NAMES, ROOF_NAMES, number, percent, listed, by, fastest} = window.lncRecords;
  const MAIN = 'main line';
  const NARROW = 620; // pixels of the drawing; below it there are fewer words
  const ACCENTS = 3; // chapters of the main line that are in colour over the columns
  const LETTER = 7.4; // pixels of a letter, about
  const LEFT = 50; // pixels for the numbers of the upright axis
  const LINE = 15; // pixels of a line of words
  const MARK = '#chart?';

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
  const VIEWS = {progression: 'chapter by chapter', width: 'by width'};
  const DIRECTIONS = {forward: 'forward', backward: 'backward'};

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

  // --- What is chosen, and what can be ---

  /** The state that the address holds; what it lacks is as at the start. */
  function stateOf(hash, start) {
    const state = {gpu: '', direction: 'forward', kind: 'layer', dtype: 'f32', view: 'progression', problem: start,
      series: '', measure: 'time', peers: 'on', marked: ''};
    const asked = new URLSearchParams(hash.startsWith(MARK) ? hash.slice(MARK.length) : '');
    for (const name of Object.keys(state)) {
      state[name] = asked.get(name) || state[name];
    }
    return {...state, marked: state.marked.split(' ').filter(Boolean)};
  }

  /** The address's part for a state. */
  function hashOf(state) {
    const {view, direction, kind, dtype, measure, peers, gpu} = state;
    const place = view === 'width' ? {series: state.series} : {problem: state.problem};
    const marked = state.marked.length ? {marked: state.marked.join(' ')} : {};
    return MARK + new URLSearchParams({view, direction, kind, dtype, ...place, measure, peers, gpu, ...marked});
  }

  /** Goes through the controls in their order. Each offers what has data under those before it; a value without data gives
   *  way to one that has some, so a chart is never empty. Returns the state, `choices` ({name: [{value, label, enabled}]}),
   *  `changes` (a sentence for each value that gave way) and the rows to draw: `dots`, `peers`, and those `behind`. */
  function settle(model, wished) {
    const {rows, data} = model;
    const state = {...wished};
    const choices = {};
    const changes = [];
    const offer = (name, offered, preferred = '', says = gaveWay) => {
      choices[name] = offered;
      const old = offered.find(choice => choice.value === state[name]);
      if (!(old && old.enabled)) {
        const next = offered.find(one => one.enabled && one.value === preferred) || offered.find(one => one.enabled);
        if (state[name]) {
          changes.push(says(old ? old.label : placeName(state[name]), next.label));
        }
        state[name] = next.value;
      }
    };
    const has = wanted => rows.some(row => row.role === 'chapter' && row.direction !== 'copy'
      && Object.entries(wanted).every(([name, value]) => row[name] === value));
    const named = (names, wanted) => Object.entries(names).map(([value, label]) =>
      ({value, label, enabled: has(wanted(value))}));

    offer('gpu', model.gpus.map(({id, name}) => ({value: id, label: name, enabled: has({gpu: id})})), '', gpuGaveWay);
    const {gpu} = state;
    offer('direction', named(DIRECTIONS, value => ({gpu, direction: value})));
    const {direction} = state;
    offer('kind', named(KIND_NAMES, value => ({gpu, direction, kind: value})));
    const {kind} = state;
    const types = Object.fromEntries(Object.keys(data.types).map(name => [name, name]));
    offer('dtype', named(types, value => ({gpu, direction, kind, dtype: value})));

    const possible = window.lncRecords.dots(rows, state);
    const series = window.lncRecords.series(possible, data.types);
    offer('view', Object.entries(VIEWS).map(([value, label]) =>
      ({value, label, enabled: value !== 'width' || series.length > 0})), '',
    (old, next) => `The view ${old} needs two widths, and one was measured here: this is the view ${next}.`);
    const problems = window.lncRecords.problems(possible);
    if (state.view === 'width') {
      offer('series', series.map(one => ({...one, enabled: true})), mostPoints(series));
    } else {
      offer('problem', problems.map(one => ({...one, enabled: true})), mostPoints(problems));
    }
    const holds = state.view === 'width' ? series.find(one => one.value === state.series).holds
      : row => row.key === state.problem;
    const here = possible.filter(holds);
    const measured = (name, list) => list.some(row => row.direction !== 'copy' && MEASURES[name].of(row) !== null);
    offer('measure', Object.entries(MEASURES).map(([value, {label}]) => ({value, label, enabled: measured(value, here)})));
    const shown = row => MEASURES[state.measure].of(row) !== null;
    const peers = window.lncRecords.contenders(rows, state).filter(holds).filter(shown);
    choices.peers = peers.some(row => row.role === 'peer');
    const first = model.gpus[0].id;
    const behind = gpu.startsWith('own:') ? window.lncRecords.dots(rows, {...state, gpu: first}).filter(holds) : [];
    const order = row => [...model.chapters.keys(), row.who].indexOf(row.who);
    const dots = here.filter(shown).sort((a, b) => order(a) - order(b) || a.who.localeCompare(b.who));
    return {state, choices, changes, dots, behind: behind.filter(shown), hasPeers: choices.peers,
      peers: choices.peers && state.peers === 'on' ? peers : []};
  }

  /** The sentence for a value without data, and the one in its place. */
  function gaveWay(old, next) {
    return `${old} was not measured here: this shows ${next}.`;
  }

  /** What a value of the address is called where no control offers it: '1024x2048' is 1024 × 2048. */
  function placeName(value) {
    return value.replace(/^(\d+)x(\d+)/, '$1 × $2').replace(/^rows-(\d+)/, '$1 rows').replace(/^size-\d+/, 'This size');
  }

  /** The same for a GPU: a file of the reader's own is gone when the page is opened again. */
  function gpuGaveWay(old, next) {
    return old.startsWith('own:')
      ? `The page keeps no file: to see ${old.slice(4)} again, choose its file again. This shows ${next}.` : gaveWay(old, next);
  }

  /** The value of the choice with the most dots. */
  function mostPoints(offered) {
    return offered.reduce((most, one) => (one.points > most.points ? one : most), {points: 0}).value;
  }

  // --- Scales ---

  /** A function from a value to a pixel, and its ticks. */
  function makeScale(log, [low, high], [from, to]) {
    const part = log ? value => Math.log(value / low) / Math.log(high / low) : value => (value - low) / (high - low);
    return {at: value => from + part(value) * (to - from), ticks: log ? logTicks(low, high) : linearTicks(low, high)};
  }

  /** 10, 20, 50 or 10, 30, 100 or powers of ten: three at least, where the span allows. */
  function logTicks(low, high) {
    for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9]]) {
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
    const box = {left: LEFT, top: 26, right: width - right, bottom: height - bottom};
    const root = svg('svg', {viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': label});
    const y = makeScale(measure.log, spanOf(measure, rows), [box.bottom, box.top]);
    const axes = svg('g', {class: 'lnc-axes', 'aria-hidden': 'true'});
    for (const tick of y.ticks) {
      axes.append(svg('line', {class: 'lnc-grid', x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick)}),
        words(box.left - 6, y.at(tick), number(tick, 1 + (tick % 1 > 0)), {'text-anchor': 'end'}));
    }
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
    const paths = {
      square: `M${x - size},${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
      triangle: `M${x},${y - 1.2 * size}l${1.2 * size},${2.2 * size}h${-2.4 * size}z`,
      diamond: `M${x},${y - 1.4 * size}l${1.4 * size},${1.4 * size}l${-1.4 * size},${1.4 * size}l${-1.4 * size},${-1.4 * size}z`,
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
    element.append(...[withWhisker ? whisker(chart, row, x) : null,
      svg('circle', {class: 'lnc-target', cx: x, cy: y, r: 12}), shape(mark, x, y, size, {class: 'lnc-mark'})].filter(Boolean));
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
    const step = (width - LEFT - right) / places.length;
    const turned = step < 46;
    const chart = frame(width, narrow ? 380 : 460, {right, bottom: turned ? 50 : 28, measure,
      rows: [...dots, ...behind, ...peers], label: `${DIRECTIONS[state.direction]}, ${measure.label}, chapter by chapter`});
    const x = row => chart.box.left + (places.indexOf(row.who) + 0.5) * step;
    places.forEach(who => {
      const [at, below] = [x({who}), chart.box.bottom + (turned ? 8 : 16)];
      chart.axes.append(words(at, below, who, turned
        ? {'text-anchor': 'end', transform: `rotate(-55 ${at} ${below})`} : {'text-anchor': 'middle'}));
    });
    drawRoof(chart, dots, `the roof: ${ROOF_NAMES[state.direction]}`);
    drawPeers(model, chart, peers, x({who: 'peers'}));
    const main = dots.filter(row => roadOf(model, row) === MAIN && row.direction !== 'copy');
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
      const mark = svg('g', {class: `lnc-contender ${look}`, role: 'img', tabindex: '0', 'aria-label': contenderName(row, model.state)},
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
    const texts = [...lines, ...others].map(line => endName(line.who)).concat(['the roof']);
    const right = 26 + LETTER * Math.max(...texts.map(text => text.length));
    const chart = frame(width, width < NARROW ? 400 : 460, {right, bottom: 44, measure, rows: [...dots, ...behind, ...peers],
      label: `${DIRECTIONS[state.direction]}, ${measure.label}, over the columns`});
    const x = widthAxis(chart, [...dots, ...peers]);
    const ends = drawRoofLine(chart, dots, x);
    const accented = lines.filter(line => line.accent >= 0).map(line => line.who);
    [...by(behind.filter(row => accented.includes(row.who)), row => row.who).values()].forEach(list =>
      drawBehind(chart, byWidth(list), x));
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

  /** The H100's line behind one of the reader's own, with hollow dots. */
  function drawBehind(chart, list, x) {
    chart.root.append(svg('polyline', {class: 'lnc-behind', points: pointsOf(chart, list, x)}),
      ...list.map(row => shape('circle', x(row), chart.y.at(chart.measure.of(row)), 4, {class: 'lnc-behind'})));
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
    const group = svg('g', {class: `lnc-line ${look}`}, svg('polyline', {class: 'lnc-path', points: pointsOf(chart, list, x)}));
    list.forEach((row, at) => group.append(dot(model, chart, row, {x: x(row), mark, size: accent < 0 && !marked ? 2 : 3.5, look,
      tab: at === list.length - 1 ? '0' : '-1', withWhisker: accent >= 0 || marked !== ''})));
    chart.root.append(group);
    return endOf(chart, list, x, who, look);
  }

  /** What labelEnds() takes of a line. */
  function endOf(chart, list, x, text, look) {
    const last = list[list.length - 1];
    return {x: x(last), y: chart.y.at(chart.measure.of(last)), text, look};
  }

  // --- Words below the chart ---

  /** What the shapes mean. */
  function keyOf(model) {
    const {state, peers, dots, behind, hasPeers} = model;
    const own = behind.length ? `Filled: yours; hollow: ${model.gpus[0].device}, of another run.` : '';
    const contenders = peers.length ? 'Dashed: the peers, and ours (diamond) beside them, problem by problem in one run.'
      : hasPeers || state.measure === 'cycles' ? '' : 'No peer was measured here.';
    const whiskers = state.measure === 'cycles' ? 'Cycles are computed from the median; the roof and the peers have none.'
      : 'Thin upright lines: p10 to p90.';
    if (state.view === 'width') {
      return ['In colour: the best of the main line here; grey: the other chapters.', own, contenders, whiskers].filter(Boolean).join(' ');
    }
    const copy = dots.some(row => row.direction === 'copy') ? ' Square: copy00, which only copies.' : '';
    const ratios = peers.length ? '× is a peer\'s time over ours.' : '';
    const missing = [...model.chapters.values()].filter(chapter => chapter.direction === state.direction
      && !dots.some(row => row.who === chapter.id)).map(chapter => chapter.id);
    return [own || `Filled: the main line; hollow: side roads.${copy}`, contenders, ratios, whiskers,
      missing.length ? `Not measured here: ${listed(missing)}.` : ''].filter(Boolean).join(' ');
  }

  /** A table row of cells; the first is its head. */
  function tableRow(cells, tag = 'td') {
    return html('tr', {}, ...cells.map((cell, at) => html(at ? tag : 'th', {scope: at ? (tag === 'th' ? 'col' : null) : tag === 'th' ? 'col' : 'row'}, cell)));
  }

  /** The numbers of the chart of one problem: a row a chapter, then ours beside the peers. */
  function problemTable(model) {
    const {dots, behind, peers} = model;
    const library = peers.find(row => row.role === 'library');
    const head = ['who', 'median µs', 'p10 to p90', 'SM cycles', '% of the roof', 'roof µs', 'measured'];
    if (behind.length) {
      head.push(`${model.gpus[0].name}, µs`);
    }
    if (library) {
      head.push('time over ours, same run');
    }
    const line = row => {
      const other = behind.find(one => one.who === row.who);
      const cells = [row.role === 'library' ? `ours (${row.chosen})` : row.who, number(row.median_us, 4),
        `${number(row.p10_us, 4)} to ${number(row.p90_us, 4)}`, row.cycles ? number(row.cycles) : '–',
        row.share === null ? '–' : percent(row.share), row.roof_us ? number(row.roof_us, 4) : '–',
        [row.date, row.commit].filter(Boolean).join(' ')];
      const same = library && row.run === library.run;
      return [...cells, ...(behind.length ? [other ? number(other.median_us, 4) : '–'] : []),
        ...(library ? [same ? (row.median_us / library.median_us).toFixed(2) : '–'] : [])];
    };
    return html('table', {}, html('thead', {}, tableRow(head, 'th')),
      html('tbody', {}, ...[...dots, ...peers].map(row => tableRow(line(row)))));
  }

  /** The numbers of the chart of many widths: a row a width, a column a chapter or peer, in what is measured. */
  function widthTable(model) {
    const measure = MEASURES[model.state.measure];
    const rows = [...model.dots, ...model.peers];
    const names = [...new Set(rows.map(row => row.who))];
    const lines = [...by(byWidth(rows), row => row.key).values()].map(list => [window.lncRecords.problemName(list[0]),
      ...names.map(who => {
        const row = list.find(one => one.who === who);
        return row ? number(measure.of(row), 4) : '–';
      })]);
    return html('table', {}, html('thead', {}, tableRow([`M × N; ${measure.label}`, ...names.map(endName)], 'th')),
      html('tbody', {}, ...lines.map(line => tableRow(line))));
  }

  /** The lines of a tooltip. */
  function tipLines(model, row) {
    const chapter = model.chapters.get(row.who);
    const gpu = model.gpus.find(one => one.id === row.gpu);
    const name = row.role === 'library' ? `our library's choice, ${row.chosen}` : row.who;
    return [[name, chapter ? chapter.title : ''].filter(Boolean).join(' · '), `${row.dtype}, ${window.lncRecords.problemName(row)}`,
      `${number(row.median_us, 4)} µs (${number(row.p10_us)} to ${number(row.p90_us)})`,
      row.cycles ? `${number(row.cycles)} SM cycles` : '',
      row.share === null ? '' : `${percent(row.share)} % of the roof, ${number(row.roof_us)} µs`,
      [gpu.name, row.date].filter(Boolean).join(', ')].filter(Boolean);
  }

  // --- The page ---

  /** A labelled <select>, and the function that fills it. */
  function makeSelect(label, onChange) {
    const select = html('select');
    select.addEventListener('change', () => onChange(select.value));
    const fill = (offered, value) => {
      select.replaceChildren(...offered.map(one => html('option', {value: one.value, disabled: !one.enabled}, one.label)));
      select.value = value;
      select.disabled = offered.length < 2;
    };
    return {element: html('label', {class: 'lnc-field'}, html('span', {}, label), select), fill};
  }

  /** A group of radio buttons, and the function that fills it. The buttons stay, so the focus does too. */
  function makeRadios(label, name, names, onChange) {
    const inputs = Object.entries(names).map(([value]) => html('input', {type: 'radio', name: `lnc-${name}`, value}));
    inputs.forEach(input => input.addEventListener('change', () => onChange(input.value)));
    const element = html('fieldset', {class: 'lnc-field'}, html('legend', {}, label),
      html('div', {}, ...inputs.map(input => html('label', {}, input, names[input.value]))));
    const fill = (offered, value) => inputs.forEach(input => {
      input.checked = input.value === value;
      input.disabled = !offered.find(one => one.value === input.value).enabled;
    });
    return {element, fill};
  }

  /** The chart in its place on the page. */
  class Chart {
    constructor(mount, data) {
      this.model = {root: mount.dataset.root || '', data, rows: window.lncRecords.expand(data), tips: new Map(),
        chapters: new Map(data.chapters.map(chapter => [chapter.id, chapter])),
        gpus: data.gpus.map(gpu => ({...gpu}))};
      this.own = [];
      this.committed = this.model.rows;
      this.build(mount);
      this.wished = stateOf(location.hash, data.start);
      this.show();
      this.listen();
    }

    /** Makes everything that stays, once. */
    build(mount) {
      const choose = name => value => this.choose({[name]: value});
      this.controls = {
        direction: makeRadios('direction', 'direction', DIRECTIONS, choose('direction')),
        view: makeRadios('view', 'view', VIEWS, choose('view')),
        measure: makeSelect('what is measured', choose('measure')),
        kind: makeSelect('norm', choose('kind')),
        dtype: makeSelect('type', choose('dtype')),
        problem: makeSelect('problem, M × N', choose('problem')),
        series: makeSelect('rows', choose('series')),
        gpu: makeSelect('GPU', choose('gpu')),
      };
      this.peers = html('input', {type: 'checkbox'});
      this.peers.addEventListener('change', () => this.choose({peers: this.peers.checked ? 'on' : 'off'}));
      this.changes = html('p', {class: 'lnc-changes', role: 'status'});
      this.plot = html('div', {class: 'lnc-plot'});
      this.tip = html('div', {class: 'lnc-tip', 'aria-hidden': 'true', hidden: true});
      this.said = html('p', {class: 'lnc-said', 'aria-live': 'polite'});
      this.key = html('p', {class: 'lnc-key'});
      this.source = html('p', {class: 'lnc-source'});
      this.marks = html('div', {class: 'lnc-marks', role: 'group', 'aria-label': 'Highlight chapters'});
      this.table = html('div', {class: 'lnc-table', tabindex: '0', role: 'region', 'aria-label': 'The numbers'});
      this.details = html('details', {class: 'lnc-numbers'}, html('summary', {}, 'The numbers'), this.table);
      const form = html('form', {class: 'lnc-controls', 'aria-label': 'What the chart shows'},
        ...Object.values(this.controls).map(control => control.element),
        html('label', {class: 'lnc-field lnc-check'}, this.peers, 'peers'));
      form.addEventListener('submit', event => event.preventDefault());
      mount.classList.add('lnc-chart');
      mount.replaceChildren(form, this.changes, html('figure', {}, html('div', {class: 'lnc-stage'}, this.plot, this.tip),
        html('figcaption', {}, this.said, this.key, this.source)), this.marks, this.details, this.buildDrop());
    }

    /** The place for the reader's own file. */
    buildDrop() {
      const input = html('input', {type: 'file', accept: '.jsonl,.json,.txt', multiple: true});
      input.addEventListener('change', () => this.readFiles([...input.files]));
      this.fileSaid = html('p', {class: 'lnc-file-said', role: 'status'});
      const drop = html('div', {class: 'lnc-drop'}, html('label', {}, 'Drop your local.jsonl here, or choose it: ', input),
        html('p', {}, 'make bench writes it. It is read on this page and goes nowhere.'), this.fileSaid);
      const over = on => event => {
        event.preventDefault();
        drop.classList.toggle('lnc-over', on);
      };
      drop.addEventListener('dragover', over(true));
      drop.addEventListener('dragleave', over(false));
      drop.addEventListener('drop', event => {
        over(false)(event);
        this.readFiles([...event.dataTransfer.files]);
      });
      return drop;
    }

    /** What the whole page does that concerns the chart. */
    listen() {
      window.addEventListener('hashchange', () => {
        if (location.hash.startsWith(MARK)) {
          this.wished = stateOf(location.hash, this.model.data.start);
          this.show();
        }
      });
      new ResizeObserver(() => {
        if (this.plot.clientWidth !== this.width) {
          this.draw();
        }
      }).observe(this.plot);
      this.plot.addEventListener('keydown', event => this.move(event));
      for (const [on, off] of [['mouseover', 'mouseout'], ['focusin', 'focusout']]) {
        this.plot.addEventListener(on, event => this.showTip(event.target));
        this.plot.addEventListener(off, () => this.hideTip());
      }
      window.addEventListener('beforeprint', () => {
        this.wasOpen = this.details.open;
        this.details.open = true;
      });
      window.addEventListener('afterprint', () => {
        this.details.open = this.wasOpen;
      });
    }

    /** Takes a new value of some controls, and writes the state into the address. */
    choose(changed) {
      this.wished = {...this.model.state, ...changed};
      this.show();
      history.replaceState(null, '', hashOf(this.model.state));
    }

    /** Settles what is wished, and shows it. */
    show() {
      const {model} = this;
      const {choices, changes, ...settled} = settle(model, this.wished);
      Object.assign(model, settled);
      const {state} = model;
      for (const [name, control] of Object.entries(this.controls)) {
        control.element.hidden = !choices[name];
        if (choices[name]) {
          control.fill(choices[name], state[name]);
        }
      }
      this.peers.checked = choices.peers && state.peers === 'on';
      this.peers.disabled = !choices.peers;
      this.changes.textContent = changes.join(' ');
      this.draw();
      this.say();
      this.showMarks();
    }

    /** Draws the chart as wide as its place; a dot that had the focus has it again. */
    draw() {
      const held = this.plot.contains(document.activeElement) && document.activeElement.getAttribute('data-row');
      this.hideTip();
      this.model.tips.clear();
      this.width = this.plot.clientWidth;
      const draw = this.model.state.view === 'width' ? drawWidths : drawProgression;
      this.plot.replaceChildren(draw(this.model, Math.max(260, this.width)));
      const again = held && [...this.plot.querySelectorAll('[data-row]')].find(one => one.getAttribute('data-row') === held);
      if (again) {
        again.focus();
      }
    }

    /** Writes the sentences and the table. */
    say() {
      const {model} = this;
      const {aboutProblem, aboutWidths, provenance} = window.lncRecords;
      const isWidth = model.state.view === 'width';
      const said = isWidth ? aboutWidths(model.dots, model.peers) : aboutProblem(model.dots, model.peers, model.chapters);
      this.said.textContent = said.join(' ');
      this.key.textContent = keyOf(model);
      const gpu = model.gpus.find(one => one.id === model.state.gpu);
      this.source.textContent = provenance([...model.dots, ...model.peers], gpu.device);
      this.table.replaceChildren(isWidth ? widthTable(model) : problemTable(model));
    }

    /** A button for each chapter that is shown; a pressed one is drawn over the others. */
    showMarks() {
      const {state, dots} = this.model;
      const names = [...new Set(dots.map(row => row.who))];
      const held = this.marks.contains(document.activeElement) ? document.activeElement.textContent : '';
      this.marks.replaceChildren(html('span', {}, 'highlight'), ...names.map(who => {
        const pressed = state.marked.includes(who);
        const button = html('button', {type: 'button', 'aria-pressed': String(pressed)}, who);
        button.addEventListener('click', () => this.choose({marked: pressed ? state.marked.filter(one => one !== who)
          : [...state.marked, who]}));
        return button;
      }));
      const again = [...this.marks.querySelectorAll('button')].find(button => button.textContent === held);
      if (again) {
        again.focus();
      }
    }

    /** Left and right go from dot to dot; Escape hides the tooltip. */
    move(event) {
      const link = event.target.closest('[data-row]');
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (event.key === 'Escape') {
        this.hideTip();
      } else if (link && step) {
        const links = [...link.parentNode.querySelectorAll('[data-row]')];
        const next = links[links.indexOf(link) + step];
        if (next) {
          event.preventDefault();
          next.focus();
        }
      }
    }

    /** Shows the tooltip of the mark that an event came from. */
    showTip(target) {
      const mark = target.closest('.lnc-dot, .lnc-contender');
      const place = mark && this.model.tips.get(mark);
      if (!place) {
        return;
      }
      this.tip.replaceChildren(...tipLines(this.model, place.row).map(line => html('div', {}, line)));
      this.tip.hidden = false;
      const left = Math.min(Math.max(0, place.x - this.tip.offsetWidth / 2), this.width - this.tip.offsetWidth);
      const above = place.y - this.tip.offsetHeight - 14;
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${above < 0 ? place.y + 14 : above}px`;
    }

    hideTip() {
      this.tip.hidden = true;
    }

    /** Reads files of the reader's own, one after another; says what came of each. */
    readFiles(files) {
      this.fileSaid.textContent = '';
      for (const file of files) {
        const reader = new FileReader();
        reader.addEventListener('load', () => this.take(window.lncRecords.read(reader.result, file.name, this.model.data)));
        reader.addEventListener('error', () => this.sayOfFile(`${file.name} cannot be read.`));
        reader.readAsText(file);
      }
    }

    /** Adds a sentence on a file. */
    sayOfFile(sentence) {
      this.fileSaid.textContent = [this.fileSaid.textContent, sentence].filter(Boolean).join(' ');
    }

    /** Takes what was read of a file: its rows replace those of the same problem; its GPU is shown. */
    take({rows, said}) {
      this.sayOfFile(said);
      if (!rows.some(row => row.role === 'chapter' && row.direction !== 'copy')) {
        return;
      }
      const name = row => [row.gpu, row.who, row.direction, row.kind, row.dtype, row.key, Boolean(row.run)].join('|');
      this.own = [...new Map([...this.own, ...rows].map(row => [name(row), row])).values()];
      this.model.rows = [...this.committed, ...this.own];
      this.model.gpus = [...this.model.data.gpus, ...[...new Map(this.own.map(row => [row.gpu, row.device]))]
        .map(([id, device]) => ({id, name: `yours: ${device}`, device}))];
      this.choose({gpu: rows.find(row => row.role === 'chapter').gpu});
    }
  }

  /** Begins where the page has a place and the data. */
  function begin() {
    const mount = document.getElementById('progression');
    if (!mount) {
      return;
    }
    if (!window.lncChart || !window.lncChart.rows.length) {
      mount.append(html('p', {}, 'There are no measurements to draw.'));
      return;
    }
    window.lncChartView = new Chart(mount, window.lncChart);
  }

  if (document.readyState === 'loading') {
    document.addEventListener('DOMContentLoaded', begin);
  } else {
    begin();
  }
})();
