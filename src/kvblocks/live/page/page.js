"use strict";
// Asks /state once a second and draws it. Text from the server enters as text only, never as markup.
const PERIOD_MS = 1000;
const COLOURS = {
  hit: "#009E73", external: "#8fd3bd", first_seen: "#7a8594", partial_block: "#56B4E9", last_token: "#a6cee3",
  evicted: "#D55E00", key_differs: "#CC79A7", group_veto: "#F0E442", in_flight: "#0072B2", draft_head: "#b2a1d6",
  opted_out: "#b59f7b", preempted: "#a33b20", reset: "#e7a5a0", unknown: "#4b4f57",
};
const WORDS = {
  hit: "hit", external: "from a connector", first_seen: "first seen", partial_block: "partial block",
  last_token: "last token", evicted: "evicted", key_differs: "other key", group_veto: "group veto",
  in_flight: "in flight", draft_head: "draft head", opted_out: "opted out", preempted: "preempted", reset: "reset",
  unknown: "unknown",
};
const byId = id => document.getElementById(id);
const number = value => value.toLocaleString("en-US");
const percent = share => (100 * share).toFixed(1) + " %";
let state = null, paused = false, pointed = null, chosen = -1;

function node(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function duration(seconds) {
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 3600) return (seconds / 60).toFixed(1) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function table(place, heads, rows, empty) {
  const body = byId(place);
  body.replaceChildren();
  if (!rows.length) { body.append(node("tbody")); body.firstChild.append(node("tr")); body.querySelector("tr").append(node("td", empty)); return; }
  const head = node("tr");
  heads.forEach(text => head.append(node("th", text)));
  const top = node("thead"); top.append(head);
  const rest = node("tbody");
  for (const cells of rows) {
    const row = node("tr");
    cells.forEach(cell => row.append(cell instanceof Node ? cell : node("td", cell)));
    rest.append(row);
  }
  body.append(top, rest);
}

function tiles() {
  const pool = state.pool, counts = state.counts;
  const age = counts.mean_age_at_eviction_s;
  const shown = [
    [counts.prompt_tokens ? percent(counts.hit_rate) : "–", "hit rate, in tokens"],
    [number(counts.requests), "requests admitted"],
    [number(counts.prompt_tokens), "prompt tokens"],
    [number(pool.live), "blocks live of " + number(pool.usable)],
    [number(pool.cached), "blocks cached"],
    [number(pool.blank), "blocks blank"],
    [number(counts.evicted_blocks), "evictions" + (age === null ? "" : ", after " + duration(age))],
    [number(counts.preemptions), "preemptions, " + number(counts.recomputed_tokens) + " tokens again"],
  ];
  byId("tiles").replaceChildren(...shown.map(([big, small]) => {
    const tile = node("div", undefined, "tile");
    tile.append(node("b", big), node("span", small));
    return tile;
  }));
}

let grid = { columns: 1, size: 1 };
function map() {
  const canvas = byId("map"), cells = state.map.live.length;
  const width = canvas.clientWidth || 600, ratio = window.devicePixelRatio || 1;
  const size = Math.max(5, Math.min(18, Math.floor(Math.sqrt(width * 260 / Math.max(cells, 1)))));
  const columns = Math.max(1, Math.floor(width / size)), rows = Math.max(1, Math.ceil(cells / columns));
  grid = { columns, size };
  canvas.width = width * ratio; canvas.height = rows * size * ratio; canvas.style.height = rows * size + "px";
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const live = colour("--live"), cached = colour("--cached"), blank = colour("--blank"), ink = colour("--ink");
  const per = state.map.blocks_per_cell, usable = state.pool.usable;
  for (let i = 0; i < cells; i++) {
    const here = Math.min(per, usable - i * per), x = i % columns * size, y = Math.floor(i / columns) * size;
    const gap = size > 6 ? 1 : 0.5;
    pen.fillStyle = blank; pen.fillRect(x, y, size - gap, size - gap);
    const parts = [[state.map.cached[i], cached], [state.map.live[i], live]];
    for (const [count, paint] of parts) {
      if (!count) continue;
      pen.fillStyle = paint;
      pen.globalAlpha = per === 1 ? 1 : Math.max(0.25, count / here);
      pen.fillRect(x, y, size - gap, size - gap);
    }
    pen.globalAlpha = 1;
    if (chosen >= 0 && state.map.holder[i] === chosen) {
      pen.strokeStyle = ink; pen.lineWidth = 1.5; pen.strokeRect(x + 1, y + 1, size - gap - 2, size - gap - 2);
    }
  }
}
function tellCell() {
  if (pointed === null || !state || pointed >= state.map.live.length) return;
  const at = state.map, per = at.blocks_per_cell, first = at.first_block + pointed * per;
  const last = Math.min(first + per - 1, state.pool.usable), holder = at.holder[pointed];
  const here = last - first + 1, blank = here - at.live[pointed] - at.cached[pointed];
  let text = here === 1 ? "Block " + first + ": " : "Blocks " + first + " to " + last + ": ";
  text += here === 1 ? (at.live[pointed] ? "live" : at.cached[pointed] ? "cached" : "blank")
    : at.live[pointed] + " live, " + at.cached[pointed] + " cached, " + blank + " blank";
  if (holder >= 0 && state.requests[holder]) {
    text += "; held by " + state.requests[holder].request_id;
    if (at.sharers[pointed] > 1) text += " and " + (at.sharers[pointed] - 1) + " more";
  }
  byId("cell").textContent = text;
}
function point(event) {
  const box = byId("map").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / grid.size), row = Math.floor((event.clientY - box.top) / grid.size);
  pointed = column < grid.columns ? row * grid.columns + column : null;
  chosen = pointed !== null && state ? state.map.holder[pointed] ?? -1 : -1;
  tellCell(); if (state) map();
}

