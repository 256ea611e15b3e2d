"use strict";
// Shows /status.json and /history.json, whose fields docs/status.md describes, and refreshes every minute. What it
// receives is set as text, never as HTML.

const REFRESH_MS = 60000;
const TIMEOUT_MS = 15000;
const CHART_HEIGHT = 150;
const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86400;
const MIN_DAYS = 14;
const MIN_ZOOM_S = 2 * MINUTE_S;
const MIN_BAR = 0.03; // of the highest value

// Numbers in the same form as mailserver/units.py writes them.
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const tenths = (value) => Math.round(value * 10) / 10;

function size(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (unit < units.length - 1 && tenths(value) >= 1024) { value /= 1024; unit += 1; }
  return `${number.format(value)} ${units[unit]}`;
}

function span(value) {
  const units = [["days", DAY_S], ["h", HOUR_S], ["min", MINUTE_S]];
  const [name, length] = units.find(([, length]) => value >= 2 * length) ?? ["s", 1];
  return `${Math.round(value / length)} ${name}`;
}

const FORMATS = {
  text: (value) => String(value),
  count: (value) => number.format(value),
  sum: (counts) => number.format(Object.values(counts).reduce((sum, count) => sum + count, 0)),
  bytes: size,
  seconds: (value) => (tenths(value * 1000) < 1000 ? `${number.format(value * 1000)} ms` : `${number.format(value)} s`),
  duration: span,
  moment: (value) => new Date(value * 1000).toISOString().slice(0, 16).replace("T", " "),
};

function shown(value, format) {
  return value === null || value === undefined ? "-" : FORMATS[format](value);
}

const ACTIVITY = [
  ["Envelopes received", "received", "count"],
  ["Envelopes accepted", "taken", "count"],
  ["Envelopes refused", "refused", "count"],
  ["Envelopes stored", "stored", "count"],
  ["Requests answered", "delivered", "count"],
  ["Requests rejected", "rejected", "count"],
  ["Requests failed", "failed", "count"],
  ["Clients lost", "lost", "count"],
  ["Peers that connected", "connected", "count"],
  ["Answer time, median", "median_s", "seconds"],
  ["Answer time, 95th percentile", "p95_s", "seconds"],
  ["Bytes in", "bytes_in", "bytes"],
  ["Bytes out", "bytes_out", "bytes"],
  ["Worst event loop lag", "lag_s", "seconds"],
];

// Each chart: its title, the format of its values, its series from the bottom up (label, column, colour, and whether it
// is bars, as for what should not happen and is zero most of the time), and what to say if it has nothing to show. Only
// failures of ours are red.
const MINUTE_CHARTS = [
  ["Envelopes a minute", "count",
    [["refused", "refused", "amber", true], ["received", "received", "blue"], ["accepted", "taken", "green"],
      ["stored", "stored", "purple"]],
    "no envelopes arrived"],
  ["Requests a minute", "count",
    [["rejected", "rejected", "amber", true], ["client lost", "lost", "grey", true], ["failed", "failed", "bad", true],
      ["answered", "delivered", "blue"]],
    "nobody asked for history"],
  ["Answer times", "seconds", [["95th percentile", "p95_s", "purple"], ["median", "median_s", "blue"]],
    "no request was answered"],
  ["Peers", "count",
    [["dialled us", "peers_in", "blue"], ["we dialled", "peers_out", "purple"],
      ["newly connected", "connected", "green"]],
    "nobody was connected"],
  ["Traffic a minute", "bytes", [["out", "bytes_out", "purple"], ["in", "bytes_in", "blue"]],
    "nothing was sent or received"],
  ["Worst event loop lag", "seconds", [["lag", "lag_s", "blue"]], "the event loop was never late"],
];

const inBoth = (what) =>
  [["in the store", `store_${what}`, "blue", true], ["in the archive", `archive_${what}`, "purple", true]];
const DAY_CHARTS = [
  ["Envelopes a day", "count", inBoth("envelopes")],
  ["Bytes of envelopes a day", "bytes", inBoth("bytes")],
];

