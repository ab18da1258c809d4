// The data part of the chart of the progression: what the rows of chart_data.js mean, which of them stand together in one
// chart, what there is to say of them, and how a file of the reader's own records is read. It draws nothing; chart.js does.
//
// A row here is an object: `who` (a chapter's id, 'dispatch' or a peer's name), `role` ('chapter', 'library', 'peer'),
// the problem (`direction`, `kind`, `dtype`, `rows`, `cols`, `words` of its options, `key`), what made it (`gpu`, `date`,
// `commit`, `run` of the peers, `versions`), times in microseconds, `cycles`, bytes, and `share` of the roof in percent.
'use strict';

window.lncRecords = (() => {
  const SCHEMA = 2;
  const DRAW = 2; // percent: what is nearer than this to the fastest is named beside it
  const CHAPTER = /^(copy|fwd|bwd|my)\d\d$/;
  const NO_CHAPTER = /^lib_|^former /; // a kernel of the library, which `dispatch` stands for; one that is gone
  const KIND_NAMES = {layer: 'layer norm', rms: 'RMS norm'};
  const ROOF_NAMES = {forward: 'a copy', backward: 'a triad'};
  const GPU_FIELDS = ['median_us', 'p10_us', 'p90_us', 'cycles', 'operator_bytes', 'roof_us', 'roof_bytes'];

  // --- Numbers for a reader ---

  /** 1330.69 -> '1 331', 12.861 -> '12.9': at least `digits` significant digits, thin spaces between thousands. */
  function number(value, digits = 3) {
    const whole = Math.abs(value) >= 1 ? String(Math.trunc(Math.abs(value))).length : 1;
    const [left, right] = value.toFixed(Math.max(0, digits - whole)).split('.');
    const spaced = left.replace(/\B(?=(\d{3})+$)/g, '\u202f');
    return right ? `${spaced}.${right}` : spaced;
  }

  /** '29', and '0.8' below one percent. */
  function percent(value) {
    return value < 1 ? value.toFixed(1) : value.toFixed(0);
  }

  /** 'one line', '3 lines'. */
  function plural(count, one, many = `${one}s`) {
    return `${count} ${count === 1 ? one : many}`;
  }

  /** 'a, b and c'. */
  function listed(words) {
    return words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} and ${words[words.length - 1]}`;
  }

  // --- Rows ---

  /** The rows of chart_data.js as objects. */
  function expand(data) {
    return data.rows.map(values => {
      const row = Object.fromEntries(data.fields.map((name, place) => [name, values[place]]));
      const [kind, dtype, rows, cols, words] = data.problems[row.problem];
      const [gpu, date, commit, run, versions] = data.made[row.made];
      return finished({...row, kind, dtype, rows, cols, words, gpu: data.gpus[gpu].id, date, commit, run, versions});
    });
  }

  /** The same row with what follows from it: its key, its role, its share of the roof. */
  function finished(row) {
    const speed = row.operator_bytes / row.median_us;
    const share = row.roof_us ? 100 * speed / (row.roof_bytes / row.roof_us) : null;
    const role = CHAPTER.test(row.who) ? 'chapter' : row.who === 'dispatch' ? 'library'
      : row.who.startsWith('dispatch') ? 'another operator' : NO_CHAPTER.test(row.who) ? 'another kernel' : 'peer';
    return {...row, key: [`${row.rows}x${row.cols}`, row.words].filter(Boolean).join(','), role, share};
  }

  /** '1024 × 2048, residual, prenorm'. */
  function problemName(row) {
    return [`${row.rows} × ${row.cols}`, row.words].filter(Boolean).join(', ');
  }

  /** A chapter's rows of what the controls ask for, one source a problem: the chapters' own runs, or, where these lack
   *  the problem, the run that the chapters share with peers. copy00 stands beside chapters of forward only. */
  function dots(rows, asked) {
    const chapters = rows.filter(row => row.role === 'chapter' && row.gpu === asked.gpu && row.dtype === asked.dtype);
    const own = chapters.filter(row => row.direction === asked.direction && row.kind === asked.kind);
    const direct = new Set(own.filter(row => !row.run).map(row => row.key));
    const shown = own.filter(row => !row.run || !direct.has(row.key));
    const copies = asked.direction === 'forward'
      ? chapters.filter(row => row.direction === 'copy' && direct.has(row.key)) : [];
    return [...copies, ...shown];
  }

  /** The peers, and our library beside them, of what the controls ask for. */
  function contenders(rows, asked) {
    return rows.filter(row => ['peer', 'library'].includes(row.role) && row.run && row.gpu === asked.gpu
      && row.dtype === asked.dtype && row.direction === asked.direction && row.kind === asked.kind);
  }

  /** {value of `key`: its rows}, in the order in which the values appear. */
  function by(rows, key) {
    const lists = new Map();
    for (const row of rows) {
      const value = key(row);
      lists.set(value, [...(lists.get(value) || []), row]);
    }
    return lists;
  }

  /** The problems of some dots: [{value, label, points}], plain ones first, then by size. */
  function problems(shown) {
    const own = [...by(shown.filter(row => row.direction !== 'copy'), row => row.key).values()];
    own.sort(([a], [b]) => (a.words > b.words) - (a.words < b.words) || a.rows * a.cols - b.rows * b.cols || a.cols - b.cols);
    return own.map(list => ({value: list[0].key, label: problemName(list[0]), points: list.length}));
  }

  /** What can be drawn over the columns: [{value, label, points, holds(row)}]. Rows of one number and several widths, or
   *  tensors of one size in rows of several widths. `types`: the bytes of an element. */
  function series(shown, types) {
    const own = shown.filter(row => row.direction !== 'copy');
    const size = row => row.rows * row.cols * types[row.dtype];
    const families = [
      [2, 1, row => `rows-${row.rows}`, row => `${row.rows} rows`],
      [3, 3, row => `size-${size(row)}`, row => `${+(size(row) / 2 ** 20).toPrecision(4)} MiB a tensor`],
    ];
    return families.flatMap(([widths, heights, value, label]) => {
      const full = row => [value(row), row.words].filter(Boolean).join(',');
      return [...by(own, full)]
        .filter(([, list]) => count(list, row => row.cols) >= widths && count(list, row => row.rows) >= heights)
        .map(([name, list]) => ({value: name, label: [label(list[0]), list[0].words].filter(Boolean).join(', '),
          points: list.length, holds: row => full(row) === name}));
    });
  }

  /** How many different values a list has. */
  function count(list, key) {
    return new Set(list.map(key)).size;
  }

  /** The row with the least time. */
  function fastest(rows) {
    return rows.reduce((best, row) => (row.median_us < best.median_us ? row : best));
  }

  /** Of each chapter its mean part of the fastest's speed over all problems, 0 where it was not measured: Map by id. */
  function merits(shown) {
    const least = new Map([...by(shown, row => row.key)].map(([key, list]) => [key, fastest(list).median_us]));
    return new Map([...by(shown, row => row.who)].map(([who, list]) =>
      [who, list.reduce((sum, row) => sum + least.get(row.key) / row.median_us, 0) / least.size]));
  }

  // --- What there is to say ---

  /** Sentences on one problem: who is the fastest, how far the main line falls, how it stands beside the peers. */
  function aboutProblem(shown, peers, chapters) {
    const own = shown.filter(row => row.direction !== 'copy');
    const best = fastest(own);
    const roof = best.share === null ? '' : `, ${percent(best.share)} % of the roof (${ROOF_NAMES[best.direction]}, `
      + `${number(best.roof_us)} µs in the same run)`;
    const cycles = best.cycles ? `, ${number(best.cycles)} cycles` : '';
    const lead = own.length > 1 ? `is the fastest of ${own.length} chapters here` : 'is the only chapter measured here';
    const said = [`${best.who} ${lead}: ${number(best.median_us, 4)} µs${cycles}${roof}.`];
    const near = own.filter(row => row !== best && row.median_us < best.median_us * (1 + DRAW / 100));
    if (near.length) {
      said.push(`${listed(near.map(row => row.who))} ${near.length === 1 ? 'is' : 'are'} within ${DRAW} %, which is a draw.`);
    }
    const main = own.filter(row => (chapters.get(row.who) || {}).road === 'main line');
    if (main.length > 1 && fastest(main) !== main[0]) {
      said.push(`The main line falls from ${number(main[0].median_us)} µs (${main[0].who}) to `
        + `${number(fastest(main).median_us)} µs (${fastest(main).who}).`);
    }
    return [...said, ...againstPeers(peers, own)];
  }

  /** 'In one run of 2026-11-21 our library's choice, fwd06, took 10.21 µs and the fastest peer, …': a list of one or none. */
  function againstPeers(peers, own) {
    const others = peers.filter(row => row.role === 'peer');
    const library = peers.find(row => row.role === 'library');
    if (!others.length || !library) {
      return [];
    }
    const best = fastest(others);
    const run = own.some(row => row.run) ? 'In the same run' : `In another run (${library.date}), beside the peers,`;
    return [`${run} our library's choice, ${library.chosen}, took ${number(library.median_us, 4)} µs and the fastest peer, `
      + `${best.who}, ${number(best.median_us, 4)} µs: ours takes ${(library.median_us / best.median_us).toFixed(2)} of `
      + 'its time.'];
  }

  /** Sentences on many widths: who is the fastest at how many, and what the best of them reaches. */
  function aboutWidths(shown, peers) {
    const own = shown.filter(row => row.direction !== 'copy');
    const widths = [...by(own, row => row.key).values()];
    const wins = [...by(widths.map(fastest), row => row.who)].map(([who, list]) => [who, list.length]);
    wins.sort((a, b) => b[1] - a[1]);
    const first = `${wins[0][0]} is the fastest at ${wins[0][1]} of ${widths.length} widths`;
    const rest = wins.slice(1).map(([who, times]) => `${who} at ${times}`);
    const said = [`${listed([first, ...rest])}.`];
    const shares = own.filter(row => row.who === wins[0][0] && row.share !== null).map(row => row.share);
    if (shares.length) {
      said.push(`${wins[0][0]} reaches ${span(shares, percent)} % of the roof (${ROOF_NAMES[own[0].direction]}).`);
    }
    const ratios = [...by(peers, row => row.key).values()].filter(list => list.some(row => row.role === 'library')
      && list.some(row => row.role === 'peer')).map(list => list.find(row => row.role === 'library').median_us
      / fastest(list.filter(row => row.role === 'peer')).median_us);
    if (ratios.length) {
      said.push(`Beside the peers, in one run, our library's choice takes ${span(ratios, value => value.toFixed(2))} of the `
        + `fastest peer's time, at ${plural(ratios.length, 'width')}.`);
    }
    return said;
  }

  /** '85 to 99', or one number where both are the same. */
  function span(values, words) {
    const [low, high] = [words(Math.min(...values)), words(Math.max(...values))];
    return low === high ? low : `${low} to ${high}`;
  }

  /** Where the numbers come from: device, days, commits, versions, and what the older clock means. */
  function provenance(rows, device) {
    const said = key => [...new Set(rows.map(row => row[key]).filter(Boolean))].sort();
    const commits = said('commit');
    const parts = [device, listed(said('date')), commits.length ? `commit ${listed(commits)}` : '', ...said('versions')];
    const old = rows.some(row => row.clock === 1)
      ? ' Some were timed with the older clock, one flush before each launch: the shortest of these may be up to 5 % off.'
      : '';
    return `Median of launches with a cold L2. ${parts.filter(Boolean).join(', ')}.${old}`;
  }

  // --- The reader's own records ---

  /** Reads a text of one JSON object a line. Returns {rows, said}: rows of known GPUs only, and one or two sentences on
   *  what was read and what was left out. `name` is the file's; `data` is window.lncChart. */
  function read(text, name, data) {
    const lines = text.replace(/^\uFEFF/, '').split(/\r?\n/).map((line, at) => [line, at + 1])
      .filter(([line]) => line.trim());
    if (!lines.length) {
      return {rows: [], said: `${name} is empty.`};
    }
    const newest = new Map();
    const left = {wrong: [], emulated: 0, aside: 0, failed: 0, group: 0};
    for (const [line, at] of lines) {
      const entry = parsed(line);
      const fault = faultOf(entry, data);
      if (fault) {
        left.wrong.push(`line ${at} is not a record: ${fault}`);
      } else if (entry.backend === 'cpu') {
        left.emulated += 1;
      } else if (entry.passed === false || entry.median_us === undefined) {
        left.failed += 1;
      } else if ((entry.l2 || 'cold') !== 'cold' || (entry.host || 'hidden') !== 'hidden' || entry.late) {
        left.aside += 1;
      } else if ((entry.problem.options || {}).group) {
        left.group += 1;
      } else {
        const row = rowOf(entry, data);
        newest.set([row.who, row.direction, row.kind, row.dtype, row.key, row.gpu, row.run].join('|'), row);
      }
    }
    const rows = newestRuns([...newest.values()]);
    return {rows, said: reading(name, rows, left)};
  }

  /** The value of a line of JSON; undefined where it is none. */
  function parsed(line) {
    try {
      return JSON.parse(line);
    } catch (error) {
      return undefined;
    }
  }

  /** Why a value is no record of schema 2; empty for one that is. */
  function faultOf(entry, data) {
    const isObject = value => typeof value === 'object' && value !== null && !Array.isArray(value);
    const text = value => typeof value === 'string' && value !== '';
    const size = value => Number.isInteger(value) && value > 0;
    const time = value => Number.isFinite(value) && value > 0;
    if (entry === undefined) {
      return 'it is not JSON';
    }
    if (!isObject(entry)) {
      return 'it is not a JSON object';
    }
    if (entry.schema !== undefined && entry.schema !== SCHEMA) {
      return `its schema is ${JSON.stringify(entry.schema).slice(0, 20)}, and this chart reads schema ${SCHEMA}`;
    }
    for (const [field, there] of [['schema', entry.schema === SCHEMA], ['chapter', text(entry.chapter || entry.provider)],
      ['direction', text(entry.direction)], ['problem', isObject(entry.problem)]]) {
      if (!there) {
        return `no field "${field}"`;
      }
    }
    const {problem} = entry;
    const faults = [
      [!['forward', 'backward', 'copy'].includes(entry.direction), 'an unknown direction'],
      [!(problem.kind in KIND_NAMES), 'its problem has no known kind'],
      [!(problem.dtype in data.types), 'its problem has no known dtype'],
      [!size(problem.rows) || !size(problem.cols), 'its problem has no rows and cols'],
      [problem.options !== undefined && !isObject(problem.options), 'the options of its problem are no object'],
      [GPU_FIELDS.some(field => (entry[field] || 0) !== 0 && !time(entry[field])), 'a measurement is not a number above 0'],
      [entry.median_us !== undefined && !time(entry.median_us), 'its median_us is not a number above 0'],
      [entry.median_us !== undefined && !time(entry.operator_bytes), 'no field "operator_bytes"'],
      [Boolean(entry.roof_us) && !time(entry.roof_bytes), 'no field "roof_bytes"'],
    ];
    return (faults.find(([wrong]) => wrong) || [])[1] || '';
  }

  /** The row of one valid record. */
  function rowOf(entry, data) {
    const {problem} = entry;
    const short = name => (typeof entry[name] === 'string' ? entry[name] : '');
    const device = short('device') || 'an unknown device';
    return finished({who: entry.chapter || entry.provider, direction: entry.direction, kind: problem.kind,
      dtype: problem.dtype, rows: problem.rows, cols: problem.cols, words: words(problem.options || {}, data.options),
      gpu: `own:${device}`, device, date: short('date'), commit: short('commit'), run: short('run'),
      versions: '', chosen: short('chosen') || null, clock: entry.clock, median_us: entry.median_us,
      p10_us: entry.p10_us || entry.median_us, p90_us: entry.p90_us || entry.median_us, cycles: entry.cycles || null,
      operator_bytes: entry.operator_bytes, roof_us: entry.roof_us || null, roof_bytes: entry.roof_bytes || null});
  }

  /** 'dropout 0.1, residual, prenorm': the options that are not as usual. `known`: [name, usual, word], in order. */
  function words(options, known) {
    const unknown = Object.keys(options).filter(name => !known.some(([other]) => other === name)).sort();
    const own = [...known, ...unknown.map(name => [name, undefined, name])]
      .filter(([name, usual]) => name in options && options[name] !== usual);
    const said = own.map(([name, , word]) => {
      const value = options[name];
      if (name === 'residual') {
        return value === 'f32' ? 'residual f32' : 'residual';
      }
      return typeof value === 'boolean' ? word : `${word} ${typeof value === 'number' ? +value.toPrecision(6) : value}`;
    });
    return [...new Set(said)].join(', ');
  }

  /** Of rows measured beside peers those of the newest run that has our kernels and peers, problem by problem. */
  function newestRuns(rows) {
    const place = row => [row.gpu, row.direction, row.kind, row.dtype, row.key].join('|');
    const shared = [...by(rows.filter(row => row.run), place).values()].flatMap(list => {
      const whole = [...by(list, row => row.run)].filter(([, run]) => count(run, row => row.role === 'peer') === 2);
      whole.sort(([a], [b]) => (a < b) - (a > b));
      return whole.length ? whole[0][1] : [];
    });
    return [...rows.filter(row => !row.run && row.role === 'chapter'), ...shared];
  }

  /** What was read of a file, in a sentence or three. */
  function reading(name, rows, left) {
    const devices = [...new Set(rows.map(row => row.device))];
    const emulated = `${plural(left.emulated, 'record')} with emulated times (backend cpu), which never stand beside a GPU's`;
    const reasons = [
      left.wrong.length && `${plural(left.wrong.length, 'line')} (${left.wrong[0]})`,
      left.emulated && emulated,
      left.failed && `${plural(left.failed, 'record')} without a right result or a time`,
      left.aside && `${plural(left.aside, 'record')} of a warm L2 or with the host's time`,
      left.group && `${plural(left.group, 'record')} with the option group, which counts another thing in each chapter`,
    ].filter(Boolean);
    if (!rows.length) {
      if (reasons.length === 1 && left.wrong.length) {
        return `${name} holds no record: ${left.wrong[0]}. Nothing was changed.`;
      }
      return `${name} holds nothing to draw: ${listed(reasons) || 'no run has peers and our kernels'}. Nothing was changed.`;
    }
    const read = `${name}: ${plural(rows.length, 'record')} of ${listed(devices)} ${rows.length === 1 ? 'is' : 'are'} shown.`;
    return reasons.length ? `${read} Left out: ${listed(reasons)}.` : read;
  }

  return {KIND_NAMES, ROOF_NAMES, number, percent, listed, plural, expand, by, dots, contenders, problems, series, fastest,
    merits, problemName, aboutProblem, aboutWidths, provenance, read};
})();
