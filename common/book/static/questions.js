// The self-check: a choice answers at once, with why it is right or wrong. Every choice may be tried.
'use strict';

(() => {
  /** Makes a question of its two lists: the choices become radio buttons, with their explanations under them. */
  function makeQuestion(choices, explanations, number) {
    const fieldset = document.createElement('fieldset');
    fieldset.className = 'question';
    const legend = document.createElement('legend');
    legend.className = 'visually-hidden';
    legend.textContent = 'Choose one';
    choices.before(fieldset);
    fieldset.append(legend, choices);
    [...choices.children].forEach((item, position) => {
      const label = document.createElement('label');
      const input = document.createElement('input');
      input.type = 'radio';
      input.name = `question-${number}`;
      label.append(input, ...item.childNodes);
      const verdict = makeVerdict(explanations.children[position]);
      item.append(label, verdict);
      input.addEventListener('change', () => {
        for (const other of fieldset.querySelectorAll('.verdict')) {
          other.hidden = other !== verdict;
        }
      });
    });
  }

  /** What is said of a choice: its explanation, without the letter that both lists begin with. */
  function makeVerdict(explanation) {
    const verdict = document.createElement('div');
    verdict.className = `verdict ${explanation.classList.contains('right') ? 'right' : 'wrong'}`;
    verdict.setAttribute('role', 'status');
    verdict.hidden = true;
    const copy = explanation.cloneNode(true);
    copy.querySelector('strong').remove();
    verdict.append(...copy.childNodes);
    return verdict;
  }

  document.addEventListener('DOMContentLoaded', () => {
    document.querySelectorAll('ul.choices').forEach((choices, number) => {
      const explanations = choices.closest('section').querySelector('ul.explanations');
      makeQuestion(choices, explanations, number + 1);
    });
  });
})();