function parts(hits, external, missed) {
  const found = [["hit", hits], ["external", external]];
  for (const name of Object.keys(WORDS)) if (name in missed) found.push([name, missed[name]]);
  return found.filter(([, tokens]) => tokens > 0);
}
function reasons() {
  const counts = state.counts, total = counts.prompt_tokens;
  const found = parts(counts.hit_tokens, counts.external_tokens, counts.missed_tokens);
  byId("bar").replaceChildren(...found.map(([name, tokens]) => {
    const part = node("div");
    part.style.flex = tokens + " 0 0"; part.style.background = COLOURS[name];
    part.title = WORDS[name] + ": " + number(tokens) + " tokens";
    return part;
  }));
  byId("reasons").replaceChildren(...found.map(([name, tokens]) => {
    const part = node("span", WORDS[name] + " " + percent(tokens / total));
    part.style.setProperty("--c", COLOURS[name]);
    return part;
  }));
  if (!found.length) byId("reasons").textContent = "No request has been admitted yet.";
}
function drawHistory() {
  const rows = state.history, svg = byId("history"), n = rows.age_s.length;
  svg.replaceChildren();
  byId("span").textContent = "";
  const names = ["hit", "external", ...Object.keys(WORDS).filter(name => name in rows.missed_tokens)];
  const columns = names.map(name => name === "hit" ? rows.hit_tokens : name === "external" ? rows.external_tokens : rows.missed_tokens[name]);
  const bins = [];
  for (let i = 1; i < n; i++) {
    const tokens = rows.prompt_tokens[i] - rows.prompt_tokens[i - 1];
    if (tokens > 0) bins.push([rows.age_s[i - 1], rows.age_s[i], columns.map(column => (column[i] - column[i - 1]) / tokens)]);
  }
  if (!bins.length) { byId("span").textContent = "The history begins with the next requests."; return; }
  const oldest = rows.age_s[0] || 1;
  svg.setAttribute("viewBox", "0 0 1000 100");
  for (const [from, to, shares] of bins) {
    let y = 100;
    const x = 1000 * (1 - from / oldest), w = Math.max(1000 * (from - to) / oldest, 2);
    shares.forEach((share, i) => {
      if (share <= 0) return;
      y -= 100 * share;
      const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      for (const [key, value] of Object.entries({ x, y, width: w, height: 100 * share, fill: COLOURS[names[i]] })) box.setAttribute(key, value);
      svg.append(box);
    });
  }
  byId("span").textContent = "Shares of the tokens admitted in each interval, from " + duration(oldest) + " ago (left) to now.";
}

