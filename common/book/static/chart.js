// The chart of the progression, in <div id="progression" data-root="../../">: every measured time of the chapters, chosen
// by controls, drawn, and said once more in sentences and in a table. The state is in the address behind #chart?, so a view
// can be linked. chart_data.js, chart_records.js and chart_drawing.js come before this file.
'use strict';

(() => {
  const {KIND_NAMES, number, percent, listed, by} = window.lncRecords;
  const {MEASURES, DIRECTIONS, html, endName, byWidth, drawProgression, drawWidths} = window.lncDrawing;
  const MARK = '#chart?';
  const VIEWS = {progression: 'chapter by chapter', width: 'by width'};

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

  /** Goes through the controls in their order. Each offers what has data under those before it; a value without data
   *  gives way to one that has some, so a chart is never empty. Returns the state, `choices` ({name: [{value, label,
   *  enabled}]}), `changes` (a sentence for each value that gave way), `hasPeers`, and the rows to draw: `dots`, `peers`,
   *  and those `behind`. */
  function settle(model, wished) {
    const settled = {state: {...wished}, choices: {}, changes: []};
    const {state} = settled;
    settleNorm(model, settled);
    const possible = window.lncRecords.dots(model.rows, state);
    const holds = settlePlace(model, settled, possible);
    const here = possible.filter(holds);
    offer(settled, 'measure', Object.entries(MEASURES).map(([value, {label, of}]) =>
      ({value, label, enabled: here.some(row => row.direction !== 'copy' && of(row) !== null)})));

    const drawn = rows => rows.filter(row => holds(row) && MEASURES[state.measure].of(row) !== null);
    const order = row => [...model.chapters.keys(), row.who].indexOf(row.who);
    const peers = drawn(window.lncRecords.contenders(model.rows, state));
    const hasPeers = peers.some(row => row.role === 'peer');
    const behind = state.gpu.startsWith('own:') ? {...state, gpu: model.gpus[0].id} : {...state, gpu: ''};
    return {...settled, hasPeers, peers: hasPeers && state.peers === 'on' ? peers : [],
      dots: drawn(possible).sort((a, b) => order(a) - order(b) || a.who.localeCompare(b.who)),
      behind: drawn(window.lncRecords.dots(model.rows, behind))};
  }

  /** Settles one control, see settle(): `offered` are its choices, `preferred` comes in place of a value without data,
   *  `says` makes the sentence of the old and the new one. */
  function offer({state, choices, changes}, name, offered, preferred = '', says = gaveWay) {
    choices[name] = offered;
    const old = offered.find(choice => choice.value === state[name]);
    if (!(old && old.enabled)) {
      const next = offered.find(one => one.enabled && one.value === preferred) || offered.find(one => one.enabled);
      if (state[name]) {
        changes.push(says(old ? old.label : placeName(state[name]), next.label));
      }
      state[name] = next.value;
    }
  }

  /** Settles the GPU, the direction, the kind and the type. */
  function settleNorm({rows, gpus, data}, settled) {
    const own = rows.filter(row => row.role === 'chapter' && row.direction !== 'copy');
    const asked = {};
    const next = (name, names, says) => {
      const enabled = value => own.some(row => row[name] === value
        && Object.entries(asked).every(([other, there]) => row[other] === there));
      offer(settled, name, names.map(([value, label]) => ({value, label, enabled: enabled(value)})), '', says);
      asked[name] = settled.state[name];
    };
    next('gpu', gpus.map(gpu => [gpu.id, gpu.name]), gpuGaveWay);
    next('direction', Object.entries(DIRECTIONS));
    next('kind', Object.entries(KIND_NAMES));
    next('dtype', Object.keys(data.types).map(name => [name, name]));
  }

  /** Settles the view, and the problem or the rows that it shows; returns whether a row belongs to it. */
  function settlePlace({data}, settled, possible) {
    const {state} = settled;
    const series = window.lncRecords.series(possible, data.types);
    const problems = window.lncRecords.problems(possible);
    const views = Object.entries(VIEWS).map(([value, label]) =>
      ({value, label, enabled: value !== 'width' || series.length > 0}));
    offer(settled, 'view', views, '', (old, next) =>
      `The view ${old} needs two widths, and one was measured here: this is the view ${next}.`);
    const [name, places] = state.view === 'width' ? ['series', series] : ['problem', problems];
    offer(settled, name, places.map(one => ({...one, enabled: true})), mostPoints(places));
    return state.view === 'width' ? series.find(one => one.value === state.series).holds
      : row => row.key === state.problem;
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
      ? `The page keeps no file: to see ${old.slice(4)} again, choose its file again. This shows ${next}.`
      : gaveWay(old, next);
  }

  /** The value of the choice with the most dots. */
  function mostPoints(offered) {
    return offered.reduce((most, one) => (one.points > most.points ? one : most), {points: 0}).value;
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
      return ['In colour: the best of the main line here; grey: the other chapters.', own, contenders, whiskers]
        .filter(Boolean).join(' ');
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
    const [first, ...others] = cells;
    return html('tr', {}, html('th', {scope: tag === 'th' ? 'col' : 'row'}, first),
      ...others.map(cell => html(tag, {scope: tag === 'th' ? 'col' : null}, cell)));
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
    return [[name, chapter ? chapter.title : ''].filter(Boolean).join(' · '),
      `${row.dtype}, ${window.lncRecords.problemName(row)}`,
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
      this.peers.checked = model.hasPeers && state.peers === 'on';
      this.peers.disabled = !model.hasPeers;
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
      const links = [...this.plot.querySelectorAll('[data-row]')];
      const again = held && links.find(one => one.getAttribute('data-row') === held);
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
        reader.addEventListener('load', () =>
          this.take(window.lncRecords.read(reader.result, file.name, this.model.data)));
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
    if (location.hash.startsWith(MARK)) {
      mount.scrollIntoView();
    }
  }

  if (document.readyState === 'loading') {
    document.addEventListener('DOMContentLoaded', begin);
  } else {
    begin();
  }
})();
