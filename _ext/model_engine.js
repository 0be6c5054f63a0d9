// The trained models of chapter 06 in plain JavaScript: their tasks, their forward pass, both scores of every layer.
// It touches no page, so that a worker can run it: a page opened from disk may start a worker from this function's text
// alone. Sizes: T tokens, C width (one head a layer), n = T − 1 keys before the last token.
window.possymEngine = function possymEngine() {
  "use strict";
  const LEVELS = 46, GROUP = 128; // _ext/possym_model.py writes a weight as one character, and one scale per group of inputs
  const WINDOW = 17, TARGETS = 8, MOST_HOPS = 4, LETTERS = "abcdefgh";

  // ---- Weights -------------------------------------------------------------------------------------------------------

  const half = (bits) => {
    const sign = bits >> 15 ? -1 : 1, power = (bits >> 10) & 31, rest = bits & 1023;
    return sign * (power ? 2 ** (power - 15) * (1 + rest / 1024) : (2 ** -14 * rest) / 1024);
  };

  function unpack({ sizes, halves, levels, words, task }) {
    const { vocabulary: V, layers, width: C, inner } = sizes;
    const bytes = Uint8Array.from(atob(halves), (letter) => letter.charCodeAt(0));
    const small = Float32Array.from(new Uint16Array(bytes.buffer), half);
    let read = 0, written = 0;
    const vector = (count) => small.subarray(read, (read += count));
    const matrix = (rows, columns) => {
      const found = new Float32Array(rows * columns), scales = vector((rows * columns) / GROUP);
      for (let i = 0; i < found.length; i++) {
        const code = levels.charCodeAt(written++); // printable ASCII without the quote (34) and the backslash (92)
        found[i] = (code - 32 - (code > 34) - (code > 92) - LEVELS) * scales[Math.floor(i / GROUP)];
      }
      return found;
    };
    const block = () => ({
      gain: vector(C), bias: vector(C), innerBias: vector(inner), outputBias: vector(C),
      query: matrix(C, C), key: matrix(C, C), value: matrix(C, C), mixed: matrix(C, C),
      inner: matrix(inner, C), output: matrix(C, inner),
    });
    const gain = vector(C), bias = vector(C), headBias = vector(V);
    const model = { task, words, sizes, gain, bias, headBias, embedding: matrix(V, C), head: matrix(V, C) };
    model.blocks = Array.from({ length: layers }, block);
    model.ids = new Map(words.map((word, id) => [word, id]));
    model.angles = Float64Array.from({ length: C / 2 }, (_, plane) => 10000 ** ((-2 * plane) / C));
    return model;
  }

  // ---- The forward pass ----------------------------------------------------------------------------------------------

  // x·Φ(x) from a table of values and slopes, between which a cubic is right to 1e-9.
  const STEP = 1 / 64, EDGE = 9;
  const normal = (x) => {
    let term = Math.abs(x), sum = term; // Φ(x) = ½ + φ(x) (x + x³/3 + x⁵/15 + …)
    for (let odd = 3; term > 1e-17 * sum; odd += 2) sum += term *= (x * x) / odd;
    return 0.5 + Math.sign(x) * Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI) * sum;
  };
  const places = Float64Array.from({ length: (2 * EDGE) / STEP + 1 }, (_, i) => i * STEP - EDGE);
  const values = places.map((x) => x * normal(x));
  const slopes = places.map((x) => normal(x) + (x * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI));
  function gelu(x) {
    if (!(x > -EDGE && x < EDGE)) return x > 0 ? x : 0;
    const at = (x + EDGE) / STEP, i = Math.floor(at), t = at - i, s = 1 - t;
    return s * s * ((1 + 2 * t) * values[i] + t * STEP * slopes[i]) + t * t * ((1 + 2 * s) * values[i + 1] - s * STEP * slopes[i + 1]);
  }

  // x (rows, K) times the transpose of weight (N, K); six rows share each weight that is read.
  function product(x, weight, K, bias) {
    const rows = x.length / K, N = weight.length / K, out = new Float32Array(rows * N), six = new Float64Array(6 * K);
    for (let row = 0; row < rows; row += 6) {
      const count = Math.min(6, rows - row);
      for (let r = 0; r < count; r++) for (let k = 0; k < K; k++) six[6 * k + r] = x[(row + r) * K + k];
      for (let n = 0; n < N; n++) {
        let a = bias ? bias[n] : 0, b = a, c = a, d = a, e = a, f = a;
        for (let i = 0, w = n * K; i < 6 * K; i += 6, w++) {
          const one = weight[w];
          a += one * six[i];
          b += one * six[i + 1];
          c += one * six[i + 2];
          d += one * six[i + 3];
          e += one * six[i + 4];
          f += one * six[i + 5];
        }
        const found = [a, b, c, d, e, f];
        for (let r = 0; r < count; r++) out[(row + r) * N + n] = found[r];
      }
    }
    return out;
  }

  function norm(x, C, gain, bias) {
    const out = new Float32Array(x.length);
    for (let row = 0; row < x.length; row += C) {
      let mean = 0, square = 0;
      for (let c = 0; c < C; c++) mean += x[row + c] / C;
      for (let c = 0; c < C; c++) square += (x[row + c] - mean) ** 2 / C;
      const scale = 1 / Math.sqrt(square + 1e-5);
      for (let c = 0; c < C; c++) out[row + c] = (x[row + c] - mean) * scale * gain[c] + bias[c];
    }
    return out;
  }

  function softmax(logits) {
    let largest = -Infinity, total = 0;
    for (const logit of logits) largest = Math.max(largest, logit);
    const weights = Float64Array.from(logits, (logit) => Math.exp(logit - largest));
    for (const weight of weights) total += weight;
    return weights.map((weight) => weight / total);
  }

  // Turns each row by its position; planes pair the dimensions 2f and 2f + 1.
  function turned(x, C, first, angles) {
    const out = new Float32Array(x.length);
    for (let row = 0; row < x.length / C; row++) {
      for (let f = 0; f < C / 2; f++) {
        const i = row * C + 2 * f, cos = Math.cos((first + row) * angles[f]), sin = Math.sin((first + row) * angles[f]);
        out[i] = x[i] * cos - x[i + 1] * sin;
        out[i + 1] = x[i] * sin + x[i + 1] * cos;
      }
    }
    return out;
  }

  // What the last rows of `query` mix out of the values up to their own places.
  function attend(query, key, value, C, angles) {
    const T = key.length / C, rows = query.length / C, out = new Float32Array(query.length);
    const asked = turned(query, C, T - rows, angles), keys = turned(key, C, 0, angles);
    for (let row = 0; row < rows; row++) {
      const logits = new Float64Array(T - rows + row + 1);
      for (let j = 0; j < logits.length; j++) {
        let sum = 0;
        for (let c = 0; c < C; c++) sum += asked[row * C + c] * keys[j * C + c];
        logits[j] = sum / Math.sqrt(C);
      }
      const weights = softmax(logits);
      for (let j = 0; j < weights.length; j++) for (let c = 0; c < C; c++) out[row * C + c] += weights[j] * value[j * C + c];
    }
    return out;
  }

  // The answers' logits, and what each layer's last token sees. Where `off` holds a layer, all places look at themselves.
  function forward(model, tokens, off = []) {
    const { layers, width: C, inner } = model.sizes, T = tokens.length, seen = [];
    let x = new Float32Array(T * C);
    tokens.forEach((token, place) => x.set(model.embedding.subarray(token * C, (token + 1) * C), place * C));
    for (let layer = 0; layer < layers; layer++) {
      const block = model.blocks[layer], normed = norm(x, C, block.gain, block.bias);
      const from = layer < layers - 1 ? 0 : (T - 1) * C; // of the last layer the last place alone is read
      const asking = normed.subarray(from);
      const query = product(asking, block.query, C), key = product(normed, block.key, C), value = product(normed, block.value, C);
      const mixed = off.includes(layer) ? value.subarray(from) : attend(query, key, value, C, model.angles);
      const hidden = product(asking, block.inner, C, block.innerBias).map(gelu);
      const attended = product(mixed, block.mixed, C), processed = product(hidden, block.output, inner, block.outputBias);
      x = x.slice(from).map((old, i) => old + attended[i] + processed[i]);
      seen.push(relocate(query.subarray(-C), key, C, model.angles));
    }
    return { logits: product(norm(x, C, model.gain, model.bias), model.head, C, model.headBias), seen };
  }

  // ---- Scores --------------------------------------------------------------------------------------------------------

  // relocated[a·n + b] is the logit of key content a at position b; `own` that of the last token's key, which stays.
  function relocate(query, keys, C, angles) {
    const T = keys.length / C, n = T - 1, relocated = new Float64Array(n * n), turns = new Float64Array(n * C);
    for (let b = 0; b < n; b++) {
      for (let f = 0; f < C / 2; f++) {
        turns[b * C + 2 * f] = Math.cos((n - b) * angles[f]) / Math.sqrt(C);
        turns[b * C + 2 * f + 1] = Math.sin((n - b) * angles[f]) / Math.sqrt(C);
      }
    }
    const parts = new Float64Array(C);
    for (let a = 0; a < n; a++) {
      for (let i = 0; i < C; i += 2) {
        const [x, y, p, q] = [keys[a * C + i], keys[a * C + i + 1], query[i], query[i + 1]];
        parts[i] = x * p + y * q;
        parts[i + 1] = y * p - x * q;
      }
      for (let b = 0; b < n; b++) {
        let sum = 0;
        for (let i = 0; i < C; i++) sum += parts[i] * turns[b * C + i];
        relocated[a * n + b] = sum;
      }
    }
    let own = 0;
    for (let i = 0; i < C; i++) own += query[i] * keys[n * C + i];
    return { relocated, n, own: own / Math.sqrt(C) };
  }

  // Attention on the n keys and on the last token's own, `swap` = [i, j] having changed places.
  function attention({ relocated, n, own }, swap = []) {
    const content = Array.from({ length: n }, (_, place) => place), [i, j] = swap;
    if (swap.length) [content[i], content[j]] = [j, i];
    return softmax([...content.map((a, b) => relocated[a * n + b]), own]);
  }

  // cos(v′, v) and cos(v′, reverse(v)) of one swap: what the two places hold before and after, up to scale.
  function cosines({ relocated, n }, i, j) {
    const pair = (a, b) => [Math.exp(a - Math.max(a, b)), Math.exp(b - Math.max(a, b))];
    const v = pair(relocated[i * n + i], relocated[j * n + j]), w = pair(relocated[j * n + i], relocated[i * n + j]);
    const length = Math.hypot(...v) * Math.hypot(...w);
    return [(v[0] * w[0] + v[1] * w[1]) / length, (v[0] * w[1] + v[1] * w[0]) / length];
  }

  // All swaps of two keys, weighted by the softmax of |dᵢ − dⱼ| / temperature, as possym.scores.swap_scores does.
  function scores(layer, temperature = 1e-4) {
    const held = attention(layer).subarray(0, layer.n);
    const most = Math.max(...held) - Math.min(...held);
    let positional = 0, symbolic = 0, total = 0;
    for (let i = 0; i < layer.n; i++) {
      for (let j = i + 1; j < layer.n; j++) {
        const weight = Math.exp((Math.abs(held[i] - held[j]) - most) / temperature);
        if (weight === 0) continue;
        const [stays, follows] = cosines(layer, i, j);
        positional += weight * stays;
        symbolic += weight * follows;
        total += weight;
      }
    }
    return { positional: positional / total, symbolic: symbolic / total };
  }

  // ---- Tasks ---------------------------------------------------------------------------------------------------------

  // The places that lead from the last word to the answer; what is wrong with the words is thrown in a sentence.
  function solve(task, words) {
    const path = [words.length - 1], goes = task === "number" ? /^\d+$/ : /^[a-h][a-h]$/;
    const what = task === "number" ? "a number" : "two letters";
    if (!goes.test(words[path[0]])) throw new Error(`The last token is the query: it must be ${what}.`);
    while (goes.test(words[path.at(-1)])) {
      const here = path.at(-1), word = words[here];
      let next = here - Number(word);
      if (task === "letter") {
        const found = words.flatMap((other, place) => (other[0] === word[1] ? [place] : []));
        if (found.length > 1) throw new Error(`The path reaches ${word}, and ${found.length} tokens begin with ${word[1]}: it forks.`);
        next = found.length ? found[0] : -1;
        if (next >= here) next = -1;
      }
      if (!(next >= 0)) throw new Error(`The path ends at ${word}, which leads to no earlier token.`);
      path.push(next);
    }
    return path;
  }

  // A sequence of 17 tokens with so many hops, drawn as possym.tasks draws; `random` gives numbers from 0 to below 1.
  function draw(task, hops, random) {
    const below = (count) => Math.floor(random() * count), one = (list) => list[below(list.length)];
    const shuffled = (list) => list.map((item) => [random(), item]).sort(([a], [b]) => a - b).map(([, item]) => item);
    const before = Array.from({ length: WINDOW - 1 - TARGETS }, (_, place) => place + TARGETS);
    const stops = shuffled(before).slice(0, hops - 1).sort((a, b) => b - a), path = [WINDOW - 1, ...stops, below(TARGETS)];
    const all = Array.from({ length: WINDOW }, (_, place) => place);
    if (task === "number") {
      const words = all.map((place) => (place < TARGETS ? extra(task, [], random) : String(1 + below(place))));
      path.slice(1).forEach((place, hop) => (words[path[hop]] = String(path[hop] - place)));
      return words;
    }
    const letters = shuffled([...LETTERS]), followed = letters.slice(0, hops + 1).reverse(), free = letters.slice(hops + 1);
    const words = all.map((place) => one(free) + (place < TARGETS ? 1 + below(8) : one(free)));
    path.forEach((place, hop) => (words[place] = followed[hop] + (hop < hops ? followed[hop + 1] : 1 + below(8))));
    return words;
  }

  // One more target token, which the answer does not need; the letters of a letter task's path are not used.
  function extra(task, path, random) {
    const below = (count) => Math.floor(random() * count), name = (i) => String.fromCharCode(97 + i);
    if (task === "number") {
      const i = below(120);
      return i < 26 ? name(i) : name(Math.floor(i / 26) - 1) + name(i % 26);
    }
    const free = [...LETTERS].filter((letter) => !path.some((word) => word.includes(letter)));
    if (!free.length) throw new Error("The path uses all eight letters: no token can be added that leads nowhere.");
    return free[below(free.length)] + (1 + below(8));
  }

  // ---- All that a page asks ------------------------------------------------------------------------------------------

  // The answer to a sequence, and of each layer attention, both scores, and what a swap does to it.
  function answer(model, { words, off = [], swap = [], temperature }) {
    const unknown = words.find((word) => !model.ids.has(word));
    if (unknown !== undefined) throw new Error(`“${unknown}” is no token of the ${model.task} task.`);
    if (words.length < 3) throw new Error("Give at least three tokens.");
    const { logits, seen } = forward(model, words.map((word) => model.ids.get(word)), off);
    const probabilities = softmax(logits), best = logits.indexOf(Math.max(...logits));
    const layers = seen.map((layer) => ({
      ...scores(layer, temperature),
      attention: attention(layer),
      after: swap.length ? attention(layer, swap) : null,
      cosines: swap.length ? cosines(layer, ...swap) : null,
    }));
    return { answer: model.words[best], probability: probabilities[best], layers };
  }

  return { unpack, forward, scores, attention, cosines, solve, draw, extra, answer, WINDOW, MOST_HOPS };
};
