// What pages do in a browser: times in its own zone, tables sorted and filtered, output, dialogs, and news as they come.
// Everything is drawn by the server; this only moves what is there, and whatever a job wrote is text, never markup.
"use strict";
const one = (selector, below = document) => below.querySelector(selector);
const all = (selector, below = document) => [...below.querySelectorAll(selector)];

// ---------------------------------------------------------------- times

const DAY = 86400e3;
function spanText(seconds) {
  const s = Math.abs(seconds);
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} d`;
}
function tellTimes(below = document) {
  const now = Date.now();
  for (const time of all("time[data-at]", below)) {
    const at = new Date(Number(time.dataset.at) * 1000);
    if (Number.isNaN(at.getTime())) continue;
    const near = Math.abs(now - at) < DAY && at.getDate() === new Date(now).getDate();
    const clock = at.toLocaleTimeString([], near && now - at < 600e3 && now - at > 0 ? { timeStyle: "medium" } : { timeStyle: "short" });
    const words = near ? clock : `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${clock}`;
    const ago = now >= at ? `${spanText((now - at) / 1000)} ago` : `in ${spanText((at - now) / 1000)}`;
    time.textContent = time.dataset.as === "ago" ? ago : words;
    time.title = at.toLocaleString([], { dateStyle: "full", timeStyle: "long" });
  }
  for (const zone of all("[data-zone]", below)) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "your browser";
}

// ---------------------------------------------------------------- tables

const sorted = new Map(), filtered = new Map(), opened = new Set();
function keyOf(row, column) {
  const cell = row.cells[column], time = one("time[data-at]", cell);
  const raw = time ? time.dataset.at : cell.dataset.value ?? cell.textContent.trim();
  return raw === "" ? null : Number.isNaN(Number(raw)) ? raw : Number(raw);
}
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}
function arrange(table) {
  const name = table.dataset.table, order = sorted.get(name), words = (filtered.get(name) || "").toLowerCase();
  const body = table.tBodies[0], rows = [...body.rows];
  if (order) {
    const keyed = rows.map((row) => [keyOf(row, order.column), row]);
    keyed.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : order.turn * compare(a, b)));
    keyed.forEach(([, row]) => body.append(row));
    all("th", table).forEach((head, at) => (at === order.column ? head.setAttribute("aria-sort", order.turn > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
  }
  const most = opened.has(name) ? Infinity : Number(table.dataset.most);
  let found = 0;
  for (const row of body.rows) {
    const here = !words || row.textContent.toLowerCase().includes(words);
    row.hidden = !here || found >= most;
    found += here;
  }
  const card = table.closest(".sheet");
  let rest = one(".all", card);
  if (found > most) {
    if (!rest) {
      rest = document.createElement("p");
      rest.className = "all";
      rest.append(document.createElement("button"));
      one("button", rest).type = "button";
      one("button", rest).dataset.all = name;
      one(".scroll", card).after(rest);
    }
    one("button", rest).textContent = `Show all ${found.toLocaleString()}`;
  } else rest?.remove();
  const field = one(`[data-filter="${name}"]`, card);
  if (field && field !== document.activeElement) field.value = filtered.get(name) || "";
}
document.addEventListener("click", (event) => {
  const head = event.target.closest("[data-sort]");
  if (head) {
    const table = head.closest("table"), column = Number(head.dataset.sort), before = sorted.get(table.dataset.table);
    sorted.set(table.dataset.table, { column, turn: before?.column === column ? -before.turn : 1 });
    arrange(table);
  }
  const more = event.target.closest("[data-all]");
  if (more) {
    opened.add(more.dataset.all);
    arrange(one(`[data-table="${more.dataset.all}"]`));
  }
  const opener = event.target.closest("[data-dialog]");
  if (opener) one(`#${opener.dataset.dialog}`)?.showModal();
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});
document.addEventListener("input", (event) => {
  const name = event.target.dataset?.filter;
  if (name === undefined) return;
  filtered.set(name, event.target.value);
  arrange(one(`[data-table="${name}"]`));
});

