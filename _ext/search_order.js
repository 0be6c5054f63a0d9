// The order of what search finds: chapters and the glossary explain a word, pages of the reference only contain it.
var Scorer = {
  score: ([page, , , , score]) => score + (/^(chapters|glossary)/.test(page) ? 1000 : page.startsWith("api") ? -1000 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// A page opened as a file may not fetch others, from which the summaries under what is found are cut.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