// Where the ticks of an axis may be: at whole numbers of things, and at round numbers of KiB and MiB.
const COUNT_STEPS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const STEPS = { count: COUNT_STEPS, bytes: BYTE_STEPS };

const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
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
  constructor(parent, [title, format, series, whyEmpty], isDaily) {
    this.names = series.map(([, name]) => name);
    this.series = series;
    this.format = format;
    this.whyEmpty = whyEmpty;
    this.isDaily = isDaily;
    this.span = [0, DAY_S];
    this.values = series.map(() => []);
    this.data = [[], ...this.values];
    const figure = document.createElement("figure");
    this.box = element("div", "", "chart");
    this.note = element("p", "", "note");
    this.box.append(this.note);
    figure.append(element("h3", title), this.box);
    parent.append(figure);
    const fit = () => this.plot?.setSize({ width: this.box.clientWidth, height: CHART_HEIGHT });
    new ResizeObserver(fit).observe(this.box);
  }

  // `note` is text to show in the chart.
  show(times, columns, span, note) {
    this.span = span;
    this.values = this.names.map((name) => columns[name]);
    this.data = [times, ...this.visible(times)];
    this.note.textContent = note;
    this.note.hidden = !note;
    if (this.plot) this.plot.setData(this.data);
    else this.draw();
    this.showLast();
  }

  // The values to draw: no bar is too low to be seen, and each begins where the one below it ends.
  visible(times) {
    const top = this.values.flat().reduce(
      (most, value, at) => (this.isSeen(times[at % times.length]) ? Math.max(most, value) : most), 0);
    const drawn = this.values.map((column, at) =>
      this.series[at][3] ? column.map((value) => value && Math.max(value, top * MIN_BAR)) : column);
    const bars = this.isDaily ? 0 : this.series.filter(([, , , isBars]) => isBars).length; // bars come first
    for (let at = bars - 2; at >= 0; at -= 1) {
      drawn[at] = drawn[at].map((value, index) => value === null ? null : value + drawn[at + 1][index]);
    }
    return drawn;
  }

  isSeen(time) {
    return time >= this.span[0] && time <= this.span[1];
  }

  // Whether a column has a value other than zero in the present span.
  hasValues() {
    return this.values.some((column) => column.some((value, at) => value && this.isSeen(this.data[0][at])));
  }

  // Let the legend show the last visible values, unless the cursor points at others.
  showLast() {
    const idx = this.data[0].findLastIndex((time) => this.isSeen(time));
    if (this.plot && this.plot.cursor.left < 0) this.plot.setLegend({ idx: idx < 0 ? null : idx });
  }

  // Make a new plot, with the colours of the present scheme.
  draw() {
    this.plot?.destroy();
    const lines = { stroke: colour("line"), width: 1 };
    const axis = { stroke: colour("faint"), grid: lines, ticks: lines };
    const ticks = (plot, values) => values.map((value) => shown(value, this.format));
    const room = (plot, labels) => 20 + 7 * Math.max(3, ...(labels ?? []).map((label) => label.length));
    const steps = STEPS[this.format] ? { incrs: STEPS[this.format] } : {};
    const time = this.isDaily ? "{MM}-{DD}" : "{HH}:{mm}";
    const zooms = !this.isDaily;
    this.plot = new uPlot({
      width: this.box.clientWidth,
      height: CHART_HEIGHT,
      tzDate: utc,
      cursor: {
        drag: { x: zooms, y: false, setScale: false },
        bind: { dblclick: () => () => { if (zooms) look({ hours: 1 }); } },
      },
      hooks: {
        setSelect: [(plot) => this.onSelect(plot)],
        setCursor: [() => this.showLast()],
      },
      scales: { x: { range: () => this.span }, y: { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 34, values: time }, { ...axis, ...steps, size: room, space: 26, values: ticks }],
      series: [
        { label: this.isDaily ? "Day" : "Time", value: time },
        ...this.series.map(([label, , name, isBars], at) => this.drawn(label, colour(name), isBars, at)),
      ],
      legend: { markers: { width: 0, fill: (plot, at) => at && colour(this.series[at - 1][2]) } },
    }, this.data, this.box);
  }

  // Equal values do not hide each other: each line is narrower than those below it, and the last one is dashed. Bars of
  // a minute are stacked, and those of a day stand side by side.
  drawn(label, stroke, isBars, at) {
    const series = { label, stroke, value: (plot, value, series, idx) => shown(this.values[at][idx], this.format) };
    if (isBars) {
      const paths = uPlot.paths.bars({ size: [this.isDaily ? 0.4 : 0.8, 24], align: this.isDaily ? (at ? 1 : -1) : 0 });
      return { ...series, fill: stroke, width: 0, paths, points: { show: false } };
    }
    const above = this.series.length - 1 - at;
    const isOver = !above && at > 0 && !this.series[at - 1][3];
    return { ...series, width: 2 + 2 * above, dash: isOver ? [8, 8] : [] };
  }

  onSelect(plot) {
    const { left, width } = plot.select;
    if (!width) return;
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (to - from >= MIN_ZOOM_S) look({ from, to });
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
  if (!status.problems.length) byId("problems").append(element("li", "None.", "none"));
  for (const field of document.querySelectorAll("[data-field]")) {
    const value = field.dataset.field.split(".").reduce((part, name) => part?.[name], status);
    field.textContent = shown(value, field.dataset.format);
  }
  const unknown = compactionProblem(status) ? "see above" : "has never run";
  const state = status.compaction?.state;
  byId("compaction").textContent = state === "damaged" ? "found the archive damaged" : state ?? unknown;
  byId("compaction").className = ["damaged", "failed", "died"].includes(state) ? "bad" : "";
  byId("activity").replaceChildren(...ACTIVITY.map(([label, name, format]) =>
    row([label, shown(status.minute?.[name], format), shown(status.day[name], format)])));
  const { inbound, outbound } = status.peers;
  const clients = Object.keys(inbound).filter((client) => inbound[client] || outbound[client]);
  byId("clients").replaceChildren(...clients.map((client) =>
    row([client, shown(inbound[client], "count"), shown(outbound[client], "count")])));
  if (!clients.length) byId("clients").append(row(["nobody is connected", "", ""]));
  byId("errors").replaceChildren(...status.errors.map(showError));
  if (!status.errors.length) byId("errors").append(element("li", "None since the start."));
  showCommunities(status.communities);
  showDays(status);
}

