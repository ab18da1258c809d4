// The chart of the progression, in <div id="progression" data-root="../../">: every measured time of the chapters, chosen
// by controls, drawn, and said once more in sentences and in a table. The state is in the address behind #chart?, so a
// view can be linked. chart_data.js, vega.js and the other chart_*.js come before this file.
'use strict';

(() => {
  const {finished, settle} = window.lncRows;
  const {aboutProblem, aboutWidths, aboutShapes, provenance, problemTable, widthTable} = window.lncWords;
  const MARK = '#chart?';
  const START = {view: 'progression', direction: 'forward', kind: 'layer', dtype: 'f32', problem: '', series: '',
    measure: 'time', peers: 'on', gpu: '', marked: ''};
  const select = (name, words) => `<label class="lnc-field" data-of="${name}"><span>${words}</span>
    <select name="${name}"></select></label>`;
  const radio = name => ([value, label]) => `<label><input type="radio" name="${name}" value="${value}">${label}</label>`;
  const radios = (name, names) => `<fieldset class="lnc-field" data-of="${name}"><legend>${name}</legend>
    <div>${Object.entries(names).map(radio(name)).join('')}</div></fieldset>`;
  const PAGE = data => `<form class="lnc-controls" aria-label="What the chart shows">
      ${radios('direction', data.norm.direction)}${radios('view', data.views)}${select('measure', 'what is measured')}
      ${select('kind', 'norm')}${select('dtype', 'type')}${select('problem', 'problem, M × N')}${select('series', 'rows')}
      ${select('gpu', 'GPU')}<label class="lnc-field lnc-check"><input type="checkbox" name="peers">peers</label></form>
    <p class="lnc-changes" role="status"></p>
    <figure><div class="lnc-plot"></div><figcaption><p class="lnc-said" aria-live="polite"></p><p class="lnc-key"></p>
      <p class="lnc-source"></p></figcaption></figure>
    <div class="lnc-marks" role="group" aria-label="Highlight chapters"></div>
    <details class="lnc-numbers"><summary>The numbers</summary>
      <div class="lnc-table" tabindex="0" role="region" aria-label="The numbers"></div></details>
    <div class="lnc-drop"><label>Drop your local.jsonl here, or choose it:
      <input type="file" accept=".jsonl,.json,.txt" multiple></label>
      <p>make bench writes it. It is read on this page and goes nowhere.</p>
      <p class="lnc-file-said" role="status"></p></div>`;

  /** An element with attributes and children; a string becomes text. */
  function html(tag, attributes, ...children) {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(...children);
    return element;
  }

  /** The state that the address holds; what it lacks is as at the start. */
  function stateOf(hash, problem) {
    const asked = new URLSearchParams(hash.startsWith(MARK) ? hash.slice(MARK.length) : '');
    return Object.fromEntries(Object.entries({...START, problem})
      .map(([name, usual]) => [name, asked.get(name) || usual]));
  }

  /** A <table> of lists of cells; the first list is its head, the first cell of each is its row's. */
  function tableOf([head, ...lines]) {
    return html('table', {}, html('thead', {}, html('tr', {}, ...head.map(cell => html('th', {scope: 'col'}, cell)))),
      html('tbody', {}, ...lines.map(([first, ...cells]) =>
        html('tr', {}, html('th', {scope: 'row'}, first), ...cells.map(cell => html('td', {}, cell))))));
  }

  /** The chart in its place on the page. */
  class Chart {
    constructor(mount, data) {
      this.own = [];
      this.model = {data, root: mount.dataset.root, gpus: data.gpus,
        chapters: new Map(data.chapters.map(chapter => [chapter.id, chapter]))};
      this.committed = data.rows.map(values =>
        this.known(finished(Object.fromEntries(data.fields.map((name, at) => [name, values[at]])))));
      this.model.rows = this.committed;
      mount.classList.add('lnc-chart');
      mount.innerHTML = PAGE(data);
      this.part = name => mount.querySelector(`.lnc-${name}`);
      [this.form, this.plot, this.details] = ['controls', 'plot', 'numbers'].map(this.part);
      this.listen();
      this.show(stateOf(location.hash, data.start));
    }

    /** A row with what the map knows of its chapter. */
    known(row) {
      const {title = '', road = '', href = ''} = this.model.chapters.get(row.who) || {};
      return {...row, title, road, href};
    }

    listen() {
      this.form.addEventListener('submit', event => event.preventDefault());
      this.form.addEventListener('change', ({target: {name, value, checked}}) =>
        this.choose({[name]: name !== 'peers' ? value : checked ? 'on' : 'off'}));
      this.part('marks').addEventListener('click', ({target}) => {
        const [who, marked] = [target.textContent, this.model.state.marked.split(' ').filter(Boolean)];
        const others = marked.filter(one => one !== who);
        if (target.matches('button')) {
          this.choose({marked: (others.length < marked.length ? others : [...marked, who]).join(' ')});
        }
      });
      this.part('drop').addEventListener('change', event => this.readFiles([...event.target.files])); // a dropped one too
      this.plot.addEventListener('keydown', event => this.move(event));
      this.plot.addEventListener('focusin', event => this.point(event.target, 'pointermove'));
      this.plot.addEventListener('focusout', event => this.point(event.target, 'mouseout'));
      new ResizeObserver(() => this.plot.clientWidth !== this.width && this.draw()).observe(this.plot);
      window.addEventListener('hashchange', () =>
        location.hash.startsWith(MARK) && this.show(stateOf(location.hash, this.model.data.start)));
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
      this.show({...this.model.state, ...changed});
      const {view, series, problem, marked, ...state} = this.model.state;
      const place = view === 'width' ? {series} : {problem};
      history.replaceState(null, '', MARK + new URLSearchParams({view, ...place, ...state, ...(marked && {marked})}));
    }

    /** Settles what is wished, and shows it: the controls, the drawing, the words, the table. */
    show(wished) {
      const {model} = this;
      const {choices, changes, ...settled} = settle(model, wished);
      Object.assign(model, settled);
      const {state, dots, peers, gpus, hasPeers} = model;
      this.fill(choices);
      const isWidth = state.view === 'width';
      this.part('changes').textContent = changes.join(' ');
      this.part('said').textContent = (isWidth ? aboutWidths : aboutProblem)(model).join(' ');
      this.part('key').textContent = aboutShapes(model);
      this.part('source').textContent = provenance([...dots, ...peers], gpus.find(one => one.id === state.gpu).device);
      this.part('table').replaceChildren(tableOf((isWidth ? widthTable : problemTable)(model)));
      this.form.elements.peers.checked = hasPeers && state.peers === 'on';
      this.form.elements.peers.disabled = !hasPeers;
      this.draw();
    }

    /** Fills the controls with what can be chosen, and makes a button for each chapter, which highlights it. */
    fill(choices) {
      const {state, dots} = this.model;
      for (const field of this.form.querySelectorAll('[data-of]')) {
        const name = field.dataset.of;
        const offered = choices[name] || [];
        field.hidden = !offered.length;
        field.querySelectorAll('select').forEach(control => {
          control.replaceChildren(...offered.map(({value, label, enabled}) =>
            html('option', {value, disabled: !enabled}, label)));
          control.disabled = offered.length < 2;
        });
        field.querySelectorAll('input').forEach(input => {
          input.disabled = !offered.find(one => one.value === input.value).enabled;
        });
        this.form.elements[name].value = state[name];
      }
      const names = [...new Set(dots.map(row => row.who))];
      const held = document.activeElement.textContent;
      const buttons = names.map(who =>
        html('button', {type: 'button', ariaPressed: String(state.marked.split(' ').includes(who))}, who));
      this.part('marks').replaceChildren(html('span', {}, 'highlight'), ...buttons);
      buttons.filter(button => button.textContent === held).forEach(button => button.focus());
    }

    /** Draws the chart as wide as its place; a dot that had the focus has it again. */
    draw() {
      this.width = this.plot.clientWidth;
      const place = html('div');
      const mine = window.lncDrawing.draw(place, this.model, Math.max(260, this.width)).then(drawing => {
        if (this.drawn !== mine) { // another was begun in the meantime
          drawing.finalize();
          return;
        }
        const held = this.plot.contains(document.activeElement) && document.activeElement.dataset.row;
        this.plot.replaceChildren(place);
        this.dots().filter(dot => dot.dataset.row === held).forEach(dot => dot.focus());
      });
      this.drawn = mine;
    }

    dots() {
      return [...this.plot.querySelectorAll('[data-row]')];
    }

    /** Left and right go from dot to dot; Escape hides the tooltip. */
    move(event) {
      const dots = this.dots();
      const next = dots[dots.indexOf(event.target) + {ArrowRight: 1, ArrowLeft: -1}[event.key]];
      if (event.key === 'Escape') {
        this.point(event.target, 'mouseout');
      } else if (next && dots.includes(event.target)) {
        event.preventDefault();
        next.focus();
      }
    }

    /** Tells Vega of a pointer at a mark that has the focus, so that its tooltip comes and goes. */
    point(mark, name) {
      const {x, y, width, height} = mark.getBoundingClientRect();
      const middle = {clientX: x + width / 2, clientY: y + height / 2};
      mark.firstChild.dispatchEvent(new PointerEvent(name, {bubbles: true, ...middle}));
    }

    /** Reads files of the reader's own, one after another; says what came of each. */
    async readFiles(files) {
      const said = [];
      for (const file of files) {
        const read = await file.text().then(text => window.lncFile.read(text, file.name, this.model.data),
          () => ({rows: [], said: `${file.name} cannot be read.`}));
        said.push(read.said);
        this.take(read.rows.map(row => this.known(row)));
      }
      this.part('file-said').textContent = said.join(' ');
    }

    /** Takes rows of a file: they replace those of the same problem; their GPU is shown. */
    take(rows) {
      const [first] = window.lncRows.norms(rows);
      const name = row => [row.gpu, row.who, row.direction, row.kind, row.dtype, row.key, Boolean(row.run)].join('|');
      if (first) {
        this.own = [...new Map([...this.own, ...rows].map(row => [name(row), row])).values()];
        this.model.rows = [...this.committed, ...this.own];
        this.model.gpus = [...this.model.data.gpus, ...[...new Map(this.own.map(row => [row.gpu, row.device]))]
          .map(([id, device]) => ({id, name: `yours: ${device}`, device}))];
        this.choose({gpu: first.gpu});
      }
    }
  }

  const mount = document.getElementById('progression');
  if (window.lncChart.rows.length) {
    window.lncChartView = new Chart(mount, window.lncChart);
    if (location.hash.startsWith(MARK)) {
      mount.scrollIntoView();
    }
  } else {
    mount.textContent = 'There are no measurements to draw.';
  }
})();
