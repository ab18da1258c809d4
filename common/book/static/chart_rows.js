// The rows of the chart of the progression: what they mean, which of them stand together, and what can be chosen.
//
// A row is an object: `who` (a chapter's id, 'dispatch' or a peer's name), `role` ('chapter', 'library', 'peer'), the
// problem (`direction`, `kind`, `dtype`, `rows`, `cols`, `words` of its options, `key`), what made it (`gpu`, `date`,
// `commit`, `run` of the peers, `versions`), times in microseconds, `cycles`, bytes, and `share` of the roof in percent.
'use strict';

window.lncRows = (() => {
  const CHAPTER = /^(copy|fwd|bwd|my)\d\d$/;

  // --- Words ---

  /** 1330.69 -> '1 331', 12.861 -> '12.9': at least `digits` significant digits, thin spaces between thousands. */
  function number(value, digits = 3) {
    const whole = String(Math.trunc(value)).length;
    const [left, right] = value.toFixed(Math.max(0, digits - whole)).split('.');
    return [left.replace(/\B(?=(\d{3})+$)/g, '\u202f'), right].filter(Boolean).join('.');
  }

  /** '29', and '0.8' below one percent. */
  function percent(value) {
    return value < 1 ? value.toFixed(1) : value.toFixed(0);
  }

  /** 'one line', '3 lines'. */
  function plural(count, one) {
    return `${count} ${count === 1 ? one : `${one}s`}`;
  }

  /** 'a, b and c'. */
  function listed(words) {
    return words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} and ${words[words.length - 1]}`;
  }

  // --- Rows ---

  /** The same row with what follows from it: its key, its name, its role, its share of the roof. */
  function finished(row) {
    const share = time => (row.roof_us ? 100 * (row.operator_bytes / time) / (row.roof_bytes / row.roof_us) : null);
    const role = CHAPTER.test(row.who) ? 'chapter' : row.who === 'dispatch' ? 'library'
      : /^(dispatch|lib_|former )/.test(row.who) ? 'another' : 'peer';
    const also = row.words ? `, ${row.words}` : '';
    return {...row, role, key: `${row.rows}x${row.cols}${row.words && ','}${row.words}`,
      problem: `${row.rows} × ${row.cols}${also}`, share: share(row.median_us), share_p10: share(row.p10_us),
      share_p90: share(row.p90_us)};
  }

  /** {value of `key`: its rows}, in the order in which the values appear. */
  function by(rows, key) {
    const lists = new Map();
    rows.forEach(row => lists.set(key(row), [...(lists.get(key(row)) || []), row]));
    return lists;
  }

  /** The row with the least time. */
  function fastest(rows) {
    return rows.reduce((best, row) => (row.median_us < best.median_us ? row : best));
  }

  /** The rows of chapters, without the one that only copies. */
  function norms(rows) {
    return rows.filter(row => row.role === 'chapter' && row.direction !== 'copy');
  }

  /** A chapter's rows of what the controls ask for, one source a problem: the chapters' own runs, or, where these lack
   *  the problem, the run that the chapters share with peers. copy00 stands beside chapters of forward only. */
  function dotsOf(rows, asked) {
    const chapters = rows.filter(row => row.role === 'chapter' && row.gpu === asked.gpu && row.dtype === asked.dtype);
    const own = chapters.filter(row => row.direction === asked.direction && row.kind === asked.kind);
    const direct = new Set(own.filter(row => !row.run).map(row => row.key));
    return [...chapters.filter(row => asked.direction === 'forward' && row.direction === 'copy' && direct.has(row.key)),
      ...own.filter(row => !row.run || !direct.has(row.key))];
  }

  /** The problems of some dots: [{value, label, rows}], plain ones first, then by size. */
  function problemsOf(dots) {
    return [...by(dots, row => row.key).values()].sort(([a], [b]) => (a.words > b.words) - (a.words < b.words)
      || a.rows * a.cols - b.rows * b.cols || a.cols - b.cols)
      .map(rows => ({value: rows[0].key, label: rows[0].problem, rows}));
  }

  /** What can be drawn over the columns: rows of one number and several widths, or tensors of one size in rows of
   *  several widths. `types`: the bytes of an element. */
  function seriesOf(dots, types) {
    const size = row => row.rows * row.cols * types[row.dtype];
    const families = [[2, 1, row => `rows-${row.rows}`, row => `${row.rows} rows`],
      [3, 3, row => `size-${size(row)}`, row => `${+(size(row) / 2 ** 20).toPrecision(4)} MiB a tensor`]];
    const many = (rows, name) => new Set(rows.map(row => row[name])).size;
    return families.flatMap(([widths, heights, value, label]) =>
      [...by(dots, row => [value(row), row.words].filter(Boolean).join(','))]
        .filter(([, rows]) => many(rows, 'cols') >= widths && many(rows, 'rows') >= heights)
        .map(([name, rows]) => ({value: name, label: [label(rows[0]), rows[0].words].filter(Boolean).join(', '), rows})));
  }

  /** Goes through the controls in their order. Each offers what has data under those before it; a value without data
   *  gives way to one that has some, so a chart is never empty. Returns the state, `choices` ({name: [{value, label,
   *  enabled}]}), `changes` (a sentence for each value that gave way), `hasPeers`, and the rows to draw: `dots`, `peers`,
   *  and those `behind` the reader's own. */
  function settle({rows, gpus, chapters, data}, wished) {
    const [state, choices, changes] = [{...wished}, {}, []];
    const offer = (name, offered, preferred = offered.find(one => one.enabled)) => {
      choices[name] = offered;
      if (!offered.some(one => one.enabled && one.value === state[name])) {
        changes.push(...(state[name] ? [gaveWay(state[name], offered, preferred)] : []));
        state[name] = preferred.value;
      }
    };
    const named = (names, isThere) =>
      Object.entries(names).map(([value, label]) => ({value, label, enabled: isThere(value)}));
    let left = norms(rows);
    const all = {gpu: Object.fromEntries(gpus.map(gpu => [gpu.id, gpu.name])), ...data.norm};
    for (const [name, names] of Object.entries(all)) {
      offer(name, named(names, value => left.some(row => row[name] === value)));
      left = left.filter(row => row[name] === state[name]);
    }
    const dots = dotsOf(rows, state);
    const places = {series: seriesOf(norms(dots), data.types), problem: problemsOf(norms(dots))};
    offer('view', named(data.views, view => view !== 'width' || places.series.length > 0));
    const place = state.view === 'width' ? 'series' : 'problem';
    const offered = places[place].map(one => ({...one, enabled: true}));
    offer(place, offered, offered.reduce((most, one) => (one.rows.length > most.rows.length ? one : most)));
    const keys = new Set(offered.find(one => one.value === state[place]).rows.map(row => row.key));
    offer('measure', named(data.measures, measure =>
      norms(dots).some(row => keys.has(row.key) && row[data.measured[measure]] !== null)));

    const drawn = list => list.filter(row => keys.has(row.key) && row[data.measured[state.measure]] !== null);
    const order = row => [...chapters.keys(), row.who].indexOf(row.who);
    const contenders = drawn(rows.filter(row => ['peer', 'library'].includes(row.role) && row.run
      && ['gpu', 'dtype', 'direction', 'kind'].every(name => row[name] === state[name])));
    const hasPeers = contenders.some(row => row.role === 'peer');
    return {state, choices, changes, hasPeers, peers: hasPeers && state.peers === 'on' ? contenders : [],
      dots: drawn(dots).sort((a, b) => order(a) - order(b) || a.who.localeCompare(b.who) || a.cols - b.cols),
      behind: state.gpu.startsWith('own:') ? drawn(dotsOf(rows, {...state, gpu: gpus[0].id})) : []};
  }

  /** The sentence for a value without data, and the choice in its place. */
  function gaveWay(value, offered, next) {
    const old = offered.find(one => one.value === value);
    return value.startsWith('own:')
      ? `The page keeps no file: to see ${value.slice(4)} again, choose its file again. This shows ${next.label}.`
      : `${old ? old.label : value.replace(/^(\d+)x(\d+)/, '$1 × $2')} was not measured here: this shows ${next.label}.`;
  }

  return {number, percent, plural, listed, finished, by, fastest, norms, settle};
})();
