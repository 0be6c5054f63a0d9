// Turns every figure.possym-chart on the page into a live chart, one after the other and those nearest to the screen
// first, keeping its still picture until the chart is there. Needs Vega on the page before it. Works in a book page,
// from disk too, and in JupyterLab, where charts appear as cells are run.
(function () {
  "use strict";
  if (window.possymCharts) return;
  const NARROW = 560; // pixels below which charts that stand side by side go one under the other
  const AXES = 80; // pixels that a panel's axis and spacing take
  const source = document.currentScript && document.currentScript.src;
  const waiting = [];
  let drawing = false;

  const load = (address) => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = resolve;
    script.onerror = () => reject(new Error("could not load " + address));
    document.head.append(script);
  });

  // A specification stands in the figure, or in a script beside the page (JSON itself cannot be fetched from disk).
  async function specOf(figure) {
    const inline = figure.querySelector('script[type="application/json"]');
    if (inline) return JSON.parse(inline.textContent);
    await load(new URL("specs/" + figure.dataset.spec + ".js", source).href);
    return window.possymSpecs[figure.dataset.spec];
  }

  // Vega-Lite lets only a single panel fill its container; panels in rows or facets get their share here.
  function fitted(spec, width, columns) {
    const copy = structuredClone(spec);
    const share = (count) => Math.max(120, Math.floor(width / count) - AXES);
    const widen = (panel, count) => {
      if (!panel.width && (panel.mark || panel.layer)) panel.width = share(count);
      shrink(panel, share(count));
    };
    // A panel of fixed width gives way on a narrow page; a square one stays square.
    const shrink = (panel, room) => {
      if (!(panel.width > room)) return;
      if (panel.height === panel.width) panel.height = room;
      panel.width = room;
    };
    const facet = copy.facet && !copy.facet.row && !copy.facet.column ? copy : (copy.encoding || {}).facet;
    if (width < 480) {
      const config = (copy.config = Object.assign({}, copy.config));
      config.legend = Object.assign({ columns }, config.legend);
      config.axisX = Object.assign({ titleAnchor: "end" }, config.axisX); // a long title reaches below the other axis
    }
    if (copy.facet && copy.facet.row) {
      copy.spec.width = Math.min(copy.spec.width || 420, Math.max(120, width - 1.5 * AXES));
    }
    if (copy.hconcat && width < NARROW) {
      copy.vconcat = copy.hconcat;
      delete copy.hconcat;
    }
    if (copy.mark || copy.layer) shrink(copy, Math.max(120, width - AXES));
    if (copy.concat) {
      copy.columns = width < NARROW ? 1 : copy.columns || copy.concat.length;
      copy.concat.forEach((panel) => widen(panel, copy.columns));
    }
    (copy.hconcat || []).forEach((panel) => widen(panel, copy.hconcat.length));
    (copy.vconcat || []).forEach((panel) => widen(panel, 1));
    if (facet) {
      const wanted = facet.columns || 3;
      const panel = (copy.spec || copy).width;
      facet.columns = Math.min(wanted, Math.max(1, Math.floor(width / (panel ? panel + 60 : 240))));
      if (wanted === 4 && facet.columns === 3) facet.columns = 2; // no row of one under a row of three
      widen(copy.spec || copy, facet.columns);
    }
    return copy;
  }

  // What a chart says of its controls: the parameter "title"; beside the slider NAME the words NAME_said, where its own
  // number means nothing to a reader; NAME_most, the largest value that makes sense as the others stand;
  // NAME_play, the milliseconds between two steps when it plays; and NAME_click, the field of a clicked mark that NAME
  // takes its value from, until a double click chooses what it was at first.
  function follow(figure, stage, view, spec) {
    const params = new Set((spec.params || []).map((param) => param.name));
    const watch = (name, tell) => {
      if (!params.has(name)) return;
      tell(view.signal(name));
      view.addSignalListener(name, (_, value) => tell(value));
    };
    (spec.params || []).filter((param) => params.has(param.name + "_click")).forEach((param) => {
      const field = view.signal(param.name + "_click");
      const choose = (value) => value !== undefined && view.signal(param.name, value).runAsync();
      view.addEventListener("click", (_, item) => choose(item && item.datum && item.datum[field]));
      view.addEventListener("dblclick", () => choose(param.value));
    });
    watch("title", (words) => { figure.querySelector("figcaption strong").textContent = words; });
    stage.querySelectorAll('input[type="range"]').forEach((slider) => {
      const say = (words) => {
        slider.nextElementSibling.textContent = words;
        slider.setAttribute("aria-valuetext", words);
      };
      const said = slider.name + "_said";
      watch(said, say);
      if (params.has(slider.name + "_play")) playable(figure, slider, view.signal(slider.name + "_play"));
      // Vega writes the number again when the slider is let go, though nothing has changed.
      if (params.has(said)) slider.addEventListener("change", () => say(view.signal(said)));
      watch(slider.name + "_most", (most) => {
        slider.max = most;
        if (view.signal(slider.name) > most) slider.dispatchEvent(new Event("input"));
      });
    });
  }

  // A slider that plays: once when its figure is first seen, where motion is welcome, and at its button.
  function playable(figure, slider, pause) {
    const end = Number(slider.value), button = document.createElement("button");
    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; button.textContent = "▶ Play"; };
    const set = (value) => { slider.value = value; slider.dispatchEvent(new Event("input")); };
    const play = () => {
      const last = Math.max(end, Number(slider.min) + 1);
      set(slider.min);
      button.textContent = "■ Stop";
      timer = setInterval(() => {
        if (Number(slider.value) >= last || !slider.isConnected) return stop();
        set(Number(slider.value) + Number(slider.step || 1));
      }, pause);
    };
    button.type = "button";
    button.className = "possym-play";
    button.addEventListener("click", () => (timer ? stop() : play()));
    slider.addEventListener("pointerdown", stop);
    slider.addEventListener("keydown", stop);
    slider.closest(".vega-bind").append(button);
    stop();
    if (figure.dataset.played || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    new IntersectionObserver((seen, observer) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      figure.dataset.played = "true";
      play();
    }, { threshold: 0.6 }).observe(figure);
  }

  async function embed(figure, spec) {
    const view = figure.querySelector(".possym-view");
    const stage = document.createElement("div");
    stage.className = "possym-live";
    const before = figure.possymResult;
    const room = (figure.drawnWidth = view.clientWidth);
    view.append(stage);
    const draw = (width, columns) => window.vegaEmbed(stage, fitted(spec, width, columns), {
      mode: "vega-lite",
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
    });
    // How much room labels and legends take is known once they are drawn.
    const right = (part) => part.getBoundingClientRect().right - view.getBoundingClientRect().left;
    const beyond = (what) => Math.max(0, ...Array.from(stage.querySelectorAll(what), right)) - room;
    let result = await draw(room, Math.max(1, Math.floor(room / 130)));
    const over = Math.max(0, beyond("svg.marks")), cut = beyond(".role-legend") > over;
    if (over || cut) {
      result.finalize();
      result = await draw(room - over, 1);
    }
    stage.querySelectorAll("summary").forEach((menu) => menu.setAttribute("aria-label", "Save this chart"));
    moveMenu(figure, stage);
    if (before) { // drawn anew at another width, its sliders and menus stay where they are
      const controls = (spec.params || []).filter((param) => param.bind);
      controls.forEach(({ name }) => result.view.signal(name, before.view.signal(name)));
      await result.view.runAsync();
    }
    follow(figure, stage, result.view, spec);
    if (before) before.finalize();
    for (const child of Array.from(view.children)) if (child !== stage) child.remove();
    figure.possymResult = result;
    figure.dataset.drawn = "true";
  }

  // The menu that saves a chart stands beside its title, where it covers no mark.
  function moveMenu(figure, stage) {
    figure.querySelectorAll(".possym-save").forEach((old) => old.remove());
    const menu = stage.querySelector("details"), holder = document.createElement("div");
    if (!menu) return;
    holder.className = "possym-save vega-embed";
    holder.append(menu);
    figure.prepend(holder);
  }

  function redrawOnResize(figure, spec) {
    let timer = 0;
    new ResizeObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        const width = figure.querySelector(".possym-view").clientWidth;
        if (width && Math.abs(width - figure.drawnWidth) > 8) embed(figure, spec);
      }, 200);
    }).observe(figure);
  }

  // How far a figure is above or below the screen.
  function distance(figure) {
    const { top, bottom } = figure.getBoundingClientRect();
    return Math.max(0, top - window.innerHeight, -bottom);
  }

  async function drawWaiting() {
    if (drawing) return;
    drawing = true;
    while (waiting.length) {
      await new Promise((done) => setTimeout(done)); // the page answers, and scrolls, between two charts
      const far = waiting.map((chart) => distance(chart.figure));
      const [{ figure, spec }] = waiting.splice(far.indexOf(Math.min(...far)), 1);
      try {
        await embed(figure, await spec);
        redrawOnResize(figure, await spec);
      } catch (error) {
        figure.dataset.drawn = "failed";
        console.error("chart not drawn:", error);
      }
    }
    drawing = false;
  }

  // A figure in a fold waits until somebody opens the fold.
  function whenShown(figure, then) {
    const shown = () => figure.checkVisibility() && figure.clientWidth > 0;
    if (shown()) return then();
    figure.dataset.drawn = "folded";
    const look = () => {
      if (!shown()) return;
      resized.disconnect();
      document.removeEventListener("toggle", look, true);
      then();
    };
    const resized = new ResizeObserver(look);
    resized.observe(figure);
    document.addEventListener("toggle", look, true);
  }

  function draw(figure) {
    if (figure.dataset.drawn) return;
    whenShown(figure, () => {
      figure.dataset.drawn = "pending";
      waiting.push({ figure, spec: specOf(figure) });
      drawWaiting();
    });
  }

  function drawAll() {
    document.querySelectorAll("figure.possym-chart").forEach(draw);
  }

  // In JupyterLab a key pressed in a control moves the control, not the notebook's cells.
  function keepKeys() {
    const controls = "input, select, textarea, button, summary, [role=slider]";
    const within = `:is(.possym-view, .jupyter-widgets) :is(${controls}):not([data-lm-suppress-shortcuts])`;
    document.querySelectorAll(within).forEach((control) => { control.dataset.lmSuppressShortcuts = "true"; });
  }

  window.possymCharts = { drawAll };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", drawAll);
  else drawAll();
  if (!source) {
    new MutationObserver(() => { drawAll(); keepKeys(); }).observe(document.body, { childList: true, subtree: true });
    keepKeys();
  }
})();
