// Shares of a memory over as long as somebody watches, at most five minutes: lines from 0 to 100 %.

import { named, onThemeChange, sharpen } from "./colours.js";

const LEAST_SECONDS = 20;
const MOST_SECONDS = 300;
const LINES = [
  ["tokens", "real tokens"],
  ["reservation", "reserved, not produced"],
  ["internal", "empty inside units"],
  ["external", "free but fragmented"],
];

export class Chart {
  constructor(canvas, legend) {
    this.canvas = canvas;
    this.samples = [];
    this.values = new Map();
    for (const [name, words] of LINES) {
      const item = document.createElement("li");
      const dot = document.createElement("span");
      dot.className = "dot";
      dot.style.background = `var(--${name})`;
      const value = document.createElement("b");
      this.values.set(name, value);
      item.append(dot, `${words} `, value);
      legend.append(item);
    }
    new ResizeObserver(() => this.draw()).observe(canvas);
    onThemeChange(() => this.draw());
  }

  clear() {
    this.samples = [];
  }

  add(time, shares) {
    this.samples.push({ time, shares });
    while (this.samples[0].time < time - MOST_SECONDS) this.samples.shift();
    for (const [name, value] of this.values) value.textContent = `${(100 * shares[name]).toFixed(1)} %`;
    this.canvas.setAttribute("aria-label", LINES.map(([name, words]) => `${words} ${(100 * shares[name]).toFixed(1)} %`).join(", "));
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === 0) return;
    const context = sharpen(this.canvas, width, height);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const [left, top, bottom] = [44, 8, height - 18];
    const y = (share) => bottom - share * (bottom - top);
    context.fillStyle = named("quiet");
    context.strokeStyle = named("line");
    context.lineWidth = 1;
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      context.fillText(`${100 * share} %`, 4, y(share));
      context.beginPath();
      context.moveTo(left, Math.round(y(share)) + 0.5);
      context.lineTo(width, Math.round(y(share)) + 0.5);
      context.stroke();
    }
    const end = this.samples.at(-1)?.time ?? 0;
    const seconds = Math.max(LEAST_SECONDS, end - (this.samples[0]?.time ?? 0));
    context.fillText(`${Math.round(seconds)} s ago`, left, height - 7);
    context.textAlign = "right";
    context.fillText("now", width - 2, height - 7);
    context.textAlign = "left";
    if (this.samples.length === 0) return;
    const x = (time) => width - ((end - time) / seconds) * (width - left);
    context.lineWidth = 2;
    context.lineJoin = "round";
    for (const [name] of LINES) {
      context.strokeStyle = named(name);
      context.beginPath();
      for (const { time, shares } of this.samples) context.lineTo(x(time), y(shares[name]));
      context.stroke();
    }
  }
}
