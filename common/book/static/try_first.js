// 'Try first': a lesson hides what comes after its idea, and shows it part by part as the reader asks for it.
'use strict';

(() => {
  const KEY = 'lnc-try-first'; // whether the reader wants it, for all lessons

  /** What the reader chose; false where the browser keeps nothing. */
  function wanted() {
    try {
      return localStorage.getItem(KEY) === 'yes';
    } catch {
      return false;
    }
  }

  function remember(choice) {
    try {
      localStorage.setItem(KEY, choice ? 'yes' : 'no');
    } catch {
      // It holds for this page alone, then.
    }
  }

  /** The parts of a lesson behind its idea. */
  function partsOf(article) {
    const parts = [...article.querySelectorAll('section > section')].filter(
      (part) => part.parentElement.parentElement === article);
    const idea = parts.findIndex((part) => part.id === 'the-idea');
    return idea < 0 ? [] : parts.slice(idea + 1); // chapter zero has no such part, and hides nothing
  }

  /** Behind each part but the last a button that shows the next. */
  function addButtons(parts) {
    return parts.map((part) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.className = 'next-part';
      button.textContent = `Show the next part: ${part.querySelector('h2').firstChild.textContent}`;
      part.before(button);
      return button;
    });
  }

  document.addEventListener('DOMContentLoaded', () => {
    const article = document.querySelector('article');
    const title = article && article.querySelector('h1');
    const parts = title ? partsOf(article) : [];
    if (parts.length === 0) {
      return;
    }
    const buttons = addButtons(parts);
    let hides = false;
    const control = document.createElement('button');
    control.type = 'button';
    const tells = document.createElement('span');
    const line = document.createElement('p');
    line.className = 'try-first';
    line.append(control, tells);
    title.after(line);

    /** Shows the first `count` parts, and the button of the next one. */
    function showParts(count) {
      parts.forEach((part, number) => part.classList.toggle('later', number >= count));
      buttons.forEach((button, number) => button.classList.toggle('now', number === count));
    }

    function set(hiding) {
      hides = hiding;
      control.textContent = hiding ? 'Show all' : 'Try first';
      tells.textContent = hiding ? ' What comes after the idea is hidden.' : ' Hide what comes after the idea.';
      showParts(hiding ? 0 : parts.length);
    }

    buttons.forEach((button, number) => button.addEventListener('click', () => {
      showParts(number + 1);
      const heading = parts[number].querySelector('h2');
      heading.tabIndex = -1;
      heading.focus();
    }));
    control.addEventListener('click', () => {
      remember(!hides);
      set(!hides);
    });

    /** A link into a hidden part shows all up to it. */
    function follow() {
      const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      const number = target ? parts.findIndex((part) => part.contains(target)) : -1;
      if (number >= 0 && parts[number].classList.contains('later')) {
        showParts(number + 1);
        target.scrollIntoView();
      }
    }

    set(wanted());
    follow();
    window.addEventListener('hashchange', follow);
  });
})();
