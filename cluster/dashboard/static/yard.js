// The page's one loop: news comes, the parts draw what changed. Units: as in the news.

import { Chart } from "./chart.js";
import { BlockMap } from "./map.js";
import { Preemptions, showRequests } from "./requests.js";
import { Ask } from "./ask.js";
import { News, useKey } from "./server.js";

const byId = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const count = (value) => value.toLocaleString("en");

const map = new BlockMap(byId("map"), byId("map-cell"), byId("map-scale"));
const blocksChart = new Chart(byId("blocks-chart"), byId("blocks-legend"));
const contiguousChart = new Chart(byId("contiguous-chart"), byId("contiguous-legend"));
const preemptions = new Preemptions(byId("preemptions"), byId("preemption-counts"));
const ask = new Ask(byId("ask"), byId("answer"), byId("stop"), byId("ask-how"));
const news = new News({
  opened: () => { preemptions.forget(); setLink("live", false); },
  came: (text) => {
    // Drawn with the next frame; news that come faster than frames are drawn once.
    if (pending === null) requestAnimationFrame(() => { const latest = pending; pending = null; show(JSON.parse(latest)); });
    pending = text;
  },
  lost: () => setLink("the server does not answer; trying again …", true),
  keyWanted: (message) => { setLink(message, true); byId("key").hidden = false; byId("key").secret.focus(); },
});

let shown = "";
let listed = "";
let pending = null;

function connect(group) {
  shown = group;
  clear();
  news.connect(group);
}

function clear() {
  for (const part of [blocksChart, contiguousChart, preemptions]) part.clear();
}

function setLink(text, lost) {
  const link = byId("link");
  if (link.textContent !== text) link.textContent = text;
  link.classList.toggle("lost", lost);
}

function show({ time, groups }) {
  listGroups(groups);
  const group = groups.find((each) => each.yard) ?? null;
  if (group === null) { setLink("no group is up", true); return; }
  setLink("live", false);
  if (group.id !== shown) {
    shown = group.id;
    byId("group").value = group.id;
    clear();
  }
  showFigures(group);
  map.show(group);
  ask.show(group);
  blocksChart.add(time, group.shares);
  const reserving = group.contiguous.find((each) => each.policy === "max_seq_len");
  if (reserving) contiguousChart.add(time, reserving.shares);
  showRequests(byId("requests"), byId("more"), group);
  preemptions.show(time, group);
  document.body.dataset.step = group.step;
}

function listGroups(groups) {
  const names = groups.map((group) => group.id).join();
  if (names === listed) return;
  listed = names;
  byId("group").replaceChildren(
    ...groups.map((group) => new Option(`${group.model} · ${group.id} · ${group.device}`, group.id, false, group.id === shown)),
  );
}

function showFigures(group) {
  const { blocks, requests, shares } = group;
  const reserving = group.contiguous.find((each) => each.policy === "max_seq_len");
  const figures = [
    [count(requests.running), "running"],
    [count(requests.waiting + requests.parked), "waiting"],
    [`${count(blocks.active)} / ${count(blocks.total)}`, "blocks active"],
    [percent(shares.tokens), "of memory holds tokens"],
    ...(reserving ? [[percent(reserving.shares.tokens), "in contiguous memory"]] : []),
    [count(group.step), "steps"],
  ];
  byId("figures").replaceChildren(...figures.map(([value, name]) => {
    const figure = document.createElement("div");
    figure.className = "figure";
    const strong = document.createElement("b");
    strong.textContent = value;
    const label = document.createElement("span");
    label.textContent = name;
    figure.append(strong, label);
    return figure;
  }));
}

byId("group").addEventListener("change", (event) => connect(event.target.value));
byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(event.target.secret.value.trim());
  event.target.hidden = true;
  connect(shown);
});
connect("");
