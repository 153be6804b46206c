// Live figures: the server's metrics, once a second, as numbers and sparklines.

import { element } from "./conversation.js";

const SVG = "http://www.w3.org/2000/svg";
const INTERVAL_MS = 1000;
const NUM_POINTS = 60;

const FIGURES = [
  { id: "running", label: "Running", title: "Requests being computed", read: (now) => now.total("num_requests_running") },
  { id: "waiting", label: "Waiting", title: "Requests in the queue", read: (now) => now.total("num_requests_waiting") },
  {
    id: "kv-use", label: "KV cache use", title: "Share of the KV cache's blocks in use", percent: true,
    read: (now) => now.mean("kv_cache_usage_perc"),
  },
  {
    id: "prefix-hits", label: "Prefix hits", percent: true,
    title: "Share of prompt tokens found in the prefix cache, since the server started",
    read: (now) => now.total("prefix_cache_hits_total") / now.total("prefix_cache_queries_total"),
  },
  {
    id: "generated", label: "Generated", title: "Generated tokens per second", unit: "tok/s",
    read: (now, before) => rate("generation_tokens_total", now, before),
  },
  {
    id: "prompt-tokens", label: "Prompt", title: "Prompt tokens per second", unit: "tok/s",
    read: (now, before) => rate("prompt_tokens_total", now, before),
  },
];

/** Values of one scrape by name. The prefix up to the colon is the server's to choose. */
class Sample {
  constructor(text) {
    this.time = performance.now();
    this.values = new Map();
    for (const line of text.split("\n")) {
      const match = /^([^\s{#]+)(?:\{.*\})?\s+(\S+)/.exec(line);
      if (!match) continue;
      const name = match[1].slice(match[1].indexOf(":") + 1);
      const values = this.values.get(name) ?? [];
      values.push(Number(match[2]));
      this.values.set(name, values);
    }
  }

  /** NaN where the server has no such metric. */
  total(name) {
    return this.values.get(name)?.reduce((sum, value) => sum + value, 0) ?? NaN;
  }

  mean(name) {
    return this.total(name) / (this.values.get(name)?.length ?? NaN);
  }
}

function rate(name, now, before) {
  if (!before) return NaN;
  const grown = now.total(name) - before.total(name);
  return grown < 0 ? NaN : grown / ((now.time - before.time) / 1000); // less than before: the server has started anew
}

class Figure {
  constructor(description, list) {
    this.description = description;
    this.points = [];
    this.value = element("dd", "figure-value");
    this.value.id = `figure-${description.id}`;
    this.value.textContent = "–";
    const tile = element("div", "figure");
    tile.title = description.title;
    tile.append(element("dt", "", description.label), this.value, this.drawing());
    list.append(tile);
  }

  drawing() {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${NUM_POINTS - 1} 24`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("class", "sparkline");
    svg.setAttribute("aria-hidden", "true");
    this.area = document.createElementNS(SVG, "polygon");
    this.line = document.createElementNS(SVG, "polyline");
    svg.append(this.area, this.line);
    return svg;
  }

  show(value) {
    const { percent, unit } = this.description;
    if (Number.isFinite(value)) {
      const shown = percent ? value * 100 : value;
      const maximumFractionDigits = shown < 10 && (percent || unit) ? 1 : 0;
      this.value.replaceChildren(shown.toLocaleString("en", { maximumFractionDigits }));
      if (percent || unit) this.value.append(" ", element("span", "unit", percent ? "%" : unit));
    } else {
      this.value.replaceChildren("–");
    }
    this.points.push(Number.isFinite(value) ? value : 0);
    if (this.points.length > NUM_POINTS) this.points.shift();
    this.draw();
  }

  draw() {
    const top = this.description.percent ? 1 : Math.max(1, ...this.points);
    const start = NUM_POINTS - this.points.length;
    const corners = this.points.map((value, i) => `${start + i},${(22.5 - 21 * Math.min(1, value / top)).toFixed(2)}`);
    this.line.setAttribute("points", corners.join(" "));
    this.area.setAttribute("points", [`${start},24`, ...corners, `${NUM_POINTS - 1},24`].join(" "));
  }
}

/** Shows the figures in `list` while the page is visible. `read` gives the metrics' text; `onRead(error)` is told of each. */
export function startFigures(list, read, onRead) {
  const figures = FIGURES.map((description) => new Figure(description, list));
  let before = null;
  let timer = null;

  async function update() {
    let error = null;
    let now = null;
    try {
      now = new Sample(await read());
    } catch (caught) {
      error = caught;
    }
    for (const figure of figures) figure.show(now ? figure.description.read(now, before) : NaN);
    before = now;
    onRead(error);
  }

  async function run() {
    if (document.visibilityState !== "visible") {
      timer = null;
      return;
    }
    timer = 0; // an update is under way
    await update();
    timer = setTimeout(run, INTERVAL_MS);
  }

  document.addEventListener("visibilitychange", () => {
    if (timer === null) run();
  });
  run();
}
