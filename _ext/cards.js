// A card beside a link within the book: what a term, a citation, an equation, a figure or a claim says. The cards are loaded
// when a link is first pointed at, and closed by Escape; the pointer may move onto a card.
(() => {
  "use strict";
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href).href;
  const here = document.currentScript.src;
  let card, link, timer, loading;

  const load = () => (loading ??= new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = new URL("cards_data.js", here).href;
    script.onload = () => resolve(window.possymCards);
    script.onerror = () => resolve({});
    document.head.append(script);
  }));
  const key = (anchor) => anchor.href.startsWith(root) && anchor.hash && decodeURIComponent(anchor.href.slice(root.length)).replace(/\?[^#]*/, "");

  function hide() {
    clearTimeout(timer);
    card?.remove();
    link?.removeAttribute("aria-describedby");
    card = link = null;
  }

  async function show(anchor) {
    const text = (await load())[key(anchor)];
    if (!text || !anchor.matches(":hover, :focus-visible")) return;
    hide();
    link = anchor;
    card = document.createElement("div");
    card.id = "possym-card-shown";
    card.className = "possym-hover";
    card.setAttribute("role", "tooltip");
    card.innerHTML = text;
    document.body.append(card);
    anchor.setAttribute("aria-describedby", card.id);
    card.addEventListener("mouseleave", () => leave());
    card.addEventListener("mouseenter", () => clearTimeout(timer));
    if (window.MathJax?.typesetPromise) await window.MathJax.typesetPromise([card]).catch(() => {});
    if (card) place();
  }

  function place() {
    const box = link.getClientRects()[0] ?? link.getBoundingClientRect(), own = card.getBoundingClientRect();
    const below = box.bottom + own.height + 12 < innerHeight || box.top < own.height + 12;
    card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
    card.style.top = `${below ? box.bottom + 6 : box.top - own.height - 6}px`;
    card.style.visibility = "visible";
  }

  function leave() {
    clearTimeout(timer);
    timer = setTimeout(hide, 180);
  }

  const within = (event) => event.target.closest?.(".bd-article a[href*='#']:not(.headerlink)");
  document.addEventListener("mouseover", (event) => {
    const anchor = within(event);
    if (!anchor || anchor === link || !key(anchor)) return;
    clearTimeout(timer);
    timer = setTimeout(() => show(anchor), 120);
  });
  document.addEventListener("mouseout", (event) => within(event) && leave());
  document.addEventListener("focusin", (event) => {
    const anchor = within(event);
    if (anchor && anchor.matches(":focus-visible") && key(anchor)) show(anchor);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("scroll", () => card && hide(), { passive: true });
})();