// What `community serve` has told the mailserver.
function showCommunities({ at, running, known }) {
  byId("communities").hidden = !known.length;
  byId("served").textContent = running ? "" : `community serve does not run; as of ${shown(at, "moment")}`;
  byId("known").replaceChildren(...known.map(showCommunity));
}

function showCommunity(community) {
  const { role, id, peers, uploaded, downloaded, problem } = community;
  const box = document.createElement("div");
  const traffic = `${shown(uploaded, "bytes")} sent, ${shown(downloaded, "bytes")} taken`;
  box.append(
    element("h3", `${role} of ${id}`, "id"),
    element("p", `${shown(peers, "count")} peers; ${traffic}; last link ${shown(community.announced_at, "moment")}`),
  );
  if (community.late_weeks) box.append(element("p", `weeks without an archive: ${community.late_weeks}`, "warn"));
  if (problem) box.append(element("p", problem, "warn"));
  const yes = (value) => (value ? "yes" : "no");
  const fetched = (week) => (week.fetched_times ? `${shown(week.fetched_times, "count")}\u00d7` : yes(week.fetched));
  const last = Math.max(...community.weeks.map((week) => week.fetched_at ?? 0));
  if (last > 0) box.append(element("p", `last fetched from us ${shown(last, "moment")}`));
  const weeks = community.weeks.map((week) =>
    row([shown(week.lower, "moment").slice(0, 10), shown(week.archives, "count"), yes(week.distributed),
      yes(week.seeding), fetched(week)]));
  const head = document.createElement("thead");
  head.append(row(["Week from", "archives", "distributed", "seeding", "fetched"]));
  const body = document.createElement("tbody");
  body.append(...weeks.reverse());
  if (!weeks.length) body.append(row(["no archive yet", "", "", "", ""]));
  const table = element("table", "", "figures weeks");
  table.append(head, body);
  box.append(table);
  return box;
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

// The problem with the compaction, in words.
function compactionProblem(status) {
  return status.problems.find(({ check }) => check === "compaction")?.text;
}

function showDays(status) {
  const { days, time: now } = status;
  const times = days.map(({ day }) => Date.parse(`${day}T00:00:00Z`) / 1000);
  const last = times.at(-1) ?? Math.floor(now / DAY_S) * DAY_S;
  const first = Math.min(times[0] ?? last, last - (MIN_DAYS - 1) * DAY_S);
  const columns = {};
  for (const name of dayCharts.flatMap((chart) => chart.names)) columns[name] = days.map((day) => day[name]);
  const missing = [];
  if (!days.some((day) => day.store_envelopes)) missing.push("The store is empty.");
  const isArchived = days.some((day) => day.archive_envelopes);
  if (!isArchived) missing.push(`Nothing is in the archive: ${whyNoArchive(status)}.`);
  for (const chart of dayCharts) chart.show(times, columns, [first - DAY_S / 2, last + DAY_S / 2], missing.join(" "));
}

function whyNoArchive(status) {
  const { compaction } = status;
  const problem = compactionProblem(status);
  if (problem) return problem;
  if (!compaction) return "the compaction has never run";
  if (compaction.state === "running") return "the first compaction is running";
  return "the compaction has found nothing to archive";
}

// Which minutes to show: a number of hours until now, or from one moment to another.
let view = { hours: 1 };
let minutes = { times: [], columns: null, end: 0 };

function look(wanted) {
  view = wanted;
  showMinutes();
}

function showHistory({ first_at: firstAt, step_s: stepS, columns }) {
  const whole = Math.max(columns.taken.length - 1, 0); // the last one is still under way
  minutes = {
    times: Array.from({ length: whole }, (_, at) => firstAt + at * stepS),
    columns: Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values.slice(0, whole)])),
    end: firstAt + whole * stepS,
  };
  showMinutes();
}

