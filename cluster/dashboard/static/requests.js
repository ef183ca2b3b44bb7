// Who is served, why others wait, and who has lost its place.

import { requestColour } from "./colours.js";

const MOST_ROWS = 60;
const MOST_EVENTS = 50;

const REASONS = {
  places: "no place in the batch is free",
  blocks: "blocks are missing",
  fence: "blocks are behind a fence",
  budget: "the step is full",
  prefix: "another computes its prefix",
  behind_parked: "one that lost its blocks comes first",
  behind_others: "others come first",
};

function why(request) {
  if (!request.reason) return "";
  const short = request.blocks_short ? `: ${request.blocks_short} short` : "";
  const behind = request.behind ? ` (${request.behind})` : "";
  const latest = request.estimate_seconds == null ? "" : `, at most ${Math.max(0.1, request.estimate_seconds).toFixed(1)} s`;
  return `${REASONS[request.reason] ?? request.reason}${short}${behind}${latest}`;
}

function tagOf(requestId) {
  const tag = document.createElement("span");
  tag.className = "tag";
  tag.style.background = requestColour(requestId);
  return tag;
}

const nameOf = (request) => request.request_id + (request.choice ? ` #${request.choice}` : "");

export function showRequests(body, more, group) {
  // Those who wait come first: they are whom somebody looks for.
  const waits = (request) => (request.state === "running" ? 1 : 0);
  const listed = [...group.yard.requests].sort((a, b) => waits(a) - waits(b)).slice(0, MOST_ROWS);
  const rows = listed.map((request) => {
    const row = document.createElement("tr");
    const cells = [
      nameOf(request), request.state, request.priority, request.prompt_tokens,
      `${request.output_tokens} of ${request.max_tokens}`, request.num_blocks, request.num_preemptions, why(request),
    ];
    cells.forEach((value, index) => {
      const cell = document.createElement("td");
      cell.textContent = value;
      if (index >= 3 && index <= 6) cell.className = "number";
      row.append(cell);
    });
    row.firstChild.prepend(tagOf(request.request_id));
    return row;
  });
  body.replaceChildren(...rows);
  const left = group.yard.num_requests - listed.length;
  more.textContent = left > 0 ? `and ${left.toLocaleString("en")} more` : listed.length ? "" : "nobody is served at the moment";
}

export class Preemptions {
  constructor(list, counts) {
    this.list = list;
    this.counts = counts;
    this.clear();
  }

  clear() {
    this.before = null;
    this.list.replaceChildren();
  }

  show(time, group) {
    const { swapped, recomputed, held, blocks_out: out, blocks_in: back } = group.preempted;
    this.counts.textContent =
      `${swapped} swapped, ${recomputed} to recompute, ${held} only out of the batch; ` +
      `${out} blocks moved to host memory, ${back} back`;
    const now = new Map(group.yard.requests.map((request) => [nameOf(request), request]));
    if (this.before !== null) {
      let told = 0;
      for (const [name, request] of now) {
        const times = request.num_preemptions - (this.before.requests.get(name)?.num_preemptions ?? 0);
        if (times > 0) {
          told += times;
          this.note(time, `${name} lost its place${request.state === "parked" ? "" : " and is back"}`, request.request_id);
        }
      }
      const all = swapped + recomputed + held;
      const unnamed = all - this.before.all - told;
      if (unnamed > 0) this.note(time, `${unnamed} more, of requests that are gone or not listed`, "");
    }
    this.before = { requests: now, all: swapped + recomputed + held };
  }

  note(time, words, requestId) {
    const item = document.createElement("li");
    item.textContent = `${new Date(1000 * time).toLocaleTimeString()} · ${words}`;
    if (requestId) item.prepend(tagOf(requestId));
    this.list.prepend(item);
    while (this.list.children.length > MOST_EVENTS) this.list.lastChild.remove();
  }
}
