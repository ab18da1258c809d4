// What the search ranks higher: the glossary and the lessons, before sources, laboratories and the house.
'use strict';

window.Scorer = {
  score: ([docname, , , , score]) => score + (docname === 'chapters/README' ? 20 : docname.endsWith('/notes') ? 10 : 0),
  // As the theme has them.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
