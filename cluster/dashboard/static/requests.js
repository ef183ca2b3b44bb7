// Who is served, why others wait, and who has lost its place.

import { paint } from "./colours.js";

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

function tagOf(mark) {
  const tag = document.createElement("span");
  tag.className = "tag";
  paint(tag, mark);
  return tag;
}

// Who may not know whose a request is learns no name of it.
const nameOf = (request) => (request.request_id || "another tenant's") + (request.choice ? ` #${request.choice}` : "");
const keyOf = (request) => `${request.mark} ${request.choice}`;

export function showRequests(body, more, group) {
  // Those who wait come first: they are whom somebody looks for.
  const waits = (request) => (request.state === "running" ? 1 : 0);
  const listed = [...group.yard.requests].sort((a, b) => waits(a) - waits(b)).slice(0, MOST_ROWS);
  const rows = listed.map((request) => {
    const row = document.createElement("tr");
    const cells = [
      nameOf(request) + (request.tenant && ` · ${request.tenant}`), request.state, request.priority, request.prompt_tokens,
      `${request.output_tokens} of ${request.max_tokens}`, request.num_blocks, request.num_preemptions, why(request),
    ];
    cells.forEach((value, index) => {
      const cell = document.createElement("td");
      cell.textContent = value;
      if (index >= 3 && index <= 6) cell.className = "number";
      row.append(cell);
    });
    if (!request.request_id) row.firstChild.classList.add("others");
    row.firstChild.prepend(tagOf(request.mark));
    return row;
  });
  body.replaceChildren(...rows);
  more.textContent = howMany(listed.length, group.yard.num_requests, body.closest(".scroll"));
}

function howMany(listed, all, region) {
  if (all === 0) return "nobody is served at the moment";
  const scroll = region.scrollHeight > region.clientHeight ? "; scroll to see them" : "";
  if (listed < all) return `${listed} of ${all.toLocaleString("en")} requests, those who wait first${scroll}`;
  return `${all === 1 ? "1 request" : `all ${all} requests`}${scroll}`;
}

export class Preemptions {
  constructor(list, counts) {
    this.list = list;
    this.counts = counts;
    this.clear();
  }

  clear() {
    this.forget();
    this.list.replaceChildren();
  }

  // What comes next may be told by another process, which knows requests by other marks.
  forget() {
    this.before = null;
  }

  show(time, group) {
    const { swapped, recomputed, held, moved, blocks_out: out, blocks_in: back } = group.preempted;
    this.counts.textContent =
      `${swapped} swapped, ${recomputed} to recompute, ${held} only out of the batch, ` +
      `${moved} to another group; ${out} blocks moved to host memory, ${back} back`;
    const now = new Map(group.yard.requests.map((request) => [keyOf(request), request]));
    if (this.before !== null) {
      let told = 0;
      for (const [key, request] of now) {
        const times = request.num_preemptions - (this.before.requests.get(key)?.num_preemptions ?? 0);
        if (times > 0) {
          told += times;
          const back = request.state === "parked" ? "" : " and is back";
          this.note(time, `${nameOf(request)} lost its place${back}`, request.mark);
        }
      }
      const all = swapped + recomputed + held;
      const unnamed = all - this.before.all - told;
      if (unnamed > 0) this.note(time, `${unnamed} more, of requests that are gone or not listed`, "");
    }
    this.before = { requests: now, all: swapped + recomputed + held };
  }

  note(time, words, mark) {
    const item = document.createElement("li");
    item.textContent = `${new Date(1000 * time).toLocaleTimeString()} · ${words}`;
    if (mark) item.prepend(tagOf(mark));
    this.list.prepend(item);
    while (this.list.children.length > MOST_EVENTS) this.list.lastChild.remove();
  }
}
