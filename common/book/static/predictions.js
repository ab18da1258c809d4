// Predict as a form: fields for what a lesson asks, its values once the reader has committed, and the page 'Your
// predictions' with all of them. The values are those of predictions_data.js, see prediction_page.py.
'use strict';

(() => {
  const KEY = 'lnc-predictions'; // {chapter: {version, answers: {problem: {bytes, speed, time}}}}, in MB and µs
  const SAME = 1.05; // times that differ by a smaller factor are about the same
  const SPEEDS = { faster: 'faster', same: 'about the same', slower: 'slower' };
  const UNIT = { bytes: 'MB', time: 'µs' };
  const UNITS = { bytes: { kb: 1e-3, mb: 1, gb: 1e3 }, time: { ns: 1e-3, us: 1, µs: 1, ms: 1e3, s: 1e6 } };
  const { version, chapters } = window.lncPredictions;
  const root = document.documentElement.dataset.content_root;
  let kept = {};

  /** What the browser has kept; what this page has been told, where it keeps nothing. */
  function load() {
    try {
      kept = JSON.parse(localStorage.getItem(KEY)) || {};
    } catch {
      // The same as before.
    }
    return kept;
  }

  function save(all) {
    kept = all;
    try {
      localStorage.setItem(KEY, JSON.stringify(all));
    } catch {
      // It holds for this page alone, then.
    }
  }

  const isCurrent = (own) => Boolean(own && own.version === version && own.answers);

  /** An answer as it was kept; undefined where there is none that makes sense. */
  function saidOf(answers, problem, quantity) {
    const said = (answers[problem.name] || {})[quantity];
    return (quantity === 'speed' ? Object.hasOwn(SPEEDS, said) : typeof said === 'number' && said > 0) ? said : undefined;
  }

  /** Adds what a lesson's link has brought: from file:// Firefox keeps a memory of its own for each page. */
  function addBrought() {
    try {
      const brought = JSON.parse(decodeURIComponent(location.hash.slice(1)));
      const own = chapters.filter(({ id }) => isCurrent(brought[id])).map(({ id }) => [id, brought[id]]);
      save({ ...load(), ...Object.fromEntries(own) });
      history.replaceState(null, '', location.pathname);
    } catch {
      // It has brought nothing.
    }
  }

  function fill(element, attributes, children) {
    Object.entries(attributes).filter(([, value]) => value !== false)
      .forEach(([name, value]) => element.setAttribute(name, value));
    element.append(...children);
    return element;
  }

  const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const shape = (tag, attributes, ...children) => fill(
    document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

  // --- Numbers ---

  /** MB or µs of '16.8', '2.15 GB', '1 040 µs', '1,040', '11,9'; NaN of all that is not a number above 0. */
  function read(text, units) {
    const plain = text.toLowerCase().replace(/\s/g, '').replace('μ', 'µ'); // a Greek letter, and the sign of micro
    const thousands = /^[1-9]\d{0,2}(,\d{3})+(?!\d)/.test(plain);
    const dotted = thousands ? plain.replaceAll(',', '') : plain.replace(',', '.');
    const [, digits, unit] = /^(\d*\.?\d+)([a-zµ]*)$/.exec(dotted) || [];
    const value = Number(digits) * (unit ? units[unit] : 1);
    return value > 0 ? value : NaN;
  }

  const number = (value) => (value < 1000 ? String(Number(value.toPrecision(3)))
    : String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u202f'));
  const apart = (one, other) => Math.max(one / other, other / one);
  const factor = (one, other) => (apart(one, other) < 10 ? apart(one, other).toFixed(1) : number(apart(one, other)));
  const amount = (value, quantity) => `${number(value)}\u00a0${UNIT[quantity]}`;

  function speedOf(problem) {
    const gain = problem.before / problem.measured;
    return apart(gain, 1) < SAME ? 'same' : gain > 1 ? 'faster' : 'slower';
  }

  /** What a problem asks: the quantity, its label, and the value that an answer is compared with. */
  function askedOf(problem) {
    const speed = problem.before && speedOf(problem);
    return [{ quantity: 'bytes', label: 'Bytes to and from device memory', truth: problem.bytes },
            { quantity: 'speed', label: `Faster or slower than ${problem.parent}`, truth: speed },
            { quantity: 'time', label: 'Time', truth: problem.model && problem.measured }].filter((one) => one.truth);
  }

  /** 'The model says 11.7 µs. You said 20 µs; measured 11.9 µs: a factor of 1.7.' */
  function verdict(problem, { quantity, truth }, said) {
    if (quantity === 'speed') {
      const measured = `measured ${SPEEDS[truth]}, a factor of ${apart(problem.before, problem.measured).toFixed(2)}.`;
      const right = said === truth ? 'Right' : 'Not so';
      return said ? `${right}: you said ${SPEEDS[said]}; ${measured}` : `You said nothing; ${measured}`;
    }
    const model = quantity === 'time' ? `The model says ${amount(problem.model, quantity)}. ` : '';
    const is = `${quantity === 'time' ? 'measured' : 'the kernel has to move'} ${amount(truth, quantity)}`;
    return model + (said ? `You said ${amount(said, quantity)}; ${is}: a factor of ${factor(said, truth)}.`
      : `You said nothing; ${is}.`);
  }

  // --- The form of a lesson ---

  function makeField(problem, at, { quantity, label }, answers) {
    const said = answers ? saidOf(answers, problem, quantity) : undefined;
    const both = { name: `${quantity}-${at}`, disabled: answers ? '' : false };
    if (quantity !== 'speed') {
      const value = said ? number(said) : '';
      return make('label', {}, `${label}, ${UNIT[quantity]}`,
        make('input', { ...both, inputmode: 'decimal', autocomplete: 'off', value }));
    }
    const options = Object.entries(SPEEDS).map(([value, words]) => make(
      'option', { value, selected: said === value ? '' : false }, value === 'same' ? `${words}, within 5 %` : words));
    return make('label', {}, `${label}?`, make('select', both, make('option', { value: '' }, '–'), ...options));
  }

  /** {problem: {quantity: answer}} of a form; null, and says why, where a field has no number or all are empty. */
  function answersOf(form, problems, fault) {
    const answers = {};
    let wrong = null;
    problems.forEach((problem, at) => {
      answers[problem.name] = {};
      for (const { quantity } of askedOf(problem)) {
        const field = form.elements[`${quantity}-${at}`];
        const value = quantity === 'speed' ? field.value : read(field.value, UNITS[quantity]);
        const bad = field.value.trim() !== '' && !value;
        field.setAttribute('aria-invalid', bad);
        wrong = wrong || (bad ? field : null);
        if (value) {
          answers[problem.name][quantity] = value;
        }
      }
    });
    const empty = Object.values(answers).every((one) => Object.keys(one).length === 0);
    if (!wrong && !empty) {
      return answers;
    }
    fault.textContent = wrong ? `‘${wrong.value}’ is not a number above 0. Write 11.9, or 1.2 ms, or 2.1 GB.`
      : 'Fill in at least one field.';
    (wrong || form.querySelector('input, select')).focus();
    return null;
  }

  function makeResults(problems, answers) {
    return problems.flatMap((problem) => [
      make('p', {}, make('strong', {}, problem.name)),
      make('ul', {}, ...askedOf(problem).map((asked) => make(
        'li', {}, `${asked.label}. ${verdict(problem, asked, saidOf(answers, problem, asked.quantity))}`)))]);
  }

  /** Shows the form, or what the reader has committed; where that is new, it takes the focus. */
  function showLesson(host, isNew) {
    const { id, problems } = chapters.find((one) => one.id === host.dataset.chapter);
    const own = load()[id];
    const answers = isCurrent(own) ? own.answers : null;
    const fault = make('p', { role: 'alert' });
    const fields = problems.map((problem, at) => make('fieldset', {}, make('legend', {}, problem.name),
      ...askedOf(problem).map((asked) => makeField(problem, at, asked, answers))));
    const form = make('form', { class: 'prediction', 'aria-label': 'Your prediction' }, ...fields, fault,
      make('button', {}, answers ? 'Predict again' : 'Commit your prediction'));
    const old = 'Your earlier prediction was made for other measurements than this book’s, so it is left out. ';
    const brings = answers && location.protocol === 'file:' ? `#${encodeURIComponent(JSON.stringify({ [id]: own }))}` : '';
    const results = make('div', { class: 'results', tabindex: -1 }, ...(answers ? makeResults(problems, answers) : []),
      make('p', {}, own && !answers ? old : '',
        make('a', { href: `${root}common/book/predictions.html${brings}` }, 'All your predictions')));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      const said = answers ? null : answersOf(form, problems, fault);
      if (answers || said) {
        const all = { ...load(), [id]: { version, answers: said } };
        if (!said) {
          delete all[id];
        }
        save(all);
        showLesson(host, true);
      }
      if (said) {
        host.closest('section').parentElement.querySelectorAll('[id^="predict"] > details, #measured > details')
          .forEach((one) => { one.open = true; });
      }
    });
    host.replaceChildren(form, results);
    if (isNew) {
      (answers ? results : form.querySelector('input, select')).focus();
    }
  }

  // --- The page of all predictions ---

  /** What the reader has said in this version, one answer a row. */
  function rowsOf(all) {
    return chapters.filter(({ id }) => isCurrent(all[id])).flatMap((chapter) => chapter.problems.flatMap(
      (problem) => askedOf(problem).map((asked) => ({
        ...asked, chapter, problem, said: saidOf(all[chapter.id].answers, problem, asked.quantity),
        model: asked.quantity === 'time' ? problem.model : asked.quantity === 'bytes' ? problem.bytes : undefined,
        measured: asked.quantity === 'time' ? problem.measured : undefined })))).filter((row) => row.said);
  }

  /** How many times too high or too low each number is, on a log scale. */
  function draw(rows, width) {
    const [left, right, step, top] = [Math.min(260, width * 0.4), 12, 22, 24];
    const bottom = top + rows.length * step;
    const most = Math.max(10, ...rows.map((row) => Math.max(apart(row.said, row.truth), apart(row.model, row.truth))));
    const x = (ratio) => left + (width - left - right) * (1 + Math.log(ratio) / Math.log(most)) / 2;
    const ends = [[1 / most, 'start', `÷ ${number(most)}`], [most, 'end', `× ${number(most)}`]];
    const ticks = [...ends, [1, 'middle', 'exact']].map(([ratio, anchor, words]) => shape('g', {},
      shape('line', { x1: x(ratio), x2: x(ratio), y1: top, y2: bottom }),
      shape('text', { x: x(ratio), y: top - 8, 'text-anchor': anchor }, words)));
    const marks = rows.map(({ chapter, problem, quantity, said, model, truth }, at) => {
      const y = top + (at + 0.5) * step;
      const name = left < 260 ? '' : `: ${problem.name.split(', ').slice(0, 2).join(', ')}`; // no room on a phone
      const dots = [shape('circle', { cx: x(model / truth), cy: y, r: 6, class: 'model' }),
                    shape('circle', { cx: x(said / truth), cy: y, r: 4, class: 'said' })];
      const square = shape('rect', { x: x(said / truth) - 4, y: y - 4, width: 8, height: 8, class: 'said' });
      return shape('g', {}, shape('text', { x: 0, y: y + 4 }, `${chapter.id}, ${UNIT[quantity]}${name}`),
        ...(quantity === 'time' ? dots : [square]));
    });
    return shape('svg', { width, height: bottom + 4, role: 'img',
      'aria-label': 'How far each prediction is from the truth. The table has the same numbers.' }, ...ticks, ...marks);
  }

  function makeTable(rows) {
    const heads = ['Lesson', 'Problem', 'Asked', 'You', 'Model', 'Measured', 'Factor'];
    const head = heads.map((text) => make('th', { scope: 'col' }, text));
    const body = rows.map(({ chapter, problem, quantity, label, said, model, measured, truth }) => {
      const texts = quantity === 'speed' ? [SPEEDS[said], '', SPEEDS[truth], said === truth ? 'right' : 'not so']
        : [...[said, model, measured].map((value) => (value ? amount(value, quantity) : '')), factor(said, truth)];
      return make('tr', {}, make('td', {}, make('a', { href: root + chapter.href }, chapter.id)),
        ...[problem.name, label, ...texts].map((text) => make('td', {}, text)));
    });
    return make('div', { class: 'table-wrapper', tabindex: 0, role: 'region', 'aria-label': 'All predictions' },
      make('table', { class: 'docutils' }, make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...body)));
  }

  function download(rows) {
    const predictions = rows.map(({ chapter, problem, quantity, said, model, measured, truth }) => ({
      chapter: chapter.id, problem: problem.name, quantity, unit: UNIT[quantity], predicted: said, model,
      measured: quantity === 'speed' ? truth : measured }));
    const text = `${JSON.stringify({ version, predictions }, null, 2)}\n`;
    const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
    make('a', { href: url, download: 'predictions.json' }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  function summary(rows) {
    const lessons = new Set(rows.map((row) => row.chapter.id)).size;
    const times = rows.filter((row) => row.quantity === 'time').map((row) => apart(row.said, row.truth));
    const half = times.sort((a, b) => a - b)[Math.ceil(times.length / 2) - 1];
    return `Answers: ${rows.length}, in ${lessons} of ${chapters.length} lessons.`
      + (half ? ` At least half of your times are within a factor of ${factor(half, 1)} of the measured ones.` : '');
  }

  function showAll(host) {
    const all = load();
    const rows = rowsOf(all);
    const old = Object.keys(all).filter((id) => !isCurrent(all[id]));
    const numbers = rows.filter((row) => row.quantity !== 'speed');
    const chart = make('div', {});
    const redraw = () => chart.replaceChildren(draw(numbers, Math.max(280, chart.clientWidth)));
    const button = (words, act) => {
      const made = make('button', { type: 'button' }, words);
      made.addEventListener('click', act);
      return made;
    };
    const clear = () => {
      if (window.confirm('Clear all your predictions? They cannot be brought back.')) {
        save({});
        showAll(host);
        host.firstChild.focus();
      }
    };
    const none = 'No predictions yet: commit one in a lesson, under ‘Predict’. If you have, follow its link ‘All your '
      + 'predictions’: some browsers keep a separate memory for each page of a book that was opened from a file.';
    const key = 'A dot is your time and a ring the model’s, over the measured time. A square is your bytes, over those '
      + 'that the kernel has to move.';
    host.replaceChildren(make('p', { tabindex: -1 }, rows.length ? summary(rows) : none));
    if (old.length) {
      host.append(make('p', {}, `Left out, because they were made for other measurements: ${old.join(', ')}.`));
    }
    if (rows.length) {
      host.append(...(numbers.length ? [chart, make('p', {}, key)] : []), makeTable(rows),
        button('Export as JSON', () => download(rows)), ' ');
    }
    host.append(...(rows.length || old.length ? [button('Clear all', clear)] : []));
    redraw();
    window.onresize = redraw;
  }

  document.addEventListener('DOMContentLoaded', () => {
    document.querySelectorAll('.predict').forEach((host) => showLesson(host, false));
    document.querySelectorAll('#predictions').forEach((host) => {
      addBrought();
      showAll(host);
    });
  });
})();
