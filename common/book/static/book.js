// On every page: what a word of the glossary means, while the pointer or the focus is on a link to it; and the theme's
// menus by keyboard.
'use strict';

(() => {
  const GLOSSARY = /(^|\/)chapters\/README\.html#(.+)$/;
  let shown = null;

  /** The anchor of the glossary that a link leads to, or null. */
  function anchorOf(link) {
    const found = GLOSSARY.exec(link.href);
    return found && window.lncGlossary && window.lncGlossary[found[2]] ? found[2] : null;
  }

  function hide() {
    if (shown) {
      shown.link.removeAttribute('aria-describedby');
      shown.box.remove();
      shown = null;
    }
  }

  /** Puts the meaning under its link, inside the window. */
  function show(link) {
    hide();
    const box = document.createElement('div');
    box.className = 'meaning';
    box.id = 'meaning';
    box.setAttribute('role', 'tooltip');
    const [term, meaning] = window.lncGlossary[anchorOf(link)];
    const word = document.createElement('strong');
    word.textContent = `${term}: `;
    box.append(word, meaning);
    document.body.append(box);
    const place = link.getBoundingClientRect();
    const left = Math.min(place.left, document.documentElement.clientWidth - box.offsetWidth - 16);
    box.style.left = `${Math.max(8, left) + window.scrollX}px`;
    box.style.top = `${place.bottom + 6 + window.scrollY}px`;
    link.setAttribute('aria-describedby', 'meaning');
    shown = { link, box };
  }

  /** The theme opens its menus by labels of hidden boxes, which take no focus: here they do, and Enter or space clicks. */
  function reachByKeyboard(label, name) {
    const box = document.getElementById(label.htmlFor);
    label.tabIndex = 0;
    label.setAttribute('role', 'button');
    label.setAttribute('aria-label', name || box.getAttribute('aria-label'));
    label.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' || event.key === ' ') {
        event.preventDefault();
        label.click();
      }
    });
  }

  document.addEventListener('DOMContentLoaded', () => {
    const menus = { '.nav-overlay-icon': 'Contents of the book', '.toc-overlay-icon': 'Contents of this page',
                    '.sidebar-tree .toctree-checkbox ~ label': '' };
    for (const [selector, name] of Object.entries(menus)) {
      document.querySelectorAll(selector).forEach((label) => reachByKeyboard(label, name));
    }
    for (const link of document.querySelectorAll('article a[href]')) {
      if (anchorOf(link)) {
        link.classList.add('word');
        link.addEventListener('mouseenter', () => show(link));
        link.addEventListener('focus', () => show(link));
        link.addEventListener('mouseleave', hide);
        link.addEventListener('blur', hide);
      }
    }
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        hide();
      }
    });
  });
})();
