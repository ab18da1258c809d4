// Reads a file of the reader's own records, a JSON object a line as `make bench` writes it, for the chart.
'use strict';

window.lncFile = (() => {
  const {plural, listed, by, finished} = window.lncRows;
  const NUMBERS = ['median_us', 'p10_us', 'p90_us', 'cycles', 'operator_bytes', 'roof_us', 'roof_bytes'];

  /** Right records that the chart has no place for, and their words behind a number of records. */
  const ASIDE = [
    [entry => entry.backend === 'cpu', "with emulated times (backend cpu), which never stand beside a GPU's"],
    [entry => entry.passed === false || entry.median_us === undefined, 'without a right result or a time'],
    [entry => (entry.l2 || 'cold') !== 'cold' || (entry.host || 'hidden') !== 'hidden' || entry.late,
      "of a warm L2 or with the host's time"],
    [entry => (entry.problem.options || {}).group, 'with the option group, which counts another thing in each chapter'],
  ];

  /** Reads a text. Returns {rows, said}: what the chart can draw, and a sentence or two on what was read and what was left
   *  out. `name` is the file's; `data` is window.lncChart. */
  function read(text, name, data) {
    const [rows, wrong, left] = [new Map(), [], new Map()];
    const lines = text.replace(/^\uFEFF/, '').split('\n').map((line, at) => [line.trim(), at + 1])
      .filter(([line]) => line);
    for (const [line, at] of lines) {
      const entry = parsed(line);
      const fault = faultOf(entry, data);
      const [, aside] = (!fault && ASIDE.find(([holds]) => holds(entry))) || [];
      if (fault) {
        wrong.push(`line ${at} is not a record: ${fault}`);
      } else if (aside) {
        left.set(aside, (left.get(aside) || 0) + 1);
      } else {
        const row = rowOf(entry, data);
        rows.set(`${placeOf(row)}|${row.who}|${row.run}`, row);
      }
    }
    const shown = newestRuns([...rows.values()]);
    const aside = ASIDE.filter(([, words]) => left.has(words))
      .map(([, words]) => `${plural(left.get(words), 'record')} ${words}`);
    return {rows: shown, said: lines.length ? reading(name, shown, wrong, aside) : `${name} is empty.`};
  }

  /** The value of a line of JSON; undefined where it is none. */
  function parsed(line) {
    try {
      return JSON.parse(line);
    } catch (error) {
      return undefined;
    }
  }

  /** Why a value is no record of this schema, by the first field that is not as it must be; empty for one that is. */
  function faultOf(entry, data) {
    const isObject = value => typeof value === 'object' && value !== null && !Array.isArray(value);
    if (!isObject(entry)) {
      return entry === undefined ? 'it is not JSON' : 'it is not a JSON object';
    }
    const isOneOf = names => value => Object.hasOwn(names, value);
    const isSize = value => Number.isInteger(value) && value > 0;
    const isNumber = value => Number.isFinite(value) && value > 0;
    const {schema, chapter = entry.provider, direction, problem} = entry;
    const {kind, dtype, rows, cols, options} = isObject(problem) ? problem : {};
    const fields = [['schema', schema, value => value === data.schema, `, and this chart reads schema ${data.schema}`],
      ['chapter', chapter, value => typeof value === 'string' && value !== ''],
      ['direction', direction, value => value === 'copy' || isOneOf(data.norm.direction)(value)],
      ['problem', problem, isObject], ['kind', kind, isOneOf(data.norm.kind)], ['dtype', dtype, isOneOf(data.types)], ['rows', rows, isSize],
      ['cols', cols, isSize], ['options', options || {}, isObject],
      ...NUMBERS.map(name => [name, entry[name] || 1, isNumber, ', not a number above 0']),
      ...(entry.median_us === undefined ? [] : [['operator_bytes', entry.operator_bytes, isNumber]]),
      ...(entry.roof_us ? [['roof_bytes', entry.roof_bytes, isNumber]] : [])];
    const [name, value, , why = ''] = fields.find(([, given, holds]) => !holds(given)) || [''];
    return !name ? '' : value === undefined ? `no field "${name}"`
      : `its ${name} is ${JSON.stringify(value).slice(0, 20)}${why}`;
  }

  /** The row of one valid record. */
  function rowOf(entry, data) {
    const text = name => (typeof entry[name] === 'string' ? entry[name] : '');
    const {kind, dtype, rows, cols, options} = entry.problem;
    const device = text('device') || 'an unknown device';
    return finished({...Object.fromEntries(NUMBERS.map(name => [name, entry[name] || null])),
      who: entry.chapter || entry.provider, direction: entry.direction, kind, dtype, rows, cols,
      words: words(options || {}, data.options), gpu: `own:${device}`, device, date: text('date'), commit: text('commit'),
      run: text('run'), versions: '', chosen: text('chosen'), clock: entry.clock,
      p10_us: entry.p10_us || entry.median_us, p90_us: entry.p90_us || entry.median_us});
  }

  /** 'dropout 0.1, residual, prenorm': the options that are not as usual. `known`: [name, usual, word], in order. */
  function words(options, known) {
    const unknown = Object.keys(options).filter(name => !known.some(([other]) => other === name)).sort();
    return [...new Set([...known, ...unknown.map(name => [name, undefined, name])]
      .filter(([name, usual]) => name in options && options[name] !== usual).map(([name, , word]) => {
        const value = options[name];
        return name === 'residual' ? (value === 'f32' ? 'residual f32' : 'residual')
          : typeof value === 'boolean' ? word : `${word} ${typeof value === 'number' ? +value.toPrecision(6) : value}`;
      }))].join(', ');
  }

  /** Where a row stands in the chart, but for who it is. */
  function placeOf(row) {
    return [row.gpu, row.direction, row.kind, row.dtype, row.key].join('|');
  }

  /** Of rows measured beside peers those of the newest run that has our kernels and peers, problem by problem. */
  function newestRuns(rows) {
    const shared = [...by(rows.filter(row => row.run), placeOf).values()].flatMap(list =>
      [...by(list, row => row.run)].filter(([, run]) => new Set(run.map(row => row.role === 'peer')).size === 2)
        .reduce((newest, [name, run]) => (name > newest[0] ? [name, run] : newest), ['', []])[1]);
    return [...rows.filter(row => !row.run && row.role === 'chapter'), ...shared];
  }

  /** What was read of a file, in a sentence or two. */
  function reading(name, rows, wrong, aside) {
    const reasons = listed([...(wrong.length ? [`${plural(wrong.length, 'line')} (${wrong[0]})`] : []), ...aside]);
    if (rows.length) {
      const devices = listed([...new Set(rows.map(row => row.device))]);
      const read = `${name}: ${plural(rows.length, 'record')} of ${devices} ${rows.length === 1 ? 'is' : 'are'} shown.`;
      return reasons ? `${read} Left out: ${reasons}.` : read;
    }
    return wrong.length && !aside.length ? `${name} holds no record: ${wrong[0]}. Nothing was changed.`
      : `${name} holds nothing to draw: ${reasons || 'no run has peers and our kernels'}. Nothing was changed.`;
  }

  return {read};
})();
