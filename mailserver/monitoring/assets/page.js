"use strict";
// Shows /status.json and /history.json, whose fields docs/status.md describes, and asks again every minute. What comes
// is set as text, never as HTML.

const REFRESH_MS = 60000;
const TIMEOUT_MS = 15000;
const CHART_HEIGHT = 190;
const MINUTE_S = 60;
const DAY_S = 86400;
const LEAST_DAYS = 14;

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function scaled(value, units, step) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) { value /= step; unit += 1; }
  return `${number.format(value)} ${units[unit]}`;
}

const FORMATS = {
  text: (value) => String(value),
  count: (value) => number.format(value),
  short: (value) => compact.format(value),
  sum: (counts) => number.format(Object.values(counts).reduce((sum, count) => sum + count, 0)),
  bytes: (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024),
  seconds: (value) => (value < 1 ? `${number.format(value * 1000)} ms` : `${number.format(value)} s`),
  duration: (value) => {
    if (value < 120) return `${Math.round(value)} s`;
    if (value < 2 * 3600) return `${Math.round(value / 60)} min`;
    return value < 2 * DAY_S ? `${Math.round(value / 3600)} h` : `${Math.round(value / DAY_S)} days`;
  },
  moment: (value) => new Date(value * 1000).toISOString().slice(0, 16).replace("T", " "),
};

function shown(value, format) {
  return value === null || value === undefined ? "-" : FORMATS[format](value);
}

const ACTIVITY = [
  ["Envelopes received", "received", "count"],
  ["taken, as new", "taken", "count"],
  ["refused", "refused", "count"],
  ["stored", "stored", "count"],
  ["Requests answered", "delivered", "count"],
  ["rejected", "rejected", "count"],
  ["failed", "failed", "count"],
  ["client lost", "lost", "count"],
  ["Answer time, median", "median_s", "seconds"],
  ["95 % within", "p95_s", "seconds"],
  ["Bytes in", "bytes_in", "bytes"],
  ["Bytes out", "bytes_out", "bytes"],
  ["Worst event loop lag", "lag_s", "seconds"],
];

const MINUTE_CHARTS = [
  ["Envelopes a minute", "short", [["taken", "taken"], ["refused", "refused"], ["stored", "stored"]]],
  ["Requests a minute", "short",
    [["answered", "delivered"], ["rejected", "rejected"], ["failed", "failed"], ["client lost", "lost"]]],
  ["Answer times", "seconds", [["median", "median_s"], ["95 % within", "p95_s"]]],
  ["Peers", "short", [["dialled us", "peers_in"], ["we dialled", "peers_out"]]],
  ["Traffic a minute", "bytes", [["in", "bytes_in"], ["out", "bytes_out"]]],
  ["Worst event loop lag", "seconds", [["lag", "lag_s"]]],
];

const DAY_CHARTS = [
  ["Envelopes a day", "short", [["in the store", "store_envelopes"], ["in the archive", "archive_envelopes"]]],
  ["Bytes of envelopes a day", "bytes", [["in the store", "store_bytes"], ["in the archive", "archive_bytes"]]],
];

// Where ticks of a bytes axis may lie: round numbers of KiB and MiB.
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function row(cells) {
  const made = document.createElement("tr");
  cells.forEach((cell, at) => made.append(element(at ? "td" : "th", cell)));
  return made;
}

// A chart of some columns over time.
class Chart {
  constructor(parent, [title, format, series], isDaily) {
    this.names = series.map(([, name]) => name);
    this.series = series;
    this.format = format;
    this.isDaily = isDaily;
    this.data = [[], ...series.map(() => [])];
    this.span = [0, DAY_S];
    const figure = document.createElement("figure");
    this.box = element("div", "", "chart");
    figure.append(element("h3", title), this.box);
    parent.append(figure);
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: CHART_HEIGHT })).observe(this.box);
  }

  show(times, columns, span) {
    this.data = [times, ...this.names.map((name) => columns[name])];
    this.span = span;
    if (this.plot) this.plot.setData(this.data);
    else this.draw();
  }

  // Make the plot anew: its colours are those of the present scheme.
  draw() {
    this.plot?.destroy();
    const lines = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--faint"), grid: lines, ticks: lines };
    const ticks = (plot, values) => values.map((value) => shown(value, this.format));
    const steps = this.format === "bytes" ? { incrs: BYTE_STEPS } : {};
    const time = this.isDaily ? "{MM}-{DD}" : "{HH}:{mm}";
    this.plot = new uPlot({
      width: this.box.clientWidth,
      height: CHART_HEIGHT,
      tzDate: utc,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { range: () => this.span }, y: { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: time }, { ...axis, ...steps, size: 66, space: 26, values: ticks }],
      series: [
        { label: this.isDaily ? "Day" : "Time", value: time },
        ...this.series.map(([label], at) => this.line(label, at)),
      ],
    }, this.data, this.box);
  }

  line(label, at) {
    const stroke = colour(`--series-${at}`);
    const line = { label, stroke, width: 1.5, value: (plot, value) => shown(value, this.format) };
    if (!this.isDaily) return line;
    const paths = uPlot.paths.bars({ size: [0.4, 24], align: at ? 1 : -1 });
    return { ...line, fill: stroke, width: 0, paths, points: { show: false } };
  }
}

