// The map of a pool: a cell for each block, or for several where there are more than 4,096.

import { named, onThemeChange, requestColour, sharpen } from "./colours.js";

const NOBODY = 0xffff;
const GAP = 1;

function nameOf({ request_id: name, choice }) {
  return (name ? `request ${name}` : "a request of another tenant") + (choice ? `, answer ${choice}` : "");
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

export class BlockMap {
  constructor(canvas, told, scale) {
    this.canvas = canvas;
    this.told = told;
    this.scale = scale;
    this.group = null;
    this.cursor = -1;
    new ResizeObserver(() => this.draw()).observe(canvas);
    onThemeChange(() => this.draw());
    canvas.addEventListener("keydown", (event) => this.move(event));
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.pick(-1));
    canvas.addEventListener("blur", () => this.pick(-1));
  }

  show(group) {
    const yard = group.yard;
    this.group = group;
    this.cells = {
      active: bytesOf(yard.active), cached: bytesOf(yard.cached), fenced: bytesOf(yard.fenced),
      filled: bytesOf(yard.filled), owners: new Uint16Array(bytesOf(yard.owners).buffer),
    };
    const each = yard.blocks_per_cell;
    const text = `${yard.num_blocks.toLocaleString("en")} blocks of ${group.block_size} tokens` +
      (each > 1 ? `, ${each.toLocaleString("en")} in a cell` : "");
    if (this.scale.textContent !== text) this.scale.textContent = text;
    this.draw();
  }

  // Cells are square, as large as fits a height that leaves room for the rest of the page.
  layout() {
    const width = this.canvas.clientWidth;
    const total = this.cells.active.length;
    let size = 26;
    while (size > 4 && Math.ceil(total / Math.floor(width / size)) * size > 380) size--;
    const columns = Math.max(1, Math.floor(width / size));
    return { width, size, columns, height: Math.ceil(total / columns) * size };
  }

  draw() {
    if (this.group === null || this.canvas.clientWidth === 0) return;
    const { width, size, columns, height } = this.layout();
    this.canvas.style.height = `${height}px`;
    const context = sharpen(this.canvas, width, height);
    context.clearRect(0, 0, width, height);
    const requests = this.group.yard.requests;
    const inner = size - GAP;
    const [free, mark, bad] = [named("free"), named("mark"), named("bad")];
    const { active, cached, fenced, filled, owners } = this.cells;
    for (let cell = 0; cell < active.length; cell++) {
      const x = (cell % columns) * size;
      const y = Math.floor(cell / columns) * size;
      context.fillStyle = free;
      context.fillRect(x, y, inner, inner);
      if (active[cell]) {
        const fill = 0.3 + 0.7 * (filled[cell] / 255);
        const share = 0.25 + 0.75 * (active[cell] / 255);
        const owner = owners[cell] === NOBODY ? null : requests[owners[cell]];
        context.fillStyle = owner ? requestColour(owner.mark, fill * share) : mark;
        context.fillRect(x, y, inner, inner);
      }
      if (cached[cell]) hatch(context, x, y, inner, mark, cached[cell] / 255, false);
      if (fenced[cell]) hatch(context, x, y, inner, bad, fenced[cell] / 255, true);
    }
    if (this.cursor >= 0 && this.cursor < active.length) {
      context.strokeStyle = named("ink");
      context.lineWidth = 2;
      context.strokeRect((this.cursor % columns) * size - 1, Math.floor(this.cursor / columns) * size - 1, size + 1, size + 1);
      this.tell();
    }
  }

  move(event) {
    if (this.group === null) return;
    const { columns } = this.layout();
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const last = this.cells.active.length - 1;
    let next = event.key === "Home" ? 0 : event.key === "End" ? last : null;
    if (next === null) {
      if (!(event.key in steps)) return;
      next = this.cursor < 0 ? 0 : this.cursor + steps[event.key];
    }
    event.preventDefault();
    if (next >= 0 && next <= last) this.pick(next);
  }

  point(event) {
    if (this.group === null) return;
    const { size, columns } = this.layout();
    const column = Math.floor(event.offsetX / size);
    const cell = Math.floor(event.offsetY / size) * columns + column;
    this.pick(column < columns && cell < this.cells.active.length ? cell : -1);
  }

  pick(cell) {
    if (cell === this.cursor) return;
    this.cursor = cell;
    this.draw();
    if (cell < 0) this.told.textContent = "Point at a block, or move with the arrow keys.";
  }

  tell() {
    const { yard, block_size: slots } = this.group;
    const first = this.cursor * yard.blocks_per_cell;
    const number = Math.min(yard.blocks_per_cell, yard.num_blocks - first);
    const name = number === 1 ? `Block ${first}` : `Blocks ${first} to ${first + number - 1}`;
    const part = (state) => Math.floor((this.cells[state][this.cursor] * number) / 255);
    const active = part("active");
    const states = ["active", "cached", "fenced"].filter((state) => part(state));
    const parts = states.map((state) => (number === 1 ? state : `${part(state)} ${state}`));
    const tokens = Math.floor((this.cells.filled[this.cursor] * active * slots) / 255);
    const owner = yard.requests[this.cells.owners[this.cursor]];
    const text = [
      `${name}: ${parts.join(", ") || "free"}`,
      active ? `${tokens} of ${active * slots} slots hold tokens` : "",
      active && owner ? nameOf(owner) : "",
    ].filter(Boolean).join("; ");
    if (this.told.textContent !== text) this.told.textContent = text;
  }
}

function hatch(context, x, y, size, colour, strength, crossed) {
  context.save();
  context.beginPath();
  context.rect(x, y, size, size);
  context.clip();
  context.globalAlpha = 0.35 + 0.65 * strength;
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let offset = -size; offset < size; offset += 4) {
    context.moveTo(x + offset, y + size);
    context.lineTo(x + offset + size, y);
    if (crossed) {
      context.moveTo(x + offset, y);
      context.lineTo(x + offset + size, y + size);
    }
  }
  context.stroke();
  context.restore();
}