// ---------------------------------------------------------------- charts

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
const AXIS = () => ({ axisLine: { lineStyle: { color: colour("line") } }, axisLabel: { color: colour("soft"), hideOverlap: true }, splitLine: { lineStyle: { color: colour("line") } } });
const HUES = ["blue", "orange", "green", "pink", "sky", "red", "grey", "ink"];
const KINDS = {
  steps: (data) => ({
    series: [
      { type: "line", data: data.steps, showSymbol: false, lineStyle: { width: 2, color: colour("blue") }, itemStyle: { color: colour("blue") }, name: "step" },
      { type: "scatter", data: data.back, symbol: "triangle", symbolSize: 10, itemStyle: { color: colour("red") }, name: "went back to" },
    ],
  }),
  curve: (data) => ({
    xAxis: { type: "value", min: "dataMin", max: "dataMax", ...AXIS() },
    yAxis: { type: "value", scale: true, ...AXIS() },
    series: [
      { type: "line", data: data.kept, showSymbol: false, connectNulls: false, lineStyle: { width: 2, color: colour("blue") }, itemStyle: { color: colour("blue") }, name: "value", markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: colour("red"), type: "dotted" }, data: data.broken.slice(0, 50).map((step) => ({ xAxis: step })) } },
      { type: "line", data: data.lost, showSymbol: false, connectNulls: false, lineStyle: { width: 1.5, type: "dashed", color: colour("orange") }, itemStyle: { color: colour("orange") }, name: "lost" },
      { type: "scatter", data: data.back, symbol: "triangle", symbolSize: 10, itemStyle: { color: colour("red") }, name: "went back to" },
      ...(data.beside ? [{ type: "line", data: data.beside, showSymbol: false, connectNulls: false, lineStyle: { width: 2, type: [6, 3], color: colour("pink") }, itemStyle: { color: colour("pink") }, name: data.name }] : []),
    ],
  }),
  times: (data) => ({
    series: [
      { type: "line", data: data.steps, showSymbol: false, lineStyle: { width: 1.5, color: colour("green") }, itemStyle: { color: colour("green") }, name: "seconds a step", markLine: data.ideal ? { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: colour("ink"), type: "dashed" }, data: [{ yAxis: data.ideal }] } : undefined },
      ...(data.data ? [{ type: "line", data: data.data, showSymbol: false, lineStyle: { width: 1.5, color: colour("pink") }, itemStyle: { color: colour("pink") }, name: "of which waiting for data" }] : []),
    ],
  }),
  heat: (data) => ({
    grid: { left: 8, right: 16, top: 12, bottom: 44, containLabel: true },
    tooltip: { trigger: "item", renderMode: "richText", backgroundColor: colour("card"), borderColor: colour("line"), textStyle: { color: colour("ink") }, formatter: (point) => `rank ${data.ranks[point.value[1]]}, ${new Date(data.times[point.value[0]]).toLocaleTimeString()}: ${point.value[2].toPrecision(4)} s` },
    xAxis: { type: "category", data: data.times.map((at) => new Date(at).toLocaleTimeString([], { timeStyle: data.times.at(-1) - data.times[0] < 600e3 ? "medium" : "short" })), ...AXIS(), splitLine: { show: false } },
    yAxis: { type: "category", data: data.ranks, ...AXIS(), splitLine: { show: false } },
    visualMap: { min: data.least, max: data.most, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 12, text: [`${data.most.toPrecision(3)} s`, data.least.toPrecision(3)], textStyle: { color: colour("soft") }, inRange: { color: [colour("bed"), colour("sky"), colour("blue"), colour("orange"), colour("red")] } },
    series: [{ type: "heatmap", data: data.cells, progressive: 0 }],
  }),
  columns: (data) => ({
    xAxis: { type: "value", min: "dataMin", max: "dataMax", ...AXIS(), splitLine: { show: false } },
    yAxis: { type: "value", scale: true, ...AXIS() },
    series: data.lines.map((line, at) => ({ type: "line", data: line, showSymbol: false, connectNulls: false, lineStyle: { width: 1.5, type: at < 8 ? "solid" : "dashed", color: colour(HUES[at % HUES.length]) }, itemStyle: { color: colour(HUES[at % HUES.length]) }, name: data.names[at] })),
  }),
  pace: (data) => ({
    series: [{ type: "line", data: data.pace, step: "end", showSymbol: data.pace.length < 40, symbolSize: 5, lineStyle: { width: 2, color: colour("green") }, itemStyle: { color: colour("green") }, name: "seconds a step" }],
  }),
};
function drawCharts() {
  for (const figure of all("[data-chart]")) {
    const canvas = one(".canvas", figure), source = document.getElementById(figure.dataset.from);
    if (!canvas || !source || !window.echarts || canvas.dataset.drawn === source.textContent) continue;
    canvas.dataset.drawn = source.textContent;
    let chart = echarts.getInstanceByDom(canvas);
    if (!chart) {
      chart = echarts.init(canvas, null, { renderer: "canvas" });
      new ResizeObserver(() => chart.resize()).observe(canvas); // Also where another card comes beside it.
    }
    chart.setOption({
      animation: false,
      grid: { left: 8, right: 16, top: 12, bottom: 4, containLabel: true },
      tooltip: { trigger: "axis", renderMode: "richText", backgroundColor: colour("card"), borderColor: colour("line"), textStyle: { color: colour("ink") }, valueFormatter: (value) => (typeof value === "number" ? value.toPrecision(4).replace(/\.?0+$/, "") : value) },
      xAxis: { type: "time", ...AXIS(), splitLine: { show: false } },
      yAxis: { type: "value", ...AXIS() },
      ...KINDS[figure.dataset.chart](JSON.parse(source.textContent)),
    }, true);
  }
}
function loadCharts() {
  if (window.echarts || !one("[data-chart] .canvas")) return drawCharts();
  const script = document.createElement("script");
  script.src = one('script[src*="/static/page.js"]').src.replace("page.js", "echarts.js");
  script.onload = drawCharts;
  document.head.append(script);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const canvas of all(".canvas")) delete canvas.dataset.drawn;
  drawCharts();
});

