// A formula wider than the page is scrolled, so the Tab key stops at it; one that fits is no stop.
function reach(formula) {
  if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
  else formula.removeAttribute("tabindex");
}
const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => reach(target)));
window.addEventListener("load", () => window.MathJax?.startup?.promise.then(() => {
  for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
    reach(formula);
    widths.observe(formula);
  }
}));
