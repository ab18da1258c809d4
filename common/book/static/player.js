// The kernel moves: plays the trace of one block beside the kernel's source.
//
// <div class="player" data-trace="fwd02"></div> is filled from window.lncTraces.fwd02. player_model.js replays,
// player_words.js tells, player_stage.js draws; here are the source, the buttons and the keys.
'use strict';

(() => {
  const player = window.lncPlayer;
  const SPEEDS = [[0.25, '¼×'], [0.5, '½×'], [1, '1×'], [2, '2×'], [4, '4×']];
  const EVENT_MS = 900; // that an event stands, at 1×
  const FAST = 2; // from this speed on nothing is read aloud while it plays
  const FEW_KEYS = 10; // events that shift and an arrow go

  function element(tag, classes, attributes = {}, content = '') {
    const made = document.createElement(tag);
    made.className = classes;
    for (const [name, value] of Object.entries(attributes)) {
      made.setAttribute(name, value);
    }
    made.textContent = content;
    return made;
  }

  // Signs of 16 × 16, as not every font has them.
  const SIGNS = {
    first: 'M2 2h2v12H2zM14 2v12L5 8z',
    back: 'M12 2v12L3 8z',
    play: 'M4 2v12l9-6z',
    pause: 'M3 2h3.5v12H3zM9.5 2H13v12H9.5z',
    on: 'M3 2v12l7-6zM11 2h2v12h-2z',
    last: 'M2 2v12l9-6zM12 2h2v12h-2z',
  };

  function showSign(on, label, sign) {
    on.setAttribute('aria-label', label);
    on.title = label;
    on.innerHTML = '<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">'
      + `<path d="${SIGNS[sign]}"/></svg>`;
  }

  function signButton(label, sign, act) {
    const made = element('button', 'player-button', { type: 'button' });
    showSign(made, label, sign);
    made.addEventListener('click', act);
    return made;
  }

  /** 'bwd06::sum_partials<float>' as 'sum_partials' */
  function kernelName(launch) {
    return launch.kernel.replace(/<.*/, '').replace(/^.*::/, '');
  }

  /** The launch to begin with: the chapter's own that has most events. */
  function mainLaunch(trace) {
    const weight = ({ kernel, events }) => events.length + (kernel.startsWith(`${trace.chapter}::`) ? 1e6 : 0);
    const weights = trace.launches.map((launch) => (launch.events.length ? weight(launch) : -1));
    return weights.indexOf(Math.max(...weights));
  }

  /** '4 rows × 128 columns of f32' */
  function problemOf(trace) {
    const { rows, cols, dtype } = trace.problem;
    return `${player.plural(rows, 'row')} × ${player.plural(cols, 'column')} of ${dtype}`;
  }

  // --- The source ---

  class Source {
    constructor(trace) {
      this.trace = trace;
      const name = `${trace.source.path}, as it runs`;
      this.box = element('div', 'player-source', { tabindex: '0', role: 'region', 'aria-label': name });
      this.helper = element('p', 'player-helper');
      this.lines = trace.source.lines.map((line, i) => {
        const row = element('div', 'player-line');
        const [code, comment] = [line.replace(/\/\/.*/, ''), (/\/\/.*/.exec(line) || [''])[0]];
        row.append(element('span', 'player-number', { 'aria-hidden': 'true' }, String(i + 1)), code);
        if (comment) {
          row.append(element('span', 'player-comment', {}, comment));
        }
        return row;
      });
      this.box.append(...this.lines);
    }

    /** Shows a place in the code; `still`: nothing of it runs, something happens meanwhile. */
    show(code, still) {
      const line = code ? code.line : 0;
      const row = this.lines[line - 1];
      if (this.shown !== row) {
        this.shown?.classList.remove('player-runs');
        this.shown?.removeAttribute('aria-current');
        this.shown = row;
        row?.setAttribute('aria-current', 'true');
        this.lines.forEach((each, i) => each.classList.toggle('player-near', Math.abs(i + 1 - line) <= 7));
        this.keepInView();
      }
      row?.classList.add('player-runs');
      row?.classList.toggle('player-still', still);
      this.helper.textContent = code && code.helper ? `${code.helper}: ${code.text || ''}` : '';
    }

    /** Scrolls the box, never the page. */
    keepInView() {
      if (!this.shown) {
        return;
      }
      const top = this.shown.offsetTop; // the box is what it is measured from
      const room = this.box.clientHeight;
      if (top < this.box.scrollTop + 24 || top > this.box.scrollTop + room - 48) {
        this.box.scrollTop = top - room / 3;
      }
      this.box.scrollLeft = 0;
    }
  }

  // --- The player ---

  class Player {
    constructor(place, trace) {
      this.place = place;
      this.trace = trace;
      this.speed = 1;
      this.timer = null;
      this.source = new Source(trace);
      this.build();
      this.take(mainLaunch(trace));
      new ResizeObserver(() => this.resized()).observe(this.panels.now);
      place.addEventListener('keydown', (event) => this.key(event));
    }

    // What stands on the page.

    build() {
      const { trace, place } = this;
      place.setAttribute('role', 'group');
      place.setAttribute('tabindex', '0');
      place.setAttribute('aria-label', `${trace.chapter}, event by event`);
      this.problem = element('p', 'player-problem');
      this.says = element('p', 'player-says', { 'aria-live': 'polite' });
      this.totals = element('p', 'player-totals');
      this.stage = element('div', 'player-stage');
      this.panels = {};
      for (const name of ['now', 'totals', 'barriers', 'ring', 'warps', 'memory']) {
        this.panels[name] = name === 'totals' ? this.totals : element('section', `player-panel player-${name}`);
        this.stage.append(this.panels[name]);
      }
      const left = element('div', 'player-left');
      left.append(this.source.box, this.source.helper);
      const body = element('div', 'player-body');
      body.append(left, this.stage);
      const help = element('p', 'player-help', {}, 'Keys, while the focus is in here: space plays and pauses, '
        + `← and → go an event, with shift ${FEW_KEYS}, Home and End to the ends.`);
      const caveat = element('p', 'player-order', {}, this.caveat());
      place.replaceChildren(this.problem, this.controls(), this.says, body, help, caveat);
      if (!document.querySelector('.player-definitions')) {
        place.insertAdjacentHTML('beforeend', player.DEFINITIONS);
      }
    }

    controls() {
      const bar = element('div', 'player-controls', { role: 'group', 'aria-label': 'Controls' });
      this.playing = signButton('Play', 'play', () => this.toggle());
      const moves = element('div', 'player-buttons');
      moves.append(
        signButton('First event', 'first', () => this.go(0)),
        signButton('One event back', 'back', () => this.go(this.at - 1)),
        this.playing,
        signButton('One event on', 'on', () => this.go(this.at + 1)),
        signButton('Last event', 'last', () => this.go(this.last)),
      );
      this.slider = element('input', 'player-slider', { type: 'range', min: '0', step: '1', 'aria-label': 'Event' });
      this.slider.addEventListener('input', () => this.go(Number(this.slider.value)));
      this.position = element('span', 'player-position');
      bar.append(moves, this.slider, this.position, this.speeds(), this.jumps());
      return bar;
    }

    speeds() {
      const label = element('label', 'player-speed', {}, 'Speed ');
      const select = element('select', '', {});
      select.append(...SPEEDS.map(([value, name]) => {
        const option = element('option', '', { value }, name);
        option.selected = value === 1;
        return option;
      }));
      select.addEventListener('change', () => this.setSpeed(Number(select.value)));
      label.append(select);
      return label;
    }

    jumps() {
      const jumps = element('div', 'player-jumps', { role: 'group', 'aria-label': 'On to' });
      const line = (event) => (event.code === undefined ? null : this.run.launch.code[event.code].line);
      const tests = {
        'next line': (event, now) => line(event) !== null && line(event) !== line(now),
        'next warp': (event, now) => event.warp !== undefined && event.warp !== now.warp,
        'next barrier': (event) => event.do === 'barrier' || (event.do === 'go on' && event.since !== undefined),
      };
      this.jumpButtons = Object.entries(tests).map(([name, test]) => {
        const made = element('button', '', { type: 'button' }, name);
        made.addEventListener('click', () => this.jump(test));
        return { made, test };
      });
      jumps.append(...this.jumpButtons.map(({ made }) => made));
      return jumps;
    }

    /** What a reader must know of all that is shown. */
    caveat() {
      const { trace } = this;
      const ended = trace.ended ? ` ${trace.ended[0].toUpperCase()}${trace.ended.slice(1)}.` : '';
      const fault = trace.fault ? ` The kernel did not end: ${trace.fault}` : '';
      return trace.order + ended + fault;
    }

    tellProblem() {
      const { trace, run } = this;
      const { launch } = run;
      const some = `the first ${launch.warps > 1 ? `${launch.warps} ` : ''}of ${launch.warps_in_all} warps`;
      const warps = launch.warps_in_all > launch.warps ? some : player.plural(launch.warps, 'warp');
      const left = trace.left_out ? `${trace.left_out} ` : '';
      this.problem.textContent = `${problemOf(trace)}: block ${trace.block} of ${launch.blocks}, ${warps}. ${left}`;
      if (trace.launches.length < 2) {
        return;
      }
      const label = element('label', 'player-launch', {}, 'Kernel ');
      const select = element('select', '', {});
      trace.launches.forEach((each, i) => {
        const option = element('option', '', { value: i }, `${i + 1}. ${kernelName(each)}`);
        option.selected = each === launch;
        option.disabled = !each.events.length;
        select.append(option);
      });
      select.addEventListener('change', () => {
        this.take(Number(select.value));
        this.problem.querySelector('select').focus();
      });
      label.append(select);
      this.problem.append(label);
    }

    // Where it stands.

    take(number) {
      this.pause();
      this.run = player.read(this.trace, number);
      this.last = this.run.events.length - 1;
      this.state = undefined;
      this.slider.max = String(this.last);
      this.tellProblem();
      for (const { made, test } of this.jumpButtons) {
        made.hidden = !this.run.events.some((event) => test(event, this.run.events[0]));
      }
      this.go(0);
    }

    get at() {
      return this.state.at;
    }

    /** Goes to an event, or as near as there is one. */
    go(index) {
      const to = Math.max(0, Math.min(this.last, index));
      this.state = player.stateAt(this.run, to, this.state);
      if (to === this.last) {
        this.pause();
      }
      this.draw();
    }

    /** The next event of a kind; -1 where none is ahead. */
    next(test) {
      const { events } = this.run;
      return events.findIndex((event, i) => i > this.at && test(event, events[this.at]));
    }

    jump(test) {
      const found = this.next(test);
      this.go(found < 0 ? this.last : found);
    }

    draw() {
      const { run, state } = this;
      const event = run.events[state.at];
      this.slider.value = String(state.at);
      for (const { made, test } of this.jumpButtons) {
        made.disabled = this.next(test) < 0;
      }
      this.position.textContent = `event ${state.at + 1} of ${this.last + 1}`;
      this.slider.setAttribute('aria-valuetext', this.position.textContent);
      const sentence = player.say(run, state);
      this.says.setAttribute('aria-live', this.timer !== null && this.speed >= FAST ? 'off' : 'polite');
      this.says.textContent = sentence;
      this.source.show(run.launch.code[state.code], event.code === undefined);
      this.drawStage();
    }

    drawStage() {
      this.width = Math.floor(this.panels.now.clientWidth) || 600;
      for (const [name, html] of Object.entries(player.parts(this.run, this.state, this.width))) {
        this.panels[name].hidden = !html;
        this.panels[name].innerHTML = html;
      }
    }

    resized() {
      if (Math.floor(this.panels.now.clientWidth) !== this.width) {
        this.drawStage();
        this.source.keepInView();
      }
    }

    // Playing.

    play() {
      if (this.at === this.last) {
        this.go(0);
      }
      this.timer = window.setInterval(() => this.go(this.at + 1), EVENT_MS / this.speed);
      showSign(this.playing, 'Pause', 'pause');
    }

    pause() {
      window.clearInterval(this.timer);
      this.timer = null;
      showSign(this.playing, 'Play', 'play');
    }

    toggle() {
      if (this.timer === null) {
        this.play();
      } else {
        this.pause();
      }
    }

    setSpeed(speed) {
      this.speed = speed;
      if (this.timer !== null) {
        this.pause();
        this.play();
      }
    }

    /** A key, while the focus is in the player; what it means to a button, a list or the source it keeps. */
    key(event) {
      const { target } = event;
      const arrow = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey || target.matches('select, .player-source')) {
        return;
      }
      if (event.key === ' ' && !target.matches('button')) {
        this.toggle();
      } else if (arrow) {
        this.pause();
        this.go(this.at + arrow * (event.shiftKey ? FEW_KEYS : 1));
      } else if (event.key === 'Home' || event.key === 'End') {
        this.pause();
        this.go(event.key === 'Home' ? 0 : this.last);
      } else {
        return;
      }
      event.preventDefault();
    }
  }

  function fill(place) {
    const name = place.dataset.trace;
    const trace = (window.lncTraces || {})[name];
    if (trace) {
      place.player = new Player(place, trace);
    } else {
      const why = `No trace of ${name} was made: \`make book\` builds it where GCC is.`;
      place.replaceChildren(element('p', 'player-missing', {}, why));
    }
  }

  function fillAll() {
    document.querySelectorAll('.player').forEach(fill);
  }

  if (document.readyState === 'complete') {
    fillAll();
  } else {
    document.addEventListener('DOMContentLoaded', fillAll);
  }
})();