function blocks(text) { const cell = node("td", text, "blocks"); cell.title = text; return cell; }
function requests() {
  const withText = state.requests.some(row => row.text !== null);
  const heads = ["request", "status", "prompt", "from cache", "computed", "of tokens", "blocks", "age", "block table"];
  if (withText) heads.push("begins");
  byId("howmany").textContent = number(state.num_requests) + " hold blocks"
    + (state.requests.length < state.num_requests ? "; the " + state.requests.length + " largest are shown" : "");
  table("requests", heads, state.requests.map(row => {
    const runs = row.tables.map(one => one.ranges.map(([first, count]) => count > 1 ? first + "–" + (first + count - 1) : first).join(" ") + (one.left_out ? " …" : ""));
    const cells = [row.request_id, row.status, number(row.prompt_tokens), number(row.hit_tokens), number(row.computed_tokens),
      number(row.tokens), number(row.blocks), duration(row.age_s), blocks(runs.join(" | "))];
    if (withText) cells.push(node("td", row.text ?? "", "words"));
    return cells;
  }), "No request holds blocks now.");
}
function prefixes() {
  const depth = {}, withText = state.prefixes.some(row => row.text !== null);
  const heads = ["tokens", "length", "hits", "tokens saved"];
  if (withText) heads.push("begins");
  table("prefixes", heads, state.prefixes.map(row => {
    depth[row.id] = row.parent === null ? 0 : (depth[row.parent] ?? 0) + 1;
    const first = node("td", number(row.start_tokens) + " to " + number(row.end_tokens));
    first.style.paddingLeft = 0.5 + Math.min(depth[row.id], 12) * 1.1 + "rem";
    const cells = [first, number(row.end_tokens - row.start_tokens), number(row.hits), number(row.hit_tokens)];
    if (withText) cells.push(node("td", row.text ?? "", "words"));
    return cells;
  }), "No cached prefix has been hit yet.");
}
function victims() {
  byId("victims").replaceChildren(...state.next_victims.map(row => {
    const shown = node("span", row.block, row.hash === null ? "" : "cached");
    shown.title = row.hash === null ? "blank" : "content that ends after " + number(row.end_tokens) + " tokens, group " + row.group;
    return shown;
  }));
  if (!state.next_victims.length) byId("victims").textContent = "Every block is held.";
}

function draw() {
  const pool = state.pool;
  byId("title").textContent = state.title;
  document.title = (state.title ? state.title + " – " : "") + "kvblocks live";
  byId("about").textContent = "kvblocks " + state.kvblocks + ", policy " + pool.policy
    + (pool.prefix_caching ? "" : ", prefix caching off") + ", up " + duration(state.up_s);
  tiles(); map(); tellCell(); reasons(); drawHistory(); requests(); prefixes(); victims();
  table("groups", ["group", "block size", "live", "cached"], pool.groups.map((group, i) =>
    [i + ": " + group.kind.replaceAll("_", " "), number(group.block_size), number(group.live), number(group.cached)]), "");
}
async function ask() {
  if (!paused && !document.hidden) {
    try {
      const reply = await fetch("state", { cache: "no-store", headers: key() });
      if (!reply.ok) throw new Error(await complaint(reply));
      state = await reply.json();
      byId("problem").hidden = true;
      draw();
    } catch (error) {
      byId("problem").textContent = "No answer: " + error.message + ". What is shown may be old.";
      byId("problem").hidden = false;
    }
  }
  setTimeout(ask, PERIOD_MS);
}
async function complaint(reply) {
  try { const body = await reply.json(); return body.error.message ?? body.error; }
  catch { return "the server answered " + reply.status; }
}
function key() { // behind an API key the page is opened as /#key=…, which browsers keep to themselves
  const found = /^#key=(.+)$/.exec(location.hash);
  return found ? { Authorization: "Bearer " + decodeURIComponent(found[1]) } : {};
}
byId("map").addEventListener("pointermove", point);
byId("map").addEventListener("pointerdown", point);
byId("map").addEventListener("pointerleave", event => {
  if (event.pointerType === "mouse") { pointed = null; chosen = -1; if (state) map(); byId("cell").textContent = "Point at a cell, or tap it, to see who holds it."; }
});
byId("pause").addEventListener("click", () => { paused = !paused; byId("pause").textContent = paused ? "Go on" : "Pause"; });
window.addEventListener("resize", () => { if (state) map(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (state) draw(); });
ask();