const minuteCharts = MINUTE_CHARTS.map((chart) => new Chart(byId("minutes"), chart, false));
const dayCharts = DAY_CHARTS.map((chart) => new Chart(byId("days"), chart, true));

function showStatus(status) {
  byId("ready").textContent = status.ready ? "ready" : "not ready";
  byId("ready").className = status.ready ? "good" : "bad";
  byId("problems").replaceChildren(
    ...status.problems.map((problem) => element("li", problem.text, problem.fatal ? "fatal" : "")),
  );
  for (const field of document.querySelectorAll("[data-field]")) {
    const value = field.dataset.field.split(".").reduce((part, name) => part?.[name], status);
    field.textContent = shown(value, field.dataset.format);
  }
  byId("activity").replaceChildren(...ACTIVITY.map(([label, name, format]) =>
    row([label, shown(status.minute?.[name], format), shown(status.day[name], format)])));
  const { inbound, outbound } = status.peers;
  const clients = Object.keys(inbound).filter((client) => inbound[client] || outbound[client]);
  byId("clients").replaceChildren(...clients.map((client) =>
    row([client, shown(inbound[client], "count"), shown(outbound[client], "count")])));
  if (!clients.length) byId("clients").append(row(["nobody is connected", "", ""]));
  byId("errors").replaceChildren(...status.errors.map(showError));
  if (!status.errors.length) byId("errors").append(element("li", "none since the start"));
  showDays(status.days, status.time);
}

function showError(error) {
  const item = document.createElement("li");
  const isBad = error.level !== "WARNING";
  const often = error.count > 1 ? ` (${shown(error.count, "count")} times)` : "";
  item.append(
    element("time", shown(error.time, "moment")),
    element("b", error.level.toLowerCase(), isBad ? "bad" : ""),
    element("span", error.text + often),
  );
  return item;
}

function showDays(days, now) {
  const times = days.map(({ day }) => Date.parse(`${day}T00:00:00Z`) / 1000);
  const last = times.at(-1) ?? Math.floor(now / DAY_S) * DAY_S;
  const first = Math.min(times[0] ?? last, last - (LEAST_DAYS - 1) * DAY_S);
  const columns = {};
  for (const name of dayCharts.flatMap((chart) => chart.names)) columns[name] = days.map((day) => day[name]);
  for (const chart of dayCharts) chart.show(times, columns, [first - DAY_S / 2, last + DAY_S / 2]);
}

function showHistory(history) {
  const { first_at: firstAt, step_s: stepS, columns } = history;
  const whole = columns.taken.length - 1; // the last one is still under way
  const times = Array.from({ length: Math.max(whole, 0) }, (_, at) => firstAt + at * stepS);
  const wholes = Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values.slice(0, times.length)]));
  const end = firstAt + Math.max(whole, 0) * stepS;
  for (const chart of minuteCharts) chart.show(times, wholes, [end - DAY_S, end + MINUTE_S]);
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!answer.ok) throw new Error(`the mailserver answered ${answer.status}`);
  return answer.json();
}

let shownAt = null;

async function refresh() {
  try {
    const [status, history] = await Promise.all([ask("status.json"), ask("history.json")]);
    showStatus(status);
    showHistory(history);
    shownAt = status.time;
    byId("age").textContent = `as of ${shown(shownAt, "moment")} UTC`;
    byId("stale").hidden = true;
  } catch (error) {
    const since = shownAt === null ? "" : ` What is below is of ${shown(shownAt, "moment")} UTC.`;
    byId("stale").textContent = `The mailserver does not answer (${error.message}).${since}`;
    byId("stale").hidden = false;
    byId("ready").textContent = "unknown";
    byId("ready").className = "";
  }
  setTimeout(refresh, REFRESH_MS);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of [...minuteCharts, ...dayCharts]) if (chart.plot) chart.draw();
});
refresh();
