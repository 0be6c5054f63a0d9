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

// What is found twice on one page stands once, and formulas in summaries are read as words.
const GREEK = { alpha: "α", beta: "β", gamma: "γ", delta: "δ", Delta: "Δ", theta: "θ", lambda: "λ", omega: "ω", pi: "π", tau: "τ", le: "≤", ge: "≥", ne: "≠", cdot: "·", times: "×", ldots: "…", dots: "…", sum: "Σ", infty: "∞" };
function plainFormula(text) {
  return text.replace(/\\[()[\]]/g, "").replace(/\\([A-Za-z]+)/g, (_, name) => GREEK[name] ?? "").replace(/\\[,;!]/g, " ");
}
document.addEventListener("DOMContentLoaded", () => {
  const found = document.getElementById("search-results");
  if (!found) return;
  new MutationObserver(() => {
    const seen = new Set();
    for (const item of found.querySelectorAll("li")) {
      const page = item.querySelector("a")?.href.split(/[#?]/)[0];
      if (seen.has(page)) item.remove();
      seen.add(page);
      const texts = document.createTreeWalker(item, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const plain = plainFormula(texts.currentNode.data);
        if (plain !== texts.currentNode.data) texts.currentNode.data = plain;
      }
    }
    const said = found.querySelector(".search-summary");
    const words = said?.textContent.replace(/\d+ page\(s\)/, `${found.querySelectorAll("li").length} pages`);
    if (said && words !== said.textContent) said.textContent = words;
  }).observe(found, { childList: true, subtree: true });
});
