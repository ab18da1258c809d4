// The reading view: the source in one piece, and beside the line in view the remark that belongs to it.
//
// A remark stands beside its line; where the one before it is too long for that, it is pushed down. Where is the reader?
// At the line a third of the window down. There the column of remarks moves up by as much as its remark was pushed down,
// and evenly between two lines, so that the remark of the line in view is always beside it. Whoever wants less motion
// keeps the page as it is without a script: every remark beside its lines, and gaps in the source.
'use strict';

(() => {
  const WIDE = window.matchMedia('(min-width: 75em)');
  const STILL = window.matchMedia('(prefers-reduced-motion: reduce)');
  const READ_AT = 1 / 3; // of the window's height
  const COUNTED = 'Counted on 1024 × 2048 floats, all warps together: requests to device and shared memory; ' +
    'sectors of device memory that each takes; passes of shared memory lost to bank conflicts.';

  /** Where each group of remarks stands: the y of its line, and its own y in the column, both in the view. */
  function measure(reading) {
    const top = reading.getBoundingClientRect().top;
    let end = 0;
    return [...reading.querySelectorAll('.remarks')].map((remarks) => {
      const line = remarks.previousElementSibling.getBoundingClientRect().top - top;
      const place = { remarks, line, column: Math.max(line, end) };
      end = place.column + remarks.offsetHeight + 8;
      return place;
    });
  }

  /** How far the column of remarks is to be moved when the reader is at y: the remark of a line beside that line. */
  function shiftAt(places, y) {
    const next = places.findIndex((place) => place.line > y);
    if (next === 0) {
      return places[0].line - places[0].column;
    }
    const last = places.at(next === -1 ? -1 : next - 1);
    if (next === -1) {
      return last.line - last.column;
    }
    const part = (y - last.line) / (places[next].line - last.line);
    const from = last.line - last.column;
    return from + part * (places[next].line - places[next].column - from);
  }

  /** The place that the reader has come to, or null above the first. */
  function placeAt(places, y) {
    return places.filter((place) => place.line <= y + 1).at(-1) || null;
  }

  /** The lines of a remark: from its own to the next blank one, or to the next remark. */
  function linesOf(place) {
    const lines = [...place.remarks.parentElement.querySelectorAll('.line')];
    const blank = lines.findIndex((line) => line.querySelector('.code').textContent.trim() === '');
    return blank === -1 ? lines : lines.slice(0, Math.max(1, blank));
  }

  function start(reading) {
    let places = [];
    let current;
    let onPaper = false;

    function layOut() {
      if (onPaper) {
        return;
      }
      reading.classList.toggle('following', WIDE.matches && !STILL.matches);
      for (const remark of reading.querySelectorAll('.remark')) {
        remark.open = WIDE.matches || remark.open && remark.contains(document.activeElement);
      }
      places = measure(reading);
      for (const place of places) {
        place.remarks.style.setProperty('--top', `${place.column}px`);
      }
      const lowest = Math.max(0, ...places.map((place) => place.line + place.remarks.offsetHeight));
      reading.style.minHeight = reading.matches('.following') ? `${lowest}px` : '';
      follow();
    }

    function follow() {
      if (places.length === 0) {
        return;
      }
      const y = window.innerHeight * READ_AT - reading.getBoundingClientRect().top;
      reading.style.setProperty('--shift', `${shiftAt(places, y)}px`);
      mark(WIDE.matches ? placeAt(places, y) : null);
    }

    /** Marks the remark that the reader is at, and its lines. */
    function mark(place) {
      if (place === current) {
        return;
      }
      current = place;
      for (const marked of reading.querySelectorAll('.current')) {
        marked.classList.remove('current');
      }
      if (place) {
        [...place.remarks.children, ...linesOf(place)].forEach((element) => element.classList.add('current'));
      }
    }

    /** Scrolls so that a line is where the reader reads. */
    function goTo(line) {
      const y = line.getBoundingClientRect().top + window.scrollY - window.innerHeight * READ_AT;
      window.scrollTo({ top: y + 2, behavior: STILL.matches ? 'auto' : 'smooth' });
    }

    /** Leads from a mark in the source to its remark, and takes the focus along. */
    function goToRemark(remark) {
      remark.open = true;
      goTo(WIDE.matches ? document.getElementById(`line-${remark.dataset.line}`) : remark);
      remark.querySelector('summary').focus({ preventScroll: true });
      history.replaceState(null, '', `#${remark.id}`);
    }

    /** Leads from a remark to its line. Where remarks fold, their heads open and close them instead. */
    function goToLine(remark) {
      const line = document.getElementById(`line-${remark.dataset.line}`);
      goTo(line);
      line.querySelector('a.mark').focus({ preventScroll: true });
    }

    reading.addEventListener('click', (event) => {
      const link = event.target.closest('a.mark');
      const head = event.target.closest('.remark summary');
      const remark = link && document.getElementById(link.getAttribute('href').slice(1));
      if (remark) {
        event.preventDefault();
        goToRemark(remark);
      } else if (head && WIDE.matches) {
        event.preventDefault();
        goToLine(head.parentElement);
      }
    });

    /** On paper every remark is open, beside its lines. */
    window.addEventListener('beforeprint', () => {
      onPaper = true;
      reading.classList.remove('following');
      reading.querySelectorAll('.remark').forEach((remark) => remark.setAttribute('open', ''));
    });
    window.addEventListener('afterprint', () => {
      onPaper = false;
      layOut();
    });
    window.addEventListener('scroll', follow, { passive: true });
    window.addEventListener('resize', layOut);
    WIDE.addEventListener('change', layOut);
    STILL.addEventListener('change', layOut);
    new ResizeObserver(layOut).observe(reading);
    layOut();
    openTarget(reading);
  }

  /** A link from elsewhere to a remark opens it. */
  function openTarget(reading) {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.matches('.remark') && reading.contains(target)) {
      target.open = true;
      target.scrollIntoView();
    }
  }

  /** The switch of the counts in the margin. */
  function addSwitch(reading) {
    const button = document.querySelector('.counts-switch');
    if (button) {
      const head = document.createElement('p');
      head.className = 'counts-head';
      head.textContent = COUNTED;
      const labels = document.createElement('pre');
      labels.className = 'counts-head';
      labels.innerHTML = '<span class="line"><span class="number"></span><span class="count"><span>requests</span>' +
        '<span>each</span><span>conflicts</span></span></span>';
      reading.prepend(head, labels);
      button.addEventListener('click', () => {
        const on = button.getAttribute('aria-pressed') !== 'true';
        button.setAttribute('aria-pressed', String(on));
        reading.classList.toggle('with-counts', on);
      });
    }
  }

  document.addEventListener('DOMContentLoaded', () => {
    for (const reading of document.querySelectorAll('.reading')) {
      start(reading);
      addSwitch(reading);
    }
  });
})();
