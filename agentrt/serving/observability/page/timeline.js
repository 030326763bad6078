// The times at which calls were in each replica's batch, in the last minutes.

import { byId, h, mark } from "./dom.js";

const ROW = 11;
const GAP = 3;
const HEAD = 20;
const MOST_ROWS = 24;
const WINDOWS = [30, 60, 120, 300];

// A bar begins when its call was made (`emitted`), or when its call first entered a batch (`admitted`).
const emitted = (call) => Math.min(call.created_at, call.spans[0][0]);
const keyOf = (call) => `${call.program}/${call.id}`;
const admitted = (call) => call.spans[0][0];

// Puts each call into the first row that is free at its start.
function pack(calls, begin) {
  const ends = [];
  const placed = [];
  let more = 0;
  for (const call of [...calls].sort((a, b) => begin(a) - begin(b))) {
    const from = begin(call);
    let row = ends.findIndex((end) => end <= from);
    if (row < 0) row = ends.length;
    if (row >= MOST_ROWS) {
      more += 1;
      continue;
    }
    ends[row] = call.ended_at ?? Infinity;
    placed.push({ call, row, from });
  }
  return { calls: placed, rows: ends.length, more };
}

export class Timeline {
  constructor(store, choose, redraw) {
    Object.assign(this, { store, choose, redraw });
    this.length = 60;
    this.chosen = null;
    this.bars = [];
    this.current = null; // the call that the arrow keys have reached
    const label = "Calls in each replica's batch over time: arrow keys go from call to call, Enter chooses its program";
    this.canvas = h("canvas", { role: "application", tabindex: 0, "aria-label": label });
    this.tip = h("output", { hidden: true });
    byId("bars").append(this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("keydown", (event) => this.step(event));
    this.canvas.addEventListener("blur", () => {
      this.current = null;
      this.tip.hidden = true;
    });
    this.canvas.addEventListener("click", (event) => {
      const bar = this.at(event);
      if (bar) this.choose(bar.call.program);
    });
    this.buttons = WINDOWS.map((seconds) => {
      const set = () => ((this.length = seconds), this.redraw());
      const text = seconds < 60 ? `${seconds} s` : `${seconds / 60} min`;
      return h("button", { type: "button", "data-seconds": seconds, onclick: set }, text);
    });
    byId("windows").append(...this.buttons);
  }

  draw(now) {
    for (const button of this.buttons) mark(button, "aria-pressed", Number(button.dataset.seconds) === this.length);
    const from = now - this.length;
    const bands = this.bands(from, now);
    const width = byId("bars").clientWidth;
    const height = bands.reduce((sum, band) => sum + HEAD + band.rows * (ROW + GAP) + 6, 18);
    const pen = this.pen(width, Math.max(height, byId("bars").clientHeight));
    const colours = this.colours();
    const x = (at) => ((at - from) / this.length) * width;
    this.grid(pen, colours, width, Math.max(height, byId("bars").clientHeight));
    this.bars = [];
    let top = 16;
    for (const band of bands) {
      this.band(pen, colours, band, top, x, now);
      top += HEAD + band.rows * (ROW + GAP) + 6;
    }
  }

  // The calls of each replica, in rows.
  bands(from, now) {
    const bands = new Map(this.store.engines.replicas.map(({ name }) => [name, []]));
    for (const call of this.store.calls.values()) {
      if (!call.spans.length || (call.ended_at ?? now) < from) continue;
      const name = call.replica || bands.keys().next().value || "engine";
      if (!bands.has(name)) bands.set(name, []);
      bands.get(name).push(call);
    }
    return [...bands].map(([name, calls]) => {
      const whole = pack(calls, emitted);
      // With a long queue, waiting calls would fill the rows: then bars begin in the batch.
      return { name, ...(whole.more ? pack(calls, admitted) : whole) };
    });
  }

  pen(width, height) {
    const ratio = window.devicePixelRatio || 1;
    const { canvas } = this;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  colours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["bar", "running", "waiting", "failed", "line", "soft"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  grid(pen, colours, width, height) {
    pen.font = "10.5px system-ui, sans-serif";
    pen.textAlign = "center";
    const step = this.length / 6;
    for (let ago = step; ago < this.length; ago += step) {
      const x = Math.round(width - (ago / this.length) * width) + 0.5;
      pen.strokeStyle = colours.line;
      pen.beginPath();
      pen.moveTo(x, 16);
      pen.lineTo(x, height);
      pen.stroke();
      pen.fillStyle = colours.soft;
      pen.fillText(ago < 60 ? `−${Math.round(ago)} s` : `−${(ago / 60).toFixed(1)} min`, x, 11);
    }
  }

  band(pen, colours, band, top, x, now) {
    pen.textAlign = "left";
    pen.fillStyle = colours.soft;
    pen.fillText(band.more ? `${band.name} · ${band.more} more` : band.name, 0, top + 12);
    for (const { call, row, from } of band.calls) {
      const y = top + HEAD + row * (ROW + GAP);
      this.call(pen, colours, call, { y, from }, x, now);
      this.bars.push({ call, y, left: x(from), right: x(call.ended_at ?? now) });
    }
  }

  call(pen, colours, call, { y, from }, x, now) {
    const chosen = call.program === this.chosen;
    const left = x(from);
    if (keyOf(call) === this.current) {
      pen.strokeStyle = colours.soft;
      pen.strokeRect(left - 2, y - 2, Math.max(4, x(call.ended_at ?? now) - left + 4), ROW + 4);
    }
    pen.fillStyle = colours.waiting; // the call waits before its first span, and between its spans
    pen.fillRect(left, y + ROW / 2 - 1, Math.max(0, x(call.ended_at ?? now) - left), 2);
    call.spans.forEach(([begin, end], index) => {
      const [a, b] = [x(begin), x(end ?? now)];
      pen.fillStyle = chosen ? colours.running : colours.bar;
      pen.beginPath();
      pen.roundRect(a, y, Math.max(1.5, b - a - 0.75), ROW, Math.min(2.5, (b - a) / 2));
      pen.fill();
      const preempted = end !== null && (index < call.spans.length - 1 || call.ended_at === null);
      if (!preempted) return;
      pen.fillStyle = colours.failed;
      pen.fillRect(b - 2, y - 1.5, 2.5, ROW + 3);
    });
  }

  at(event) {
    return this.bars.find((bar) => event.offsetY >= bar.y - 1 && event.offsetY <= bar.y + ROW + 1 && event.offsetX >= bar.left - 1 && event.offsetX <= bar.right + 1);
  }

  point(event) {
    const bar = this.at(event);
    this.tip.hidden = !bar;
    this.canvas.style.cursor = bar ? "pointer" : "";
    if (bar) this.tell(bar, event.offsetX);
  }

  // The arrow keys, Home and End move between calls in the order of their start. Enter chooses the
  // program of the current call.
  step(event) {
    const bars = [...this.bars].sort((a, b) => a.left - b.left || a.y - b.y);
    const at = bars.findIndex(({ call }) => keyOf(call) === this.current);
    if (event.key === "Enter" && at >= 0) this.choose(bars[at].call.program);
    const places = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at < 0 ? bars.length - 1 : at - 1, ArrowUp: at < 0 ? bars.length - 1 : at - 1, Home: 0, End: bars.length - 1 };
    const bar = bars[places[event.key]];
    if (!bar) return;
    event.preventDefault();
    this.current = keyOf(bar.call);
    this.tip.hidden = false;
    this.tell(bar, Math.max(0, bar.left));
    this.redraw();
  }

  tell(bar, x) {
    const { call } = bar;
    const times = call.preemptions ? `, preempted ${call.preemptions} ×` : "";
    this.tip.textContent = `${call.program} #${call.id} ${call.state}${times}`;
    this.tip.style.top = `${bar.y + ROW + 5}px`;
    this.tip.style.left = `${Math.max(0, Math.min(x, this.canvas.clientWidth - 190))}px`;
  }
}
