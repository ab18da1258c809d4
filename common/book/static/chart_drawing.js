// Draws the chart of the progression: gives Vega-Lite the specification that chart_spec.py wrote and the rows that are
// chosen, and makes of the drawn dots links that the keyboard reaches.
'use strict';

window.lncDrawing = (() => {
  const {number, percent, by, fastest, norms} = window.lncRows;
  const {ROOF_NAMES, whoOf, nameOf, factsOf} = window.lncWords;
  const NARROW = 620; // pixels of the drawing; below it there are fewer words
  const TURNED = 46; // pixels that a chapter has below the plot; with less its name is turned
  const ACCENTS = 3; // chapters of the main line that are in colour over the columns
  const UNITS = {time: ' µs', cycles: ' cycles', share: ' %'};
  const OPTIONS = {mode: 'vega-lite', renderer: 'svg', actions: false, logLevel: 1, tooltip: {disableDefaultStyle: true},
    formatLocale: {decimal: '.', thousands: '\u202f', grouping: [3], currency: ['', '']}};

  /** The main line's chapters with the best mean part of the fastest's speed over all problems, the best first. */
  function bestOf(dots) {
    const own = norms(dots);
    const least = new Map([...by(own, row => row.key)].map(([key, rows]) => [key, fastest(rows).median_us]));
    const merit = rows => rows.reduce((sum, row) => sum + least.get(row.key) / row.median_us, 0);
    return [...by(own.filter(row => row.road === 'main line'), row => row.who).values()]
      .sort((a, b) => merit(b) - merit(a)).map(([row]) => row.who).slice(0, ACCENTS);
  }

  /** The roof as rows: the median of what the chapters' runs measured, of one problem or at each width. */
  function roofOf({state, dots, data}, isWidth) {
    const value = {time: row => row.roof_us, cycles: () => null, share: row => row.roof_us && 100}[state.measure];
    const places = [...by(dots.filter(value), row => (isWidth ? row.cols : 0)).values()];
    return isWidth && places.length < 2 ? [] : places.map(rows => {
      const middle = rows.map(value).sort((a, b) => a - b)[Math.floor(rows.length / 2)];
      return {part: 'roof', who: 'the roof', accent: -1, cols: rows[0].cols, [data.measured[state.measure]]: middle,
        text: `the roof: ${ROOF_NAMES[state.direction]}${state.measure === 'time' ? `, ${number(middle)} µs` : ''}`};
    });
  }

  /** The rows of a drawing; chart_spec.py says what it makes of their fields. */
  function marksOf(model, isNarrow) {
    const {state, dots, behind, peers, data, chapters, gpus} = model;
    const field = data.measured[state.measure];
    const isWidth = state.view === 'width';
    const best = isWidth ? bestOf(dots) : [];
    const order = [...chapters.keys(), ...dots.map(row => row.who)];
    const marked = state.marked.split(' ');
    const mark = part => row => ({...row, part, place: part === 'peer' || part === 'library' ? 'peers' : row.who,
      order: row.role === 'chapter' ? order.indexOf(row.who) : order.length, own: row.gpu.startsWith('own:'),
      accent: part === 'chapter' ? best.indexOf(row.who) : -1, marked: part === 'chapter' && marked.includes(row.who),
      below: behind.some(one => one.who === row.who && one[field] > row[field]), aria: nameOf(row, state),
      text: state.measure === 'share' ? `${percent(row[field])} %` : number(row[field]),
      tip: {title: [whoOf(row), row.title].filter(Boolean).join(' · '), problem: `${row.dtype}, ${row.problem}`,
        ...factsOf(row), GPU: gpus.find(one => one.id === row.gpu).name}});
    const rows = [...behind.filter(row => !isWidth || best.includes(row.who)).map(mark('behind')),
      ...peers.map(row => mark(row.role)(row)), ...dots.map(mark('chapter')), ...roofOf(model, isWidth)];
    if (!isWidth) {
      const library = peers.find(row => row.role === 'library');
      return rows.map(row => (row.place === 'peers' ? {...row, end: endOf(row, library, state, isNarrow)} : row));
    }
    const loud = row => (row.marked ? ACCENTS + 1 : row.accent < 0 ? 0 : ACCENTS - row.accent);
    rows.sort((a, b) => loud(a) - loud(b) || a.cols - b.cols);
    return [...by(rows, row => `${row.part} ${row.who}`).values()].flatMap(([...line]) => {
      const last = line.pop();
      const name = {library: 'ours', behind: `${last.who}, ${gpus[0].name}`}[last.part] || last.who;
      return [...line, {...last, end: name}];
    });
  }

  /** What stands at the right for our library and the peers: their value, and the peer's time over ours. */
  function endOf(row, library, state, isNarrow) {
    const value = `${row.text}${state.measure === 'share' ? '' : UNITS[state.measure]}`;
    const ratio = library && row.role === 'peer' ? `, × ${(row.median_us / library.median_us).toFixed(2)}` : '';
    const name = row.role === 'peer' ? row.who : 'ours';
    return isNarrow ? name : `${name}${row.role === 'peer' ? '' : ` (${row.chosen})`} ${value}${ratio}`;
  }

  /** Draws into an element, as wide as `width`; returns Vega-Embed's promise. */
  function draw(place, model, width) {
    const {state, data} = model;
    const rows = marksOf(model, width < NARROW);
    const places = new Set(rows.map(row => row.place)).size;
    const params = {top: Math.max(108, ...rows.map(row => 1.05 * row.share_p10 || 0)), direction: state.direction,
      isTurned: 0.7 * width / places < TURNED};
    const spec = {...data.charts[state.view][state.measure], data: {name: 'rows'}, datasets: {rows}, width,
      params: Object.entries(params).map(([name, value]) => ({name, value})),
      description: `${state.direction}, ${data.measures[state.measure]}, ${data.views[state.view]}`};
    const {fontFamily: font} = getComputedStyle(document.body);
    return window.vegaEmbed(place, spec, {...OPTIONS, config: {font}}).then(drawing => {
      makeLinks(place, model);
      return drawing;
    });
  }

  /** Makes of each dot's target a link to its chapter; of a dot without a page, and of a peer, an image. Over the columns
   *  the last dot of a line takes part in the order of Tab. */
  function makeLinks(place, {root, state}) {
    const targets = [...place.querySelectorAll('.targets_marks path')];
    const rowOf = target => target.__data__.datum;
    const stops = state.view === 'width' ? new Map(targets.map(target => [rowOf(target).who, target])) : new Map();
    const lines = new Map([...place.querySelectorAll('.lines_marks path')].map(line => [rowOf(line).who, line]));
    for (const target of targets) {
      const {part, who, key, href, aria} = rowOf(target);
      const isLink = part === 'chapter' && href;
      const attributes = {class: part === 'chapter' ? 'lnc-dot' : 'lnc-contender', 'aria-label': aria,
        ...(isLink ? {href: root + href} : {role: 'img'}), ...(part === 'chapter' ? {'data-row': `${who} ${key}`} : {}),
        tabindex: stops.size && (stops.get(who) !== target || part !== 'chapter') ? '-1' : '0'};
      const wrapper = document.createElementNS('http://www.w3.org/2000/svg', isLink ? 'a' : 'g');
      Object.entries(attributes).forEach(([name, value]) => wrapper.setAttribute(name, value));
      for (const [name, isNear] of Object.entries({mouseenter: true, focus: true, mouseleave: false, blur: false})) {
        wrapper.addEventListener(name, () => lines.has(who) && lines.get(who).classList.toggle('lnc-near', isNear));
      }
      target.replaceWith(wrapper);
      target.setAttribute('aria-hidden', 'true'); // its wrapper says what it is
      wrapper.append(target);
    }
  }

  return {draw};
})();
