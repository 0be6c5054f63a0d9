// Turns every figure.possym-chart on the page into a live chart, one after the other, keeping its still picture
// until the chart is there. Vega is loaded only when a page has a chart. Works in a book page, from disk too, and in
// JupyterLab, where charts appear as cells are run.
(function () {
  "use strict";
  if (window.possymCharts) return;
  const NARROW = 560; // pixels below which charts that stand side by side go one under the other
  const AXES = 80; // pixels that a panel's axis and spacing take
  const source = document.currentScript && document.currentScript.src;
  const loaded = new Map(); // address -> promise of the script there
  let queue = Promise.resolve();

  function load(address) {
    if (!loaded.has(address)) {
      loaded.set(address, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = address;
        script.onload = resolve;
        script.onerror = () => reject(new Error("could not load " + address));
        document.head.append(script);
      }));
    }
    return loaded.get(address);
  }

  const loadVega = () => (window.vegaEmbed ? null : load(new URL("vega.js", source).href));

  // A specification stands in the figure, or in a script beside the page (JSON itself cannot be fetched from disk).
  async function specOf(figure) {
    const inline = figure.querySelector('script[type="application/json"]');
    if (inline) return JSON.parse(inline.textContent);
    await load(new URL("specs/" + figure.dataset.spec + ".js", source).href);
    return window.possymSpecs[figure.dataset.spec];
  }

  // Vega-Lite lets only a single panel fill its container; panels in rows or facets get their share here.
  function fitted(spec, width) {
    const copy = structuredClone(spec);
    const share = (count) => Math.max(120, Math.floor(width / count) - AXES);
    const widen = (panel, count) => {
      if (!panel.width && (panel.mark || panel.layer)) panel.width = share(count);
    };
    const facet = copy.facet && !copy.facet.row && !copy.facet.column ? copy : (copy.encoding || {}).facet;
    if (width < 480) {
      const legend = { columns: Math.max(1, Math.floor(width / 130)) };
      copy.config = Object.assign({}, copy.config, { legend: Object.assign(legend, (copy.config || {}).legend) });
    }
    if (copy.facet && copy.facet.row && copy.spec.width) {
      copy.spec.width = Math.min(copy.spec.width, Math.max(120, width - 1.5 * AXES));
    }
    if (copy.hconcat && width < NARROW) {
      copy.vconcat = copy.hconcat;
      delete copy.hconcat;
    }
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

  const isCompound = (spec) => spec.width !== "container";

  // Sliders, selections and menus of a chart, so that drawing it anew at another width keeps them.
  function stateOf(view, spec) {
    const names = JSON.stringify(spec).match(/"name":"[^"]+"/g) || [];
    const params = new Set(names.map((text) => text.slice(8, -1)));
    return view.getState({
      signals: (name) => params.has(name),
      data: (name) => name.endsWith("_store"),
    });
  }

  async function embed(figure, spec) {
    const view = figure.querySelector(".possym-view");
    const stage = document.createElement("div");
    stage.className = "possym-live";
    const before = figure.possymResult;
    const state = before ? stateOf(before.view, spec) : null;
    figure.drawnWidth = view.clientWidth;
    view.append(stage);
    const result = await window.vegaEmbed(stage, fitted(spec, view.clientWidth), {
      mode: "vega-lite",
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
    });
    if (state) await result.view.setState(state).runAsync();
    if (before) before.finalize();
    for (const child of Array.from(view.children)) if (child !== stage) child.remove();
    figure.possymResult = result;
    figure.dataset.drawn = "true";
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

  function draw(figure) {
    if (figure.dataset.drawn) return;
    figure.dataset.drawn = "pending";
    queue = queue.then(async () => {
      try {
        await loadVega();
        const spec = await specOf(figure);
        await embed(figure, spec);
        if (isCompound(spec)) redrawOnResize(figure, spec);
      } catch (error) {
        figure.dataset.drawn = "failed";
        console.error("chart not drawn:", error);
      }
    });
  }

  function drawAll() {
    document.querySelectorAll("figure.possym-chart").forEach(draw);
  }

  window.possymCharts = { drawAll };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", drawAll);
  else drawAll();
  if (!source) new MutationObserver(drawAll).observe(document.body, { childList: true, subtree: true });
})();
