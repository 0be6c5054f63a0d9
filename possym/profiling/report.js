"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const { heads, steps } = data;
const $ = id => document.getElementById(id);
let chosen = data.first, at = steps.length - 1;
let prompt = 0, asking = null, swapped = [];  // of the token view; asking is null for the prompt's last token

function make(name, values = {}, text) {
  const element = document.createElement(name);
  for (const key in values) element.setAttribute(key, values[key]);
  if (text !== undefined) element.textContent = text;
  return element;
}

function draw(parent, name, values, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in values) element.setAttribute(key, values[key]);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function table(columns, rows) {
  const whole = make("table"), first = make("tr");
  columns.forEach(column => first.append(make("th", { scope: "col" }, column)));
  whole.append(first);
  rows.forEach(row => {
    const line = make("tr");
    row.forEach(value => line.append(make("td", {}, String(value))));
    whole.append(line);
  });
  return whole;
}

// Words ---------------------------------------------------------------------------------------------------------------

const shown = value => value === null || value === undefined ? "none" : value.toFixed(3);
const name = head => `Layer ${head.layer}${head.pass === undefined ? "" : `, pass ${head.pass}`}, head ${head.head}`;

function words(head) {
  const spread = head.positional_sd === null ? "" :
    `, give or take ${shown(head.positional_sd)} and ${shown(head.symbolic_sd)} from prompt to prompt`;
  const moves = head.attention_moved === null ? "unknown" : `${Math.round(100 * head.attention_moved)} %`;
  return `${name(head)}: positional ${shown(head.positional)}, symbolic ${shown(head.symbolic)}${spread}; ` +
    `entropy ${shown(head.entropy)} nats, ${moves} of its attention on what moves`;
}

// The plane -----------------------------------------------------------------------------------------------------------

const across = value => 40 + 320 * value, up = value => 340 - 320 * value;
const plane = draw($("plane"), "svg", {
  viewBox: "0 0 380 380", role: "img",
  "aria-label": "Heads by positional score (x) and symbolic score (y); the menu lists them",
});
draw(plane, "rect", { x: 40, y: 20, width: 320, height: 320, fill: "none", stroke: "var(--rule)" });
for (const value of [0, 0.5, 1]) {
  draw(plane, "text", { x: across(value), y: 356, "text-anchor": "middle" }, String(value));
  draw(plane, "text", { x: 34, y: up(value) + 4, "text-anchor": "end" }, String(value));
}
draw(plane, "text", { x: 200, y: 374, "text-anchor": "middle" }, "positional");
draw(plane, "text", { x: 40, y: 13 }, "symbolic");
const paths = draw(plane, "g", {});
const dots = heads.map((head, i) => {
  const dot = draw(plane, "circle", { class: "head", "data-head": i, r: 4.5 });
  draw(dot, "title", {});
  dot.onclick = () => choose(i);
  dot.onmouseenter = () => { $("said").textContent = words(head); };
  dot.onmouseleave = () => { $("said").textContent = words(heads[chosen]); };
  return dot;
});
const rings = draw(plane, "g", {}), mark = draw(plane, "circle", { id: "mark", r: 8 });

function place(circle, positional, symbolic) {
  const there = positional !== null && symbolic !== null;
  circle.style.display = there ? "" : "none";
  if (there) { circle.setAttribute("cx", across(positional)); circle.setAttribute("cy", up(symbolic)); }
}

function placeDots() {
  const kinds = { "1": "var(--pos)", "-1": "var(--sym)" };
  heads.forEach((head, i) => {
    place(dots[i], head.positional, head.symbolic);
    dots[i].setAttribute("fill", kinds[head.purity] ?? "var(--dot)");
    const crumbs = head.attention_moved !== null && head.attention_moved < 0.05;
    dots[i].setAttribute("fill-opacity", crumbs ? 0.3 : 0.85);
    dots[i].firstChild.textContent = words(head);
  });
}

function placeRings() {
  rings.replaceChildren();
  if (at < steps.length - 1) return;
  data.prompts.positional[chosen].forEach((value, k) => {
    const other = data.prompts.symbolic[chosen][k];
    if (value === null || other === null) return;
    draw(rings, "circle", { class: "ring", cx: across(value / 1000), cy: up(other / 1000), r: 2.5 });
  });
}

// By layer and head ---------------------------------------------------------------------------------------------------