function showMinutes() {
  const { times, columns, end } = minutes;
  const [from, to] = view.hours ? [end - view.hours * HOUR_S, end] : [view.from, view.to];
  const seen = times.map((time) => time >= from && time <= to);
  const isKnown = seen.some((isSeen, at) => isSeen && columns.taken[at] !== null);
  for (const button of byId("ranges").children) {
    button.ariaPressed = String(view.hours === Number(button.dataset.hours));
  }
  const clock = (seconds) => shown(seconds, "moment").slice(11);
  const back = view.hours === 1 ? "Last hour" : `Last ${view.hours} hours`;
  byId("span").textContent = view.hours ? back : `${clock(from)} to ${clock(to)}`;
  byId("gaps").hidden = !isKnown || !gap(seen, columns.taken);
  for (const chart of minuteCharts) {
    chart.show(times, columns, [from, to], "");
    const why = isKnown ? chart.whyEmpty : times.length ? "the mailserver was not running" : "the first minute is not over yet";
    if (!chart.hasValues()) chart.show(times, columns, [from, to], why);
  }
}

// Whether there is a gap after the first known minute.
function gap(seen, values) {
  const first = values.findIndex((value) => value !== null);
  return seen.some((isSeen, at) => isSeen && at > first && values[at] === null);
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
    const since = shownAt === null ? "" : ` The figures below are from ${shown(shownAt, "moment")} UTC.`;
    byId("stale").textContent = `The mailserver does not answer (${error.message}).${since}`;
    byId("stale").hidden = false;
    byId("ready").textContent = "unknown";
    byId("ready").className = "";
  }
  setTimeout(refresh, REFRESH_MS);
}

for (const button of byId("ranges").children) {
  button.addEventListener("click", () => look({ hours: Number(button.dataset.hours) }));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of [...minuteCharts, ...dayCharts]) if (chart.plot) chart.draw();
});
refresh();
