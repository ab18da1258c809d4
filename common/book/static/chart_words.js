// What there is to say of the chart's rows: sentences below it, where its numbers come from, and the table's cells.
'use strict';

window.lncWords = (() => {
  const {number, percent, plural, listed, by, fastest, norms} = window.lncRows;
  const DRAW = 2; // percent: what is nearer than this to the fastest is named beside it
  const ROOF_NAMES = {forward: 'a copy', backward: 'a triad'};

  /** Sentences on one problem: who is the fastest, how far the main line falls, how it stands beside the peers. */
  function aboutProblem({dots, peers}) {
    const shown = norms(dots);
    const best = fastest(shown);
    const roof = best.share === null ? '' : `, ${percent(best.share)} % of the roof (${ROOF_NAMES[best.direction]}, `
      + `${number(best.roof_us)} µs in the same run)`;
    const cycles = best.cycles ? `, ${number(best.cycles)} cycles` : '';
    const lead = shown.length > 1 ? `is the fastest of ${shown.length} chapters here` : 'is the only chapter measured here';
    const near = shown.filter(row => row !== best && row.median_us < best.median_us * (1 + DRAW / 100)).map(row => row.who);
    const main = shown.filter(row => row.road === 'main line');
    const said = [`${best.who} ${lead}: ${number(best.median_us, 4)} µs${cycles}${roof}.`];
    if (near.length) {
      said.push(`${listed(near)} ${near.length === 1 ? 'is' : 'are'} within ${DRAW} %, which is a draw.`);
    }
    if (main.length > 1 && fastest(main) !== main[0]) {
      said.push(`The main line falls from ${number(main[0].median_us)} µs (${main[0].who}) to `
        + `${number(fastest(main).median_us)} µs (${fastest(main).who}).`);
    }
    const others = peers.filter(row => row.role === 'peer');
    const library = peers.find(row => row.role === 'library');
    if (others.length && library) {
      const run = shown.some(row => row.run) ? 'In the same run' : `In another run (${library.date}), beside the peers,`;
      const peer = fastest(others);
      said.push(`${run} our library's choice, ${library.chosen}, took ${number(library.median_us, 4)} µs and the fastest `
        + `peer, ${peer.who}, ${number(peer.median_us, 4)} µs: `
        + `ours takes ${(library.median_us / peer.median_us).toFixed(2)} of its time.`);
    }
    return said;
  }

  /** Sentences on many widths: who is the fastest at how many, and what the best of them reaches. */
  function aboutWidths({dots, peers}) {
    const shown = norms(dots);
    const widths = [...by(shown, row => row.key).values()];
    const wins = [...by(widths.map(fastest), row => row.who)].map(([who, list]) => [who, list.length]);
    const [[best, times], ...rest] = wins.sort((a, b) => b[1] - a[1]);
    const said = [`${listed([`${best} is the fastest at ${times} of ${widths.length} widths`,
      ...rest.map(([who, many]) => `${who} at ${many}`)])}.`];
    const shares = shown.filter(row => row.who === best && row.share !== null).map(row => row.share);
    if (shares.length) {
      said.push(`${best} reaches ${span(shares, percent)} % of the roof (${ROOF_NAMES[shown[0].direction]}).`);
    }
    const ratios = [...by(peers, row => row.key).values()].flatMap(list => {
      const [others, ours] = [list.filter(row => row.role === 'peer'), list.find(row => row.role === 'library')];
      return others.length && ours ? [ours.median_us / fastest(others).median_us] : [];
    });
    if (ratios.length) {
      const part = span(ratios, value => value.toFixed(2));
      said.push(`Beside the peers, in one run, our library's choice takes ${part} of the fastest peer's time, at `
        + `${plural(ratios.length, 'width')}.`);
    }
    return said;
  }

  /** '85 to 99', or one number where both are the same. */
  function span(values, words) {
    const [low, high] = [words(Math.min(...values)), words(Math.max(...values))];
    return low === high ? low : `${low} to ${high}`;
  }

  /** What the shapes mean. */
  function aboutShapes({state, dots, behind, peers, hasPeers, chapters, gpus}) {
    const isCycles = state.measure === 'cycles';
    const missing = [...chapters.values()].filter(chapter => chapter.direction === state.direction
      && !dots.some(row => row.who === chapter.id)).map(chapter => chapter.id);
    const copy = dots.some(row => row.direction === 'copy') ? ' Square: copy00, which only copies.' : '';
    const mine = behind.length ? `Filled: yours; hollow: ${gpus[0].device}, of another run.` : '';
    const contenders = peers.length ? 'Dashed: the peers, and ours (diamond) beside them, problem by problem in one run.'
      : hasPeers || isCycles ? '' : 'No peer was measured here.';
    const isWidth = state.view === 'width';
    return [isWidth ? 'In colour: the best of the main line here; grey: the other chapters.' : '',
      mine || (isWidth ? '' : `Filled: the main line; hollow: side roads.${copy}`), contenders,
      peers.length && !isWidth ? "× is a peer's time over ours." : '',
      isCycles ? 'Cycles are computed from the median; the roof and the peers have none.'
        : 'Thin upright lines: p10 to p90.',
      missing.length && !isWidth ? `Not measured here: ${listed(missing)}.` : ''].filter(Boolean).join(' ');
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

  /** What a dot or a peer's mark is called. */
  function whoOf(row) {
    return row.role === 'library' ? `our library, which chose ${row.chosen}` : row.who;
  }

  /** 'fwd02, 34.9 µs, 29 % of the roof': what a screen reader says of it. */
  function nameOf(row, state) {
    return [whoOf(row), state.view === 'width' ? `${row.cols} columns` : '', `${number(row.median_us)} µs`,
      state.measure === 'cycles' && row.cycles ? `${number(row.cycles)} cycles` : '',
      row.share === null ? '' : `${percent(row.share)} % of the roof`].filter(Boolean).join(', ');
  }

  /** The numbers of a row under their names, for its tooltip and for the table. */
  function factsOf(row) {
    return {'median µs': number(row.median_us, 4), 'p10 to p90': `${number(row.p10_us, 4)} to ${number(row.p90_us, 4)}`,
      'SM cycles': row.cycles ? number(row.cycles) : '–', '% of the roof': row.share === null ? '–' : percent(row.share),
      'roof µs': row.roof_us ? number(row.roof_us, 4) : '–', measured: [row.date, row.commit].filter(Boolean).join(' ')};
  }

  /** The table of one problem, as lists of cells, its head first: a row a chapter, then ours beside the peers. */
  function problemTable({dots, behind, peers, gpus}) {
    const library = peers.find(row => row.role === 'library');
    const lines = [...dots, ...peers].map(row => {
      const other = behind.find(one => one.who === row.who);
      const ratio = library && row.run === library.run ? (row.median_us / library.median_us).toFixed(2) : '–';
      return {who: row.role === 'library' ? `ours (${row.chosen})` : row.who, ...factsOf(row),
        ...(behind.length ? {[`${gpus[0].name}, µs`]: other ? number(other.median_us, 4) : '–'} : {}),
        ...(library ? {'time over ours, same run': ratio} : {})};
    });
    return [Object.keys(lines[0]), ...lines.map(line => Object.values(line))];
  }

  /** The table of many widths: a row a width, a column a chapter or peer, in what is measured. */
  function widthTable({dots, peers, state, data}) {
    const field = data.measured[state.measure];
    const rows = [...dots, ...peers].sort((a, b) => a.cols - b.cols);
    const names = [...new Set([...dots, ...peers].map(row => row.who))];
    const lines = [...by(rows, row => row.key).values()].map(list => [list[0].problem, ...names.map(who => {
      const row = list.find(one => one.who === who);
      return row ? number(row[field], 4) : '–';
    })]);
    return [[`M × N; ${data.measures[state.measure]}`, ...names.map(who => (who === 'dispatch' ? 'ours' : who))], ...lines];
  }

  return {ROOF_NAMES, aboutProblem, aboutWidths, aboutShapes, provenance, whoOf, nameOf, factsOf, problemTable, widthTable};
})();