function heat() {
  const score = $("score").value, layer = head => `${head.layer}/${head.pass ?? 0}`;
  const rows = [...new Set(heads.map(layer))], most = Math.max(...heads.map(head => head.head)) + 1;
  const wide = 340 / most, tall = Math.max(6, Math.min(18, 340 / rows.length)), every = Math.ceil(14 / tall);
  $("heat").replaceChildren();
  const drawing = draw($("heat"), "svg", {
    viewBox: `0 0 380 ${rows.length * tall + 40}`, role: "img", "aria-label": `Mean ${score} score by layer and head`,
  });
  rows.forEach((row, i) => {
    const middle = { x: 30, y: i * tall + tall / 2 + 4, "text-anchor": "end" };
    if (i % every === 0) draw(drawing, "text", middle, row.split("/")[0]);
  });
  heads.forEach((head, i) => {
    const value = head[score], cell = draw(drawing, "rect", {
      class: "cell", x: 35 + head.head * wide, y: rows.indexOf(layer(head)) * tall, width: wide, height: tall,
      fill: score === "positional" ? "var(--pos)" : "var(--sym)",
      "fill-opacity": value === null ? 0 : 0.05 + 0.95 * value,
      stroke: i === chosen ? "var(--ink)" : "var(--back)", "stroke-width": i === chosen ? 2 : 0.5,
    });
    draw(cell, "title", {}, words(head));
    cell.onclick = () => choose(i);
  });
  const below = { x: 205, y: rows.length * tall + 20, "text-anchor": "middle" };
  draw(drawing, "text", below, `head, 0 to ${most - 1} (rows: layers)`);
}

// By frequency --------------------------------------------------------------------------------------------------------

