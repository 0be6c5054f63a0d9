// Words of .possym-swap change places by dragging, clicking or by keyboard; attention is computed from the logits of each
// head, content by place. Until the reader touches it, the first swap is shown once, where motion is welcome.
(() => {
  "use strict";
  for (const root of document.querySelectorAll(".possym-swap:not(.swap-ready)")) start(root);

  function start(root) {
    const heads = Array.from(root.querySelectorAll(".swap-head"), (panel) => ({
      panel,
      name: panel.dataset.name,
      logits: JSON.parse(panel.dataset.logits),
      own: Number(panel.dataset.own),
      stage: panel.querySelector(".swap-stage"),
      bars: Array.from(panel.querySelectorAll(".swap-bar")), // by place
      words: Array.from(panel.querySelectorAll(".swap-word")), // by content
    }));
    const names = heads[0].words.map((word) => word.textContent);
    const said = root.querySelector("[role=status]"), again = root.querySelector(".swap-again");
    const first = said.innerHTML;
    let order = names.map((_, place) => place); // the content at each place
    let picked = null, touched = false;

    const attention = ({ logits, own }, contents) => {
      const weights = [...contents.map((content, place) => Math.exp(logits[content][place])), Math.exp(own)];
      const sum = weights.reduce((a, b) => a + b);
      return weights.map((weight) => weight / sum);
    };
    const percent = (share) => (share >= 0.05 ? `${Math.round(100 * share)}\u00a0%` : "");

    function draw() {
      for (const head of heads) {
        const shares = attention(head, order);
        head.bars.forEach((bar, place) => {
          bar.style.setProperty("--at", place);
          bar.style.setProperty("--share", shares[place].toFixed(4));
          bar.firstElementChild.textContent = percent(shares[place]);
        });
        head.words.forEach((word, content) => {
          const place = order.indexOf(content);
          word.style.setProperty("--at", place);
          word.setAttribute("aria-label", `${names[content]}, place ${place + 1} of ${names.length}`);
          word.setAttribute("aria-pressed", content === picked);
        });
      }
      again.hidden = order.every((content, place) => content === place);
    }

    // A bar goes with a word where that explains the new attention better than staying does.
    function swap(one, other) {
      const before = order.slice();
      [order[one], order[other]] = [order[other], order[one]];
      const told = [];
      for (const head of heads) {
        const old = attention(head, before), now = attention(head, order);
        const stays = Math.abs(now[one] - old[one]) + Math.abs(now[other] - old[other]);
        const goes = Math.abs(now[one] - old[other]) + Math.abs(now[other] - old[one]);
        if (goes < stays) [head.bars[one], head.bars[other]] = [head.bars[other], head.bars[one]];
        const stake = Math.abs(old[one] - old[other]) + Math.abs(now[one] - now[other]);
        const what = Math.min(stays, goes) > 0.25 * stake ? "does neither" : goes < stays ? "follows the word" : "stays at the place";
        told.push(stake > 0.04 ? what : "");
        [[order[other], "swap-over-the-top"], [order[one], "swap-underneath"]].forEach(([content, name]) => {
          const word = head.words[content];
          word.classList.add(name);
          word.addEventListener("animationend", () => word.classList.remove(name), { once: true });
        });
      }
      const [left, right] = [names[before[one]], names[before[other]]];
      const words = told
        .map((what, index) => what && `${heads[index].name}: attention ${what}`)
        .filter(Boolean)
        .map((words, index) => (index ? words[0].toLowerCase() + words.slice(1) : words));
      picked = null;
      draw();
      const moved = `${left} and ${right} have changed places.`;
      said.textContent = words.length ? `${moved} ${words.join("; ")}.` : `${moved} No head tells the two apart.`;
    }

    function placeUnder(head, x, y) {
      const box = head.stage.getBoundingClientRect();
      if (x < box.left || x > box.right || y < box.top - 20 || y > box.bottom + 30) return null;
      const place = Math.floor(((x - box.left) / box.width) * (names.length + 1));
      return place < names.length ? place : null;
    }

    function choose(content) {
      if (picked === null) picked = content;
      else if (picked === content) picked = null;
      else return swap(order.indexOf(picked), order.indexOf(content));
      draw();
      if (picked !== null) said.textContent = `${names[picked]} is picked. Choose the word to swap it with.`;
    }

    for (const head of heads) {
      head.words.forEach((word, content) => {
        let from = null, dragged = false;
        word.addEventListener("pointerdown", (event) => {
          touched = true;
          from = [event.clientX, event.clientY];
          dragged = false;
          word.setPointerCapture(event.pointerId);
        });
        word.addEventListener("pointermove", (event) => {
          if (!from) return;
          const [dx, dy] = [event.clientX - from[0], event.clientY - from[1]];
          if (!dragged && Math.hypot(dx, dy) < 5) return;
          dragged = true;
          word.classList.add("swap-held");
          word.style.translate = `${dx}px ${dy}px`;
          const over = placeUnder(head, event.clientX, event.clientY);
          head.words.forEach((other, index) => other.classList.toggle("swap-over", index !== content && order[over] === index));
        });
        const drop = (event) => {
          if (!from) return;
          from = null;
          word.classList.remove("swap-held");
          word.style.translate = "";
          head.words.forEach((other) => other.classList.remove("swap-over"));
          if (!dragged || event.type === "pointercancel") return;
          const over = placeUnder(head, event.clientX, event.clientY), here = order.indexOf(content);
          if (over !== null && over !== here) swap(here, over);
        };
        word.addEventListener("pointerup", drop);
        word.addEventListener("pointercancel", drop);
        word.addEventListener("click", () => {
          touched = true;
          if (dragged) dragged = false; // the click that ends a drag
          else choose(content);
        });
        word.addEventListener("keydown", (event) => {
          touched = true;
          const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (event.key === "Escape") { picked = null; draw(); }
          if (!step) return;
          event.preventDefault();
          const next = head.words[order[order.indexOf(content) + step]];
          if (!next) return;
          head.words.forEach((other) => { other.tabIndex = other === next ? 0 : -1; });
          next.focus();
        });
      });
    }
    again.addEventListener("click", () => {
      order = names.map((_, place) => place);
      picked = null;
      draw();
      said.innerHTML = first;
      heads[0].words[0].focus();
    });

    draw();
    root.classList.add("swap-ready");
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const [alice, bob] = [names.indexOf("Alice"), names.indexOf("Bob")];
    if (document.querySelector(".possym-swap") !== root || alice < 0 || bob < 0) return;
    new IntersectionObserver((seen, observer) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      setTimeout(() => {
        if (touched) return;
        swap(alice, bob);
        setTimeout(() => {
          if (touched) return;
          swap(alice, bob);
          said.innerHTML = first;
        }, 3200);
      }, 900);
    }, { threshold: 0.4 }).observe(root);
  }
})();