// ---------------------------------------------------------------- output

const PIECE = 1 << 18, KEPT = 1 << 20, HITS = 500, SCANNED = 64 << 20;
const COLOURS = /\x1b\[[0-9;:]*m/g, CONTROLS = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
const output = { text: "", source: null, turn: 0 };
const plainText = (text) => text.replace(COLOURS, "").replace(/[^\n]*\r(?!\n)/g, "").replace(CONTROLS, "");
function logAddress(extra) {
  const log = one("#log"), asked = new URLSearchParams({ rank: one("#log-rank").value || "0", attempt: one("#log-attempt").value, ...extra });
  return `${one("#live").dataset.api}/v1/jobs/${encodeURIComponent(log.dataset.job)}/logs?${asked}`;
}
async function piece(since, limit) {
  const answer = await fetch(logAddress({ since, limit }));
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail || `HTTP ${answer.status}`);
  return { bytes: new Uint8Array(await answer.arrayBuffer()), next: Number(answer.headers.get("X-Next-Offset")) };
}
async function nearEnd() {
  let low = 0, high = PIECE;  // The end lies in between, once `high` is past it; what is past it stands for the start.
  const holds = async (at) => (await piece(at, 1)).next > at;
  while (high < 2 ** 50 && (await holds(high))) [low, high] = [high, high * 2];
  while (high - low > PIECE) {
    const middle = Math.floor((low + high) / 2);
    if (await holds(middle)) low = middle;
    else high = middle;
  }
  return low;
}
function logState(words) {
  one("#log-state").textContent = words;
}
function showLog(text, { mark = "", keep = false } = {}) {
  const log = one("#log"), stuck = keep && log.scrollTop + log.clientHeight >= log.scrollHeight - 24;
  log.textContent = "";
  if (mark) {
    const low = text.toLowerCase(), word = mark.toLowerCase();
    let at = 0;
    for (let found = low.indexOf(word); found >= 0; found = low.indexOf(word, at)) {
      const hit = document.createElement("mark");
      hit.textContent = text.slice(found, found + word.length);
      log.append(text.slice(at, found), hit);
      at = found + word.length;
    }
    log.append(text.slice(at));
  } else log.append(text);
  if (stuck || !keep) log.scrollTop = log.scrollHeight;
}
async function loadLog() {
  const turn = ++output.turn;
  output.source?.close();
  output.source = null;
  try {
    const since = await nearEnd(), got = await piece(since, KEPT);
    if (turn !== output.turn) return;
    output.text = plainText(new TextDecoder().decode(got.bytes));
    if (since > 0) output.text = output.text.slice(output.text.indexOf("\n") + 1);
    showLog(output.text || "Nothing was written yet.");
    logState(since > 0 ? `From byte ${since.toLocaleString()} on; search looks through all of it.` : "");
    if (one('[data-log="follow"]').getAttribute("aria-pressed") === "true") followLog(got.next);
  } catch (error) {
    if (turn === output.turn) showLog(`Could not read the output: ${error.message}`);
  }
}
function followLog(since) {
  output.source = new EventSource(logAddress({ since, follow: "true" }));
  output.source.addEventListener("log", (event) => {
    output.text = (output.text + plainText(JSON.parse(event.data).text)).slice(-KEPT);
    showLog(output.text, { keep: true });
  });
  output.source.addEventListener("end", (event) => {
    logState(`The job has ${JSON.parse(event.data).state}; there is no more.`);
    output.source.close();
  });
  output.source.onerror = () => logState("The connection broke; it is tried again.");
  output.source.onopen = () => logState("Following.");
}
async function searchLog(word) {
  const turn = ++output.turn, decoder = new TextDecoder(), lines = [];
  output.source?.close();
  let since = 0, rest = "", number = 0;
  try {
    while (since < SCANNED && lines.length < HITS) {
      const got = await piece(since, KEPT);
      if (turn !== output.turn) return;
      if (!got.bytes.length) break;
      const parts = (rest + plainText(decoder.decode(got.bytes, { stream: true }))).split("\n");
      rest = parts.pop();
      for (const line of parts) {
        number += 1;
        if (line.toLowerCase().includes(word.toLowerCase())) lines.push(`${String(number).padStart(6)}  ${line}`);
      }
      since = got.next;
      logState(`${lines.length} lines in ${since.toLocaleString()} bytes`);
    }
    if (rest.toLowerCase().includes(word.toLowerCase())) lines.push(`${String(number + 1).padStart(6)}  ${rest}`);
    showLog(lines.slice(0, HITS).join("\n") || `No line holds ${word}.`, { mark: word });
    one("#log").scrollTop = 0;
    logState(`${lines.length >= HITS ? `the first ${HITS}` : lines.length} lines with it${since >= SCANNED ? `, in the first ${SCANNED >> 20} MiB` : ""}`);
  } catch (error) {
    logState(`Could not search: ${error.message}`);
  }
}
let searching = 0;
document.addEventListener("input", (event) => {
  if (event.target.dataset?.log !== "search") return;
  clearTimeout(searching);
  searching = setTimeout(() => (event.target.value ? searchLog(event.target.value) : loadLog()), 300);
});
document.addEventListener("change", (event) => {
  if (["rank", "attempt"].includes(event.target.dataset?.log)) loadLog();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest('[data-log="follow"]');
  if (!button) return;
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  loadLog();
});