function frequencies() {
  const found = data.frequencies[chosen], box = $("freq");
  box.replaceChildren();
  if (at < steps.length - 1) return box.append(make("p", {}, "Shown for the last step alone."));
  if (!found) {
    return box.append(make("p", {}, data.has_frequencies ? "This layer has no RoPE planes to score." :
      "Not measured: make the profile with per_frequency=True (on the command line --frequencies)."));
  }
  const count = found.positional.length, x = k => 40 + 320 * k / Math.max(1, count - 1), y = value => 200 - 0.17 * value;
  const drawing = draw(box, "svg", {
    viewBox: "0 0 380 240", role: "img", "aria-label": "Scores of the chosen head by frequency ID, fastest first",
  });
  draw(drawing, "rect", { x: 40, y: 30, width: 320, height: 170, fill: "none", stroke: "var(--rule)" });
  const kinds = [["positional", "var(--pos)", 40, "none"], ["symbolic", "var(--sym)", 130, "6 3"]];
  for (const [score, color, left, dashes] of kinds) {
    const points = found[score].map((value, k) => value === null ? null : `${x(k)},${y(value)}`).filter(Boolean);
    const line = { fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": dashes };
    draw(drawing, "polyline", { points: points.join(" "), ...line });
    found[score].forEach((value, k) => {
      if (value === null) return;
      const dot = draw(drawing, "circle", { cx: x(k), cy: y(value), r: 3, fill: color });
      draw(dot, "title", {}, `frequency ID ${k + 1}: ${score} ${shown(value / 1000)}`);
    });
    draw(drawing, "text", { x: left, y: 20, style: `fill:${color}` }, score);
  }
  draw(drawing, "text", { x: 34, y: 34, "text-anchor": "end" }, "1");
  draw(drawing, "text", { x: 34, y: 204, "text-anchor": "end" }, "0");
  draw(drawing, "text", { x: 200, y: 225, "text-anchor": "middle" }, `frequency ID, 1 to ${count}`);
}

// What it attends to --------------------------------------------------------------------------------------------------

// Attention of the last token when two moved contents have changed places: row.relocated[a][b] is the logit of content
// a at place b. Returns which content lies at each moved place, and the shares of places and of what does not move.
function shares(row, pair) {
  const own = row.relocated.map((_, i) => i);
  if (pair.length === 2) [own[pair[0]], own[pair[1]]] = [pair[1], pair[0]];
  const logits = own.map((content, place) => row.relocated[content][place]).concat(row.extra);
  const top = Math.max(...logits), powers = logits.map(value => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return { own, values: powers.map(power => power / sum) };
}

// Shares by position of the token that asks.
function byPosition(row, query, count) {
  if (query !== null) return Array.from({ length: count }, (_, k) => (row.attention[query - 1][k] ?? 0) / 1000);
  const found = Array(count).fill(0), { values } = shares(row, swapped);
  row.moved.concat(row.unmoved).forEach((position, k) => { found[position] = values[k]; });
  return found;
}

function menu(id, label, options, value, choose) {
  const select = make("select", { id }), whole = make("label", {}, `${label} `);
  options.forEach(([key, text]) => select.append(make("option", { value: key }, text)));
  select.value = value;
  select.onchange = () => { choose(select.value); tokens(); $(id).focus(); };
  whole.append(select, " ");
  return whole;
}

function others(box) {
  const list = make("p");
  box.append(make("p", {}, "This file holds attention of these heads alone:"), list);
  [...new Set(Object.keys(data.rows).map(key => Number(key.split(":")[1])))].forEach(i => {
    const label = { type: "button", "data-jump": i, "aria-label": name(heads[i]) };
    const button = make("button", label, `${heads[i].layer}.${heads[i].head}`);
    button.onclick = () => { choose(i); $("head").focus(); };
    list.append(button, " ");
  });
}

function tokens() {
  const box = $("view"), row = data.rows[`${prompt}:${chosen}`];
  box.replaceChildren();
  if (!data.views.length) return box.append(make("p", {}, data.no_view));
  if (at < steps.length - 1) return box.append(make("p", {}, "Shown for the last step alone."));
  const texts = data.views[prompt].tokens, last = texts.length - 1, line = make("p");
  line.append(menu("prompt", "Prompt", data.views.map((view, i) => [i, view.prompt]), prompt, value => {
    prompt = Number(value); swapped = []; asking = null;
  }));
  box.append(line);
  if (!row) return others(box);
  const asks = texts.map((text, k) => [k, `${k}: ${text}`]).slice(1);
  line.append(menu("asks", "Attention of token", asks, asking ?? last, value => {
    asking = Number(value) === last ? null : Number(value); swapped = [];
  }));
  const said = make("p", { id: "swap" }), places = new Map(row.moved.map((position, i) => [position, i]));
  const group = make("div", { id: "tokens", role: "group", "aria-label": "Tokens of the prompt" });
  box.append(said, group);
  const { own } = shares(row, swapped);
  const buttons = texts.map((text, position) => {
    const i = places.get(position), button = make("button", { type: "button" });
    button.append(i === undefined ? text : texts[row.moved[own[i]]], make("small"));
    if (i === undefined || asking !== null) button.disabled = true;
    else {
      button.setAttribute("aria-pressed", swapped.includes(i));
      button.onclick = () => {
        if (swapped.includes(i)) swapped = swapped.filter(j => j !== i);
        else swapped = swapped.length < 2 ? [...swapped, i] : [i];
        tokens();
        $("tokens").children[position].focus();
      };
      button.onmouseenter = () => { if (position && swapped.length < 2) paint(position); };
      button.onmouseleave = () => paint(asking);
    }
    group.append(button);
    return button;
  });
  function paint(query) {
    byPosition(row, query, texts.length).forEach((share, k) => {
      buttons[k].lastChild.textContent = `${(100 * share).toFixed(1)} %`;
      buttons[k].style.boxShadow = `inset 0 -${(6 * share).toFixed(2)}px var(--pos)`;
      buttons[k].dataset.share = share;
    });
    said.textContent = query !== null ? `Attention of token ${query}. Swaps are shown for the last token.` :
      swapped.length === 2 ? "After the swap of two tokens, as this head alone would see it. Press one to undo." :
      swapped.length === 1 ? "Press a second token to swap it with the first." :
      "Attention of the prompt's last token. Press two tokens to see it after their swap, hover one to see its own.";
  }
  paint(asking);
}

// Steps ---------------------------------------------------------------------------------------------------------------

function goTo(step) {
  at = step;
  const now = steps[at], first = steps[0].heads, [x, y] = ["positional", "symbolic"].map(n => data.shown.indexOf(n));
  heads.forEach((head, i) => data.shown.forEach((column, k) => { head[column] = now.heads[i][k]; }));
  paths.replaceChildren();
  $("moved").replaceChildren(now.changed.length ? "Go to " : "");
  now.changed.forEach((i, rank) => {
    const [before, after] = [first[i], now.heads[i]];
    const ends = { x1: across(before[x]), y1: up(before[y]), x2: across(after[x]), y2: up(after[y]) };
    draw(paths, "line", { class: "path", ...ends });
    if (rank >= 12) return;
    const button = make("button", { type: "button", "aria-label": name(heads[i]) }, `${heads[i].layer}.${heads[i].head}`);
    button.onclick = () => choose(i);
    $("moved").append(button, " ");
  });
  $("step-said").textContent = now.told;
  placeDots();
  choose(chosen);
}

// All of it -----------------------------------------------------------------------------------------------------------

function choose(i) {
  if (i !== chosen) { swapped = []; asking = null; }
  chosen = i;
  $("head").value = i;
  $("said").textContent = words(heads[i]);
  place(mark, heads[i].positional, heads[i].symbolic);
  placeRings();
  heat();
  frequencies();
  tokens();
}

function dress(dark) {
  document.documentElement.dataset.mode = dark ? "dark" : "light";
  $("mode").textContent = dark ? "Light" : "Dark";
}

document.title = data.title;
$("title").textContent = data.title;
$("about").textContent = data.about;
dress(matchMedia("(prefers-color-scheme: dark)").matches);
$("mode").onclick = () => dress(document.documentElement.dataset.mode !== "dark");
heads.forEach((head, i) => $("head").append(make("option", { value: i }, name(head))));
$("head").onchange = () => choose(Number($("head").value));
$("score").onchange = heat;
$("coverage").append(table(data.coverage.columns, data.coverage.rows));
$("settings").append(table(["setting", "value"], data.settings));
data.cite.forEach(line => $("cite").append(make("li", {}, line)));
if (steps.length) {
  $("steps").hidden = $("changes").hidden = false;
  $("changes").lastChild.append(table(data.changes.columns, data.changes.rows));
  $("step").max = $("step").value = at;
  $("step").oninput = () => goTo(Number($("step").value));
  goTo(at);
} else {
  placeDots();
  choose(chosen);
}
