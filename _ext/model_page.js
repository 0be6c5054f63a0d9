// Fills every figure.possym-model with a trained model that answers: its path, its attention by layer, both scores of
// every layer, layers switched off, two tokens swapped, inputs made longer. One worker computes for the whole page. It
// is started from the text of model_engine.js, and weights are scripts, because a page opened from disk may fetch nothing.
(function () {
  "use strict";
  const here = document.currentScript.src, engine = window.possymEngine(), WINDOW = engine.WINDOW;
  const LENGTHS = [...steps(17, 32, 1), ...steps(34, 64, 2), ...steps(72, 128, 8), ...steps(144, 256, 16), ...steps(288, 640, 32)];
  const LAYERS = 12, PURE = 0.1, TRIES = 20, WAIT = 250; // WAIT: milliseconds after which a computation is said to be one

  function steps(first, last, step) {
    return Array.from({ length: (last - first) / step + 1 }, (_, i) => first + i * step);
  }
  const percent = (share) => `${share > 0.995 && share < 1 ? (100 * share).toFixed(1) : Math.round(100 * share)}\u00a0%`;
  const frame = () => new Promise((resolve) => setTimeout(resolve));

  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in element && !name.startsWith("aria")) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  // ---- The worker ----------------------------------------------------------------------------------------------------

  const waiting = new Map(), loading = new Map();
  let worker, calls = 0;

  function working() {
    const engine = possymEngine(), models = {};
    onmessage = ({ data: { call, task, model, question } }) => {
      try {
        if (model) models[task] = engine.unpack(model);
        const start = performance.now(), found = question && engine.answer(models[task], question);
        postMessage({ call, found, took: performance.now() - start });
      } catch (problem) {
        postMessage({ call, problem: problem.message });
      }
    };
  }

  function send(message) {
    if (!worker) {
      const text = `const possymEngine = ${window.possymEngine};(${working})();`;
      worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
      worker.onmessage = ({ data }) => {
        const { resolve, reject } = waiting.get(data.call);
        waiting.delete(data.call);
        if (data.problem) reject(new Error(data.problem));
        else resolve(data);
      };
    }
    return new Promise((resolve, reject) => {
      waiting.set(++calls, { resolve, reject });
      worker.postMessage({ call: calls, ...message });
    });
  }

  // A task's weights, fetched and unpacked once a page; what is known of their making.
  function load(task, file) {
    if (!loading.has(task)) {
      loading.set(task, new Promise((resolve, reject) => {
        const script = make("script", { src: new URL(file, here).href });
        script.onload = resolve;
        script.onerror = () => reject(new Error("The model's weights could not be loaded."));
        document.head.append(script);
      }).then(async () => {
        const model = window.possymModels[task];
        await send({ task, model });
        delete window.possymModels[task]; // the worker has them
        return model.made;
      }));
      loading.get(task).catch(() => loading.delete(task));
    }
    return loading.get(task);
  }

  // ---- One place of the page -----------------------------------------------------------------------------------------

  let places = 0;

  function fill(figure) {
    const name = `possym-model-${++places}`, asked = figure.dataset;
    let seed = 20_260 + places;
    const random = () => (seed = (seed * 48_271) % 2_147_483_647) / 2_147_483_647;
    const numbers = (text) => (text ? text.split(" ").map(Number) : []);
    const state = { task: asked.task, hops: Number(asked.hops || 3), words: [], extras: [], length: WINDOW, off: new Set(numbers(asked.off)), swap: numbers(asked.swap), seen: false };
    let turn = 0, running = null, parts = null;

    // -- controls
    const radio = (task) => make("label", {}, make("input", { type: "radio", name, value: task, checked: task === state.task }), ` ${task} task`);
    const tasks = make("fieldset", { "aria-label": "Model" }, radio("number"), radio("letter"));
    const hops = make("select", { id: `${name}-hops` }, ...steps(1, engine.MOST_HOPS, 1).map((count) => make("option", { value: count, selected: count === state.hops }, String(count))));
    const draw = make("button", { type: "button" }, "New sequence");
    const text = make("input", { type: "text", id: `${name}-words`, spellcheck: false, autocomplete: "off", autocapitalize: "off", "aria-describedby": `${name}-said` });
    const slider = make("input", { type: "range", id: `${name}-length`, min: 0 });
    const length = make("output", { htmlFor: `${name}-length` });
    const lengthen = make("button", { type: "button" }, "Lengthen until it breaks");
    const others = make("button", { type: "button" }, `Answer ${TRIES} others`);
    const said = make("p", { className: "possym-said", id: `${name}-said` });
    const counted = make("p", { className: "possym-counted" });
    const hint = make("p", { className: "possym-hint" });
    const whole = make("button", { type: "button", hidden: true }, "All layers on");
    const unswap = make("button", { type: "button", hidden: true }, "Undo the swap");
    const made = make("p", { className: "possym-made" });
    const table = make("table", { "aria-label": "Where the last token looks, layer by layer, in per cent" });
    const scroller = make("div", { className: "possym-map" }, table);
    figure.append(
      make("div", { className: "possym-controls" }, tasks, make("span", {}, make("label", { htmlFor: hops.id }, "Hops "), hops), draw),
      make("div", { className: "possym-controls possym-words" }, make("label", { htmlFor: text.id }, "Sequence"), text),
      make("div", { className: "possym-controls" }, make("span", { className: "possym-length" }, make("label", { htmlFor: slider.id }, "Length "), slider, length), lengthen, others),
      said, counted, scroller, make("div", { className: "possym-controls" }, whole, unswap), hint, made,
    );

    // -- the sequence
    const full = () => [...state.extras.slice(state.extras.length - (state.length - state.words.length)), ...state.words];
    const lengths = () => [...new Set([state.words.length, ...LENGTHS.filter((each) => each > state.words.length)])];

    function take(words) {
      let path = null, lost = "";
      try { path = engine.solve(state.task, words); } catch (problem) { lost = problem.message; }
      Object.assign(state, { words, path, lost, extras: [] });
      state.swap = state.swap.length && Math.max(...state.swap) < words.length - 1 ? state.swap : [];
      text.value = words.join(" ");
      stretch(Math.max(state.length, words.length));
    }

    // Tokens are added before the sequence, and stay the same while the slider moves.
    function stretch(length) {
      const kept = state.path ? state.path.map((place) => state.words[place]) : state.words;
      try {
        while (state.extras.length < length - state.words.length) state.extras.unshift(engine.extra(state.task, kept, random));
        state.length = length;
      } catch (problem) {
        state.length = state.words.length;
        counted.textContent = problem.message;
      }
    }

    const fresh = () => take(engine.draw(state.task, state.hops, random));

    // -- drawing
    // Rows and columns are made anew where their number changes; else their words change, and the focus stays.
    function build(columns, layers) {
      const token = () => make("button", { type: "button" });
      const heads = Array.from({ length: columns - 1 }, token);
      const query = make("span"), arcs = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      arcs.setAttribute("aria-hidden", "true");
      arcs.setAttribute("preserveAspectRatio", "none");
      const before = make("th", { scope: "col", className: "possym-before" });
      const swapped = make("th", { scope: "col", className: "possym-swapped" }, "swap");
      const rows = Array.from({ length: layers }, (_, layer) => {
        const button = make("button", { type: "button", "aria-label": `Layer ${layer}`, title: "Switch this layer off or on" }, String(layer));
        const cells = Array.from({ length: columns + 1 }, () => make("td", {}, make("span")));
        const [positional, symbolic, swap] = [make("td"), make("td"), make("td", { className: "possym-swapped" })];
        positional.className = "possym-positional";
        symbolic.className = "possym-symbolic";
        cells[0].className = "possym-before";
        const row = make("tr", {}, make("th", { scope: "row" }, button), ...cells, positional, symbolic, swap);
        button.onclick = () => { state.off[state.off.has(layer) ? "delete" : "add"](layer); update(); };
        return { row, button, cells, positional, symbolic, swap };
      });
      const room = make("td", { colSpan: columns, className: "possym-arcs" }, arcs), edge = make("td", { className: "possym-before" });
      table.replaceChildren(
        make("colgroup", {}, make("col", { className: "possym-layer" }), make("col", { className: "possym-before" }), ...heads.map(() => make("col")), make("col"), make("col", { className: "possym-score" }), make("col", { className: "possym-score" }), make("col", { className: "possym-swapped" })),
        make("thead", {},
          make("tr", {}, make("td"), edge, room, make("td", { colSpan: 2 }), make("td", { className: "possym-swapped" })),
          make("tr", {}, make("th", { scope: "col" }, make("span", { className: "possym-wide" }, "layer")), before, ...heads.map((head) => make("th", { scope: "col" }, head)), make("th", { scope: "col" }, query),
            make("th", { scope: "col" }, make("abbr", { title: "positional score" }, "pos")), make("th", { scope: "col" }, make("abbr", { title: "symbolic score" }, "sym")), swapped)),
        make("tbody", {}, ...rows.map(({ row }) => row)),
      );
      heads.forEach((head, i) => (head.onclick = () => choose(state.length - columns + i)));
      rove(heads, "ArrowLeft", "ArrowRight");
      rove(rows.map(({ button }) => button), "ArrowUp", "ArrowDown");
      parts = { columns, heads, query, arcs, before, rows };
    }

    // Tokens are one stop of the Tab key, and layers one; arrows move among them.
    function rove(buttons, back, on) {
      buttons.forEach((button, i) => {
        button.tabIndex = i ? -1 : 0;
        button.onkeydown = (event) => {
          const to = { [back]: i - 1, [on]: i + 1, Home: 0, End: buttons.length - 1 }[event.key];
          if (to === undefined || !buttons[to]) return;
          event.preventDefault();
          buttons[to].focus();
        };
        button.onfocus = () => buttons.forEach((other) => (other.tabIndex = other === button ? 0 : -1));
      });
    }

    function show(found) {
      const words = full(), T = words.length, columns = Math.min(T, WINDOW), first = T - columns, layers = LAYERS;
      if (!parts || parts.columns !== columns) build(columns, layers);
      const pair = state.swap.length === 2; // then a layer reads two tokens elsewhere, and the path is none of its own
      const path = state.path && !pair ? state.path.map((place) => place + T - state.words.length) : [];
      parts.heads.forEach((head, i) => {
        const place = first + i, chosen = state.swap.includes(place);
        const word = words[chosen && pair ? state.swap[0] + state.swap[1] - place : place];
        head.textContent = word;
        head.setAttribute("aria-pressed", chosen);
        head.setAttribute("aria-label", `Swap ${word}, position ${place}`);
        head.classList.toggle("possym-path", path.includes(place));
        head.classList.toggle("possym-answer", path.at(-1) === place);
      });
      parts.query.textContent = words[T - 1];
      table.classList.toggle("possym-long", first > 0);
      table.classList.toggle("possym-swaps", pair);
      parts.before.textContent = first ? `${first} before` : "";
      parts.arcs.setAttribute("viewBox", `0 0 ${columns} 4`);
      parts.arcs.replaceChildren(...path.slice(1).map((to, hop) => {
        const [x, y] = [path[hop] - first + 0.5, to - first + 0.5], arc = document.createElementNS("http://www.w3.org/2000/svg", "path");
        arc.setAttribute("d", `M${x} 4 Q${(x + y) / 2} ${3.6 - Math.min(7, 1.2 + 0.55 * (x - y))} ${y} 4`);
        return arc;
      }));
      parts.rows.forEach(({ row, button, cells, positional, symbolic, swap }, layer) => {
        const off = state.off.has(layer), its = found && found.layers[layer];
        button.setAttribute("aria-pressed", !off);
        row.classList.toggle("possym-off", off);
        row.dataset.kind = !its || off ? "" : its.positional >= 1 - PURE && its.symbolic <= PURE ? "positional" : its.symbolic >= 1 - PURE && its.positional <= PURE ? "symbolic" : "neither";
        const looks = its && !off ? its.after || its.attention : null;
        const shares = looks ? [looks.subarray(0, first).reduce((sum, share) => sum + share, 0), ...looks.subarray(first)] : [];
        cells.forEach((cell, i) => {
          const share = off ? Number(i === columns) : shares[i] || 0, place = first + i - 1;
          cell.style.setProperty("--share", share.toFixed(3));
          cell.firstChild.textContent = share >= 0.005 ? Math.round(100 * share) : "";
          cell.classList.toggle("possym-moved", i > 0 && pair && state.swap.includes(place));
        });
        for (const [cell, score] of [[positional, its && its.positional], [symbolic, its && its.symbolic]]) {
          cell.textContent = its && !off ? score.toFixed(2) : off ? "off" : "";
          cell.style.setProperty("--share", its && !off ? score.toFixed(3) : 0);
        }
        swap.textContent = its && !off && its.cosines ? verdict(its) : "";
      });
      whole.hidden = !state.off.size;
      unswap.hidden = !state.swap.length;
    }

    // What a swap did to one layer: nothing to speak of where neither place was attended to.
    function verdict({ attention, cosines: [stays, follows] }) {
      const [i, j] = state.swap;
      if (Math.max(attention[i], attention[j]) < 0.01) return "–";
      return Math.abs(stays - follows) < 0.1 ? "both" : stays > follows ? "stays" : "follows";
    }

    function tell(found) {
      const words = full(), T = words.length, right = state.path && state.words[state.path.at(-1)];
      const path = state.path ? state.path.map((place) => state.words[place]).join(" → ") : state.lost, count = state.path && state.path.length - 1;
      const judged = !state.path ? "" : found.answer === right ? "Right: " : make("strong", { className: "possym-wrong" }, "Wrong: ");
      said.replaceChildren("The model answers ", make("strong", {}, found.answer), ` (${percent(found.probability)}). `, judged, path, state.path ? `, ${count} hop${count > 1 ? "s" : ""}.` : "");
      hint.textContent = state.swap.length === 2
        ? `Each row: where the last token would look if ${words[state.swap[0]]} and ${words[state.swap[1]]} changed places in this layer alone. Attention stays in a positional layer, and follows the token in a symbolic one.`
        : state.swap.length ? "Press the token to swap it with." : "Blue layers are positional on this sequence, orange ones symbolic, grey ones neither. Press two tokens to swap them, and see which layers follow. Press a layer to switch it off: in it, each token looks at itself alone.";
      length.textContent = ` ${T} tokens`;
      figure.dataset.right = String(found.answer === right);
      figure.dataset.answer = found.answer;
    }

    function choose(place) {
      if (state.swap.includes(place)) state.swap = state.swap.filter((other) => other !== place);
      else state.swap = state.swap.length === 2 ? [place] : [...state.swap, place].sort((a, b) => a - b);
      update();
    }

    function setSlider() {
      const known = lengths();
      slider.max = known.length - 1;
      slider.value = Math.max(0, known.findIndex((each) => each >= state.length));
      slider.setAttribute("aria-valuetext", `${state.length} tokens`);
      length.textContent = ` ${state.length} tokens`;
    }

    // -- asking
    const ask = async (words, swap = []) => {
      const about = await load(state.task, asked[`file${state.task[0].toUpperCase()}${state.task.slice(1)}`]);
      return { about, ...(await send({ task: state.task, question: { words, off: [...state.off], swap } })) };
    };

    async function update() {
      const mine = ++turn;
      setSlider();
      if (!state.seen) return show();
      figure.dataset.state = "asking";
      const late = setTimeout(() => { if (mine === turn) figure.setAttribute("aria-busy", "true"); }, WAIT);
      try {
        const { about, found, took } = await ask(full(), state.swap.length === 2 ? state.swap : []);
        if (mine !== turn) return false;
        show(found);
        tell(found);
        made.textContent = `${state.task} model: study ${about.study}, seed ${about.seed} after ${about.steps.toLocaleString("en")} steps, ${about.date}, commit ${about.commit}. Weights rounded to 93 levels, which changed no answer on 1,000 test sequences. Scores: all swaps of two keys of this sequence, τ = 10⁻⁴. Computed here in ${Math.round(took)} ms.`.replace(/^./, (first) => first.toUpperCase());
        figure.dataset.took = took.toFixed(1);
        figure.dataset.state = "ready";
      } catch (problem) {
        if (mine === turn) {
          said.replaceChildren(make("span", { className: "possym-wrong" }, problem.message));
          figure.dataset.state = "failed";
        }
      } finally {
        clearTimeout(late);
        if (mine === turn) figure.removeAttribute("aria-busy");
      }
      return figure.dataset.right === "true";
    }

    // A loop that its own button stops, as does every other control.
    async function loop(button, work) {
      const mine = running === button ? null : button, words = button.textContent;
      running = mine;
      if (!mine) return;
      said.setAttribute("aria-live", "off");
      counted.setAttribute("aria-live", "off");
      button.textContent = "Stop";
      const end = await work(() => running === mine);
      said.removeAttribute("aria-live");
      counted.removeAttribute("aria-live");
      await frame();
      if (end) counted.textContent = end;
      button.textContent = words;
      if (running === mine) running = null;
    }
    const stop = () => { running = null; counted.textContent = ""; };

    lengthen.onclick = () => loop(lengthen, async (goes) => {
      counted.textContent = "";
      state.swap = [];
      if (state.length === LENGTHS.at(-1) || figure.dataset.right !== "true") stretch(state.words.length);
      for (const next of lengths().filter((each) => each >= state.length)) {
        const before = state.length;
        stretch(next);
        if (state.length !== next) return counted.textContent;
        const right = await update();
        if (!goes()) return "";
        if (!right) return next === before ? `Wrong at ${next} tokens already.` : `Right up to ${before} tokens, wrong at ${next}.`;
      }
      return `Still right at ${state.length} tokens.`;
    });

    others.onclick = () => loop(others, async (goes) => {
      let right = 0, task = state.task, T = state.length;
      for (let done = 0; done < TRIES; done++) {
        const words = engine.draw(task, 1 + (done % engine.MOST_HOPS), random), path = engine.solve(task, words).map((place) => words[place]);
        const more = Array.from({ length: Math.max(0, T - WINDOW) }, () => engine.extra(task, path, random));
        const { found } = await ask([...more, ...words]);
        if (!goes()) return "";
        right += found.answer === path.at(-1);
        counted.textContent = `${right} of ${done + 1} right …`;
      }
      return `${right} of ${TRIES} other sequences of ${Math.max(T, WINDOW)} tokens are right${state.off.size ? ", with these layers off" : ""}.`;
    });

    tasks.onchange = (event) => {
      stop();
      state.task = event.target.value;
      fresh();
      update();
    };
    hops.onchange = () => { stop(); state.hops = Number(hops.value); fresh(); update(); };
    draw.onclick = () => { stop(); fresh(); update(); };
    slider.oninput = () => { stop(); state.swap = []; stretch(lengths()[slider.value]); update(); };
    whole.onclick = () => { state.off.clear(); update(); draw.focus(); };
    unswap.onclick = () => { state.swap = []; update(); parts.heads[0].focus(); };
    text.onchange = () => {
      stop();
      const words = text.value.trim().toLowerCase().split(/\s+/).slice(-LENGTHS.at(-1));
      state.length = words.length;
      take(words);
      update();
    };

    // Nothing is read aloud before a reader touches a control.
    figure.addEventListener("focusin", () => [said, counted].forEach((line) => line.setAttribute("role", "status")), { once: true });

    fresh();
    if (asked.length) stretch(Number(asked.length));
    update();
    return () => { state.seen = true; update(); };
  }

  function start() {
    const begin = new Map([...document.querySelectorAll("figure.possym-model")].map((figure) => [figure, fill(figure)]));
    const near = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
      near.unobserve(target);
      begin.get(target)();
    }));
    begin.forEach((_, figure) => near.observe(figure));
  }
  start();
})();