// ---------------------------------------------------------------- news

const PAUSE = 1000, PAUSE_MAX = 15000, COST = 20;  // A page that is dear to draw is drawn seldom.
const news = { source: null, since: 0, drawn: 0, cost: 0, waiting: 0 };
function renew() {
  if (news.waiting || document.hidden) return;
  const live = one("#live"), pause = Math.min(PAUSE_MAX, Math.max(PAUSE, COST * news.cost));
  news.waiting = setTimeout(() => {
    news.waiting = 0;
    if (one("dialog[open]")) return renew();  // Whoever writes a reason is not disturbed.
    if (!window.htmx) return stale("Something changed since this page was drawn.");
    news.drawn = performance.now();
    htmx.trigger(live, "changed");
  }, Math.max(0, news.drawn + pause - performance.now()));
}
function stale(words) {
  const told = one("#stale");
  told.textContent = `${words} `;
  const again = document.createElement("a");
  again.href = location.href;
  again.textContent = "Load it again";
  told.append(again);
  told.hidden = false;
}
function listen() {
  const live = one("#live");
  news.since = Math.max(news.since, Number(live.dataset.since));
  if (news.source || !live.dataset.follow || document.hidden) return;
  // A stream that breaks is taken up after its last event by the browser itself; one that was hidden, by us.
  news.source = new EventSource(`${live.dataset.api}${live.dataset.follow}?follow=true&since=${news.since}`);
  news.source.onmessage = (event) => {
    news.since = Math.max(news.since, Number(event.lastEventId));
    renew();
  };
  news.source.addEventListener("end", () => {
    news.source.close();
    renew();
  });
  news.source.onopen = () => {
    if (!one("#stale").hidden) renew();
    one("#stale").hidden = true;
  };
  news.source.onerror = () => {
    if (news.source?.readyState === EventSource.CLOSED) {  // Refused, as by a proxy while the server restarts.
      news.source = null;
      setTimeout(listen, 3000);
    }
    stale("The server does not answer; what is shown may be old.");
  };
}
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    news.source?.close();  // A browser has six connections to one server, and people have more tabs.
    news.source = null;
  } else {
    listen();
    renew();
  }
});
setInterval(() => {
  const every = Number(one("#live")?.dataset.every || 0);
  if (every && performance.now() - news.drawn > every * 1000) renew();
}, 1000);
setInterval(() => tellTimes(), 10000);

function dress() {
  tellTimes();
  all("table[data-table]").forEach(arrange);
  loadCharts();
}
document.addEventListener("htmx:before:swap", (event) => {
  if (!one("dialog[open]")) return;
  event.preventDefault();  // It was opened while the page was on its way.
  renew();
});
document.addEventListener("htmx:after:swap", () => {
  if (one('#live form[action$="/in"]')) return location.reload();  // The token has ended.
  news.cost = performance.now() - news.drawn;
  dress();
});
document.addEventListener("htmx:error", () => stale("The page could not be drawn anew."));
dress();
if (one("#log")) loadLog();
listen();
