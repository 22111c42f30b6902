"use strict";
// Draws the runs in #data. Served by `adaptcl watch`, it follows a run that goes on.

const FEW = 3; // runs whose results are told one by one at the top
const PHASES = ["send", "train", "receive", "wait"];
const el = (id) => document.getElementById(id);
const state = { data: null, hidden: new Set(), hiddenWorkers: new Set(), axis: "time", run: {}, zoom: null, plots: {} };

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (x, digits = 1) => (x == null ? "–" : (100 * x).toFixed(digits) + " %");

// Writes values of a metric: shares in per cent, others as numbers.
const metric = (kind) => (x, digits) => (kind.in_percent || x == null ? percent(x, digits) : Number(x.toPrecision(4)).toString());

function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 120) return seconds.toFixed(1) + " s";
  if (seconds < 7200) return (seconds / 60).toFixed(1) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

function bytes(count) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (count >= 1024 && place < names.length - 1) { count /= 1024; place += 1; }
  return count.toFixed(place ? 1 : 0) + " " + names[place];
}

function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") made.style.cssText = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const begun = () => state.data.runs.filter((run) => run.curves.round.length);
const shown = () => begun().filter((run) => !state.hidden.has(run.method));

// The runs of each method: those that differ only in their seed.
function byMethod(runs) {
  const found = new Map();
  for (const run of runs) found.set(run.method, [...(found.get(run.method) || []), run]);
  return [...found.values()];
}

// The head ------------------------------------------------------------------------------------

function drawHead() {
  const runs = state.data.runs;
  const first = runs[0];
  const same = (name) => runs.every((run) => run[name] === first[name]);
  const methods = byMethod(runs);
  const named = methods.length > FEW ? [...new Set(runs.map((run) => run.strategy))] : methods.map(([run]) => run.method);
  el("title").textContent = named.slice(0, 4).join(" · ") + (named.length > 4 ? " …" : "");
  document.title = el("title").textContent + " – AdaptCL";
  el("job").textContent = [
    same("model") && "model " + first.model, same("data") && "data " + first.data,
    same("workers") && first.workers + " workers", roundsDone(runs),
  ].filter(Boolean).join(", ");
  const lines = [...(begun().length > FEW ? [] : begun().map(result)), ...state.data.verdict.map((line) => [node("b", {}, line)]), ...state.data.advice.map((line) => [line])];
  el("verdict").replaceChildren(...lines.map((line) => node("li", {}, ...line)));
  el("methods").replaceChildren(...(methods.length > 1 ? methods : []).map(([run, ...others]) => node("button", {
    "aria-pressed": String(!state.hidden.has(run.method)), title: others.length ? "show or hide these runs" : "show or hide this run",
    onclick: () => {
      if (!state.hidden.delete(run.method)) state.hidden.add(run.method);
      if (state.hidden.size === methods.length) state.hidden.clear();
      draw();
    },
  }, dot(run), run.method + (others.length ? `, ${others.length + 1} runs` : ""))));
}

function roundsDone(runs) {
  const span = (name) => [...new Set([Math.min(...runs.map((run) => run[name])), Math.max(...runs.map((run) => run[name]))])].join(" to ");
  return runs.every((run) => run.finished) ? span("rounds") + " rounds" : `${span("rounds")} of ${span("rounds_planned")} rounds`;
}

// The number that the verdict speaks of: the mean of the last five tests.
function came(run) {
  const after = `after ${duration(run.time_s)} of ${run.clock}${run.finished ? "" : " so far"}`;
  if (!run.tests) return "no test yet, " + after;
  const of = run.tests > 1 ? `mean of the last ${run.tests} tests` : "one test";
  return `${run.metric.label} ${metric(run.metric)(run.value, 2)} (${of}), ${after}`;
}

// Without a barrier workers have nothing to do after their last round.
const done = (run, are) => (run.done >= .005 ? ` and ${are} done for ${percent(run.done, 0)} of the run` : "");

function result(run) {
  return [dot(run), node("b", {}, run.label), `: ${came(run)}; workers waited `, node("b", {}, percent(run.waiting[0], 0)), ` of the time${done(run, "were")}.`];
}

const theme = matchMedia("(prefers-color-scheme: dark)");
const colour = (run) => (theme.matches ? `color-mix(in oklab, ${run.colour} 75%, white)` : run.colour);
const dot = (run) => node("span", { class: "dot", style: "background:" + colour(run) });

// Who waits for whom --------------------------------------------------------------------------

function drawWaiting() {
  el("legend").replaceChildren(...[...PHASES, "done, away or cut off"].map((name) => node("span", {}, node("i", { class: "swatch " + name.split(",")[0] }), name)));
  const methods = byMethod(shown()), runs = methods.map(([run]) => run);
  el("ends").replaceChildren(...methods.map(([run, ...others]) => {
    const { workers, length } = run.ends, [, early, late] = run.waiting;
    const some = run.workers_seen > workers.length ? ` ${workers.length} of ${run.workers_seen} workers are shown.` : "";
    const one = others.length ? ` One of ${others.length + 1} runs is shown.` : "";
    const strips = [["first", "at the start"], ["last", run.finished ? "at the end" : "now"]].map(([name, caption]) =>
      node("figure", {}, node("figcaption", {}, caption), node("canvas", { "data-part": name, "data-run": run.label })));
    return node("article", {},
      node("h3", {}, dot(run), run.label),
      node("p", { class: "share" }, node("b", {}, percent(run.waiting[0], 0)), " of the workers' time is waiting" + done(run, "they are")),
      node("p", { class: "hint" }, `${percent(early, 0)} in the first half of the run, `, node("b", {}, percent(late, 0)), ` in the second.${one}${some}`),
      ...(runs.length > FEW ? [node("p", { class: "hint" }, came(run) + ".")] : []),
      node("div", { class: "strips" }, ...strips));
  }));
  for (const canvas of el("ends").querySelectorAll("canvas")) {
    const run = runs.find((each) => each.label === canvas.dataset.run);
    const { workers, length, first, last } = run.ends;
    const isFirst = canvas.dataset.part === "first";
    const from = isFirst ? 0 : Math.max(0, run.time_s - length);
    const view = paint(canvas, { workers, rows: isFirst ? first : last, from, to: from + length, row: 13, left: isFirst ? 24 : 4, names: isFirst });
    canvas.onpointermove = (event) => tellBar(event, canvas, view);
    canvas.onpointerleave = () => tip(null);
  }
}

function tip(event, text) {
  const box = el("tip");
  box.hidden = event === null;
  if (event === null) return;
  box.textContent = text;
  const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 6);
  box.style.left = Math.max(4, left) + "px";
  box.style.top = Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 6) + "px";
}

// Bars ----------------------------------------------------------------------------------------
// A bar is [first round, last round, begin, send, train, receive, wait, retention].

function phases([, , begin, ...spent]) {
  return spent.slice(0, 4).map((seconds) => [begin, begin += seconds]);
}

const endOf = (bar) => bar[2] + bar[3] + bar[4] + bar[5] + bar[6];

// Draws a row of bars for each worker that is not hidden; returns what a pointer needs to know.
function paint(canvas, { workers, rows, from, to, row, left, names, foot = 0 }) {
  const kept = workers.map((worker, place) => [worker, rows[place]]).filter(([worker]) => !state.hiddenWorkers.has(worker));
  const width = canvas.clientWidth, height = kept.length * row + foot, ratio = devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const at = (time) => left + (width - left - 4) * (time - from) / (to - from || 1);
  const colours = [css("--send"), css("--train"), css("--receive"), stripe(pen)];
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "right";
  kept.forEach(([worker, bars], place) => {
    const top = place * row + 1;
    pen.fillStyle = css("--faint");
    if (names) pen.fillText(String(worker), left - 5, top + row / 2 + 3);
    for (const bar of bars) {
      if (endOf(bar) < from || bar[2] > to) continue;
      phases(bar).forEach(([begin, finish], phase) => {
        const x = Math.max(left, at(begin)), w = Math.min(width - 4, at(finish)) - x;
        if (w <= 0) return;
        pen.fillStyle = colours[phase];
        pen.fillRect(x, top, Math.max(w, .5), row - 2);
      });
    }
  });
  return { kept, from, to, left, row, width, height, pen, at };
}

const timeAt = (event, canvas, { from, to, left, width }) => {
  const x = event.clientX - canvas.getBoundingClientRect().left;
  return from + (to - from) * Math.min(1, Math.max(0, (x - left) / (width - left - 4)));
};

function tellBar(event, canvas, view) {
  const place = Math.floor((event.clientY - canvas.getBoundingClientRect().top) / view.row);
  const [worker, bars] = view.kept[place] || [0, []];
  const time = timeAt(event, canvas, view);
  const bar = bars.find((each) => each[2] <= time && time <= endOf(each));
  if (!bar) { tip(null); return; }
  const rounds = bar[0] === bar[1] ? `round ${bar[0]}` : `rounds ${bar[0]} to ${bar[1]} together`;
  const spent = PHASES.map((name, phase) => `${name} ${duration(bar[3 + phase])}`);
  tip(event, [`worker ${worker}, ${rounds}`, ...spent, `retention ${percent(bar[7])}`].join("\n"));
}

function stripe(pen) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.fillStyle = css("--wait"); brush.fillRect(0, 0, 6, 6);
  brush.strokeStyle = css("--wait-line"); brush.lineWidth = 1.4;
  brush.beginPath(); brush.moveTo(-1, 7); brush.lineTo(7, -1); brush.stroke();
  return pen.createPattern(tile, "repeat");
}

// Curves --------------------------------------------------------------------------------------

// One line for each method: over several runs their mean, round by round, as long as all have rounds.
function averaged(runs) {
  return byMethod(runs).map((together) => {
    const [first, ...others] = together;
    if (!others.length) return first;
    const places = together.map((run) => new Map(run.curves.round.map((round, place) => [round, place])));
    const rounds = first.curves.round.filter((round) => places.every((known) => known.has(round)));
    const mean = (name) => rounds.map((round) => {
      const values = together.map((run, each) => run.curves[name][places[each].get(round)]);
      return values.includes(null) ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
    });
    const curves = Object.fromEntries(Object.keys(first.curves).map((name) => [name, mean(name)]));
    return { ...first, label: `${first.method}, mean of ${together.length} runs`, curves };
  });
}

function joined(runs, x, y) {
  const tables = runs.map((run) => {
    const points = run.curves[x].map((value, place) => [value, run.curves[y][place]]);
    const measured = points.filter(([, value]) => value != null);
    return [measured.map(([at]) => at), measured.map(([, value]) => value)];
  });
  return tables.length ? uPlot.join(tables) : [[]];
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 604800];

function range(low, high) {
  if (low == null || high == null) return [0, 1];
  return high > low ? [low, high + 0.05 * (high - low)] : [low - 0.05 * Math.abs(low), low + 0.05 * Math.abs(low) || 1];
}

const SIZES = Array.from({ length: 40 }, (_, power) => 2 ** power);

// Draws curves, or gives new points to those that are there: a zoom and hidden curves stay.
function plot(place, key, data, options) {
  const before = state.plots[place], width = Math.max(260, el(place).clientWidth);
  if (before && before.key === key) {
    const { min, max } = before.plot.scales.x, [known] = before.plot.data;
    const zoomed = known.length > 1 && (min > known[0] || max < known[known.length - 1]);
    before.plot.setData(data, !zoomed);
    if (zoomed) before.plot.redraw();
  } else {
    if (before) before.plot.destroy();
    const axis = { stroke: css("--ink"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    const made = new uPlot({ width, height: 250, cursor: { drag: { x: true, y: false } }, ...options,
      axes: options.axes.map((each) => ({ ...axis, ...each })) }, data, el(place));
    state.plots[place] = { plot: made, key };
  }
  if (state.plots[place].plot.width !== width) state.plots[place].plot.setSize({ width, height: 250 });
  return state.plots[place].plot.root;
}

// What a legend says of a curve: its value below the pointer, or the latest if there is no pointer.
const told = (write) => (plot, value, series, place) => {
  const shown = place == null ? plot.data[series].findLast((each) => each != null) : value;
  return shown == null ? "–" : write(shown);
};

function curve(place, { x, y, runs, value, low, title, incrs }) {
  const seconds = x === "time";
  const few = runs.every((run) => run.curves[x].length < 60);
  const key = JSON.stringify([x, title, few, theme.matches, runs.map((run) => [run.label, run.colour])]);
  const root = plot(place, key, joined(runs, x, y), {
    scales: { x: { time: false }, y: { range: (_, min, max) => range(low ?? min, max) } },
    axes: [
      { ...(seconds ? { incrs: STEPS } : {}), values: (_, ticks) => ticks.map((t) => (seconds ? duration(t).replace(".0 ", " ") : t)) },
      { ...(incrs ? { incrs } : {}), size: 76, values: (_, ticks) => ticks.map((t) => value(t)) },
    ],
    series: [
      { label: seconds ? "time" : "round", value: (_, at) => (at == null ? "latest" : seconds ? duration(at) : at) },
      ...runs.map((run) => ({
        label: run.label, stroke: colour(run), width: 2, spanGaps: true, points: { show: few, size: 5 },
        value: told(value),
      })),
    ],
  });
  root.dataset.points = String(runs.reduce((sum, run) => sum + run.curves[y].filter((v) => v != null).length, 0));
  root.setAttribute("aria-label", title);
}

function drawCurves() {
  const runs = averaged(shown());
  const { label, ...shown_as } = (runs[0] || state.data.runs[0]).metric;
  el("metric-title").textContent = label[0].toUpperCase() + label.slice(1);
  const clock = (runs[0] || state.data.runs[0]).clock;
  tabs("metric-tabs", [["time", "over " + clock], ["round", "over rounds"]], state.axis, (axis) => { state.axis = axis; drawCurves(); });
  curve("metric", { x: state.axis, y: "value", runs, value: metric(shown_as), title: label });
  curve("heterogeneity", { x: "round", y: "heterogeneity", runs, value: (v) => v.toFixed(2), low: 0, title: "Heterogeneity" });
  curve("waiting", { x: "round", y: "waiting", runs, value: (v) => percent(v, 0), low: 0, title: "Waiting" });
  curve("bytes", { x: "round", y: "bytes", runs, value: (v) => bytes(v), low: 0, title: "Bytes", incrs: SIZES });
  drawRetention();
}

function tabs(place, choices, chosen, choose) {
  el(place).replaceChildren(...choices.map(([name, text]) =>
    node("button", { "aria-pressed": String(name === chosen), onclick: () => choose(name) }, text)));
}

function runTabs(place, runs, redraw) {
  const most = Math.max(...runs.map((run) => run.pruning));
  const chosen = runs.find((run) => run.label === state.run[place]) || runs.find((run) => run.pruning === most);
  tabs(place, runs.length > 1 ? runs.map((run) => [run.label, run.label]) : [], chosen && chosen.label,
    (label) => { state.run[place] = label; redraw(); });
  return chosen;
}

function drawRetention() {
  const run = runTabs("retention-tabs", shown(), drawRetention);
  if (!run) return;
  const { workers, bars } = run.timeline;
  const rounds = [...new Set(bars.flat().map((bar) => bar[1]))].sort((a, b) => a - b);
  const kept = workers.map((worker, place) => [worker, place]).filter(([worker]) => !state.hiddenWorkers.has(worker));
  const rows = kept.map(([, place]) => {
    const known = new Map(bars[place].map((bar) => [bar[1], bar[7]]));
    return rounds.map((round) => known.get(round) ?? null);
  });
  // From orange to blue, which every eye tells apart.
  const shade = (place) => `color-mix(in oklab, #0072b2 ${Math.round(100 * place / Math.max(1, workers.length - 1))}%, #e69f00)`;
  plot("retention", JSON.stringify([run.label, theme.matches, kept]), [rounds, ...rows], {
    scales: { x: { time: false }, y: { range: [0, 1.03] } },
    axes: [{}, { size: 58, values: (_, ticks) => ticks.map((t) => percent(t, 0)) }],
    series: [{ label: "round", value: (_, at) => at ?? "latest" }, ...kept.map(([worker, place]) => ({
      label: "worker " + worker, stroke: shade(place), width: 1.5, spanGaps: true, points: { show: false },
      value: told((v) => percent(v, 0)),
    }))],
    legend: { show: kept.length <= 12 },
  });
}

// Timeline ------------------------------------------------------------------------------------

function drawTimeline() {
  const run = runTabs("timeline-tabs", shown(), () => { state.zoom = null; drawTimeline(); });
  const canvas = el("timeline");
  if (!run) return;
  const { workers, bars, ends } = run.timeline;
  drawWorkers([...new Set(shown().flatMap((each) => each.timeline.workers))].sort((a, b) => a - b));
  const end = Math.max(ends[ends.length - 1] || 1, ...bars.map((each) => (each.length ? endOf(each[each.length - 1]) : 0)));
  const [from, to] = state.zoom || [0, end];
  const view = paint(canvas, { workers, rows: bars, from, to, row: 18, left: 28, names: true, foot: 22 });
  const { pen, at, width, height } = view;
  pen.fillStyle = css("--faint"); pen.strokeStyle = css("--paper");
  const marks = ends.filter((time) => time >= from && time <= to);
  if (marks.length < width / 6) {
    pen.beginPath();
    for (const time of marks) { pen.moveTo(at(time), 0); pen.lineTo(at(time), height - 22); }
    pen.stroke();
  }
  for (let tick = 0; tick <= 4; tick += 1) {
    const time = from + (to - from) * tick / 4;
    pen.textAlign = tick === 0 ? "left" : tick === 4 ? "right" : "center";
    pen.fillText(duration(time), at(time), height - 6);
  }
  canvas.dataset.bars = String(view.kept.reduce((sum, [, each]) => sum + each.length, 0));
  listen(canvas, view, end);
}

function drawWorkers(workers) {
  el("workers").replaceChildren(...(workers.length > 1 ? workers : []).map((worker) => node("button", {
    "aria-pressed": String(!state.hiddenWorkers.has(worker)), title: "show or hide worker " + worker,
    onclick: () => {
      if (!state.hiddenWorkers.delete(worker)) state.hiddenWorkers.add(worker);
      if (state.hiddenWorkers.size === workers.length) state.hiddenWorkers.clear();
      drawWaiting(); drawTimeline(); drawRetention(); drawWidths();
    },
  }, String(worker))));
}

function listen(canvas, view, end) {
  const { from, to } = view;
  let begun = null;
  canvas.onpointerdown = (event) => { begun = timeAt(event, canvas, view); };
  canvas.onpointerup = (event) => {
    if (begun === null) return;
    const [low, high] = [begun, timeAt(event, canvas, view)].sort((a, b) => a - b);
    begun = null;
    if (high - low > (to - from) / 100) { state.zoom = [low, high]; drawTimeline(); }
  };
  canvas.ondblclick = () => { state.zoom = null; drawTimeline(); };
  canvas.onkeydown = (event) => {
    const span = to - from, middle = (from + to) / 2;
    const moves = { ArrowLeft: [from - span / 5, to - span / 5], ArrowRight: [from + span / 5, to + span / 5],
      "+": [middle - span / 4, middle + span / 4], "-": [middle - span, middle + span] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    state.zoom = [Math.max(0, move[0]), Math.min(end, move[1])];
    drawTimeline();
  };
  canvas.onpointerleave = () => tip(null);
  canvas.onpointermove = (event) => tellBar(event, canvas, view);
}

// Tables --------------------------------------------------------------------------------------

function drawWidths() {
  const runs = shown().filter((run) => run.widths && run.widths.layers.length);
  el("widths-section").hidden = runs.length === 0;
  const run = runTabs("widths-tabs", runs, drawWidths);
  if (!run) return;
  const { layers, whole, workers, kept } = run.widths;
  const columns = workers.map((worker, place) => [worker, place]).filter(([worker]) => !state.hiddenWorkers.has(worker));
  const head = node("tr", {}, node("th", {}, "layer"), node("th", {}, "whole"), ...columns.map(([w]) => node("th", {}, "worker " + w)));
  el("widths").replaceChildren(head, ...layers.map((layer, row) => node("tr", {},
    node("td", {}, layer), node("td", { class: "number" }, String(whole[row])),
    ...columns.map(([, column]) => {
      const share = kept[column][row] / whole[row];
      return node("td", { class: "number", style: `background:color-mix(in srgb, var(--receive) ${Math.round(60 * share)}%, transparent)` },
        String(kept[column][row]));
    }))));
}

function drawSettings() {
  const runs = shown();
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const differs = (name) => new Set(runs.map((run) => run.settings[name])).size > 1;
  const head = () => node("tr", {}, node("th", {}, "setting"), ...runs.map((run) => node("th", {}, run.label)));
  const row = (name) => node("tr", {}, node("td", {}, name), ...runs.map((run) => node("td", {}, run.settings[name] || "–")));
  const apart = names.filter(differs);
  el("differences").replaceChildren(...(apart.length ? [head(), ...apart.map(row)] : []));
  el("settings").replaceChildren(head(), ...names.filter((name) => !differs(name)).map(row));
  el("again").replaceChildren(...runs.map((run) => {
    const name = run.label.replace(/[^\w.-]+/g, "-") + ".toml";
    if (!run.toml) return node("p", {}, dot(run), `${run.label} was run from Python, with a model or data of your own.`);
    return node("p", {}, dot(run), node("a", { download: name, href: "data:application/toml," + encodeURIComponent(run.toml) }, "save " + name),
      " and run ", node("code", {}, "adaptcl run " + name));
  }));
}

// Following a run -----------------------------------------------------------------------------

function drawLive() {
  const live = state.data.live;
  el("live").hidden = !live;
  if (!live) return;
  el("live").replaceChildren(...live.map((run) => {
    const done = run.rounds ? run.round / run.rounds : 0;
    const text = [run.state === "pending" ? `${run.label}: not begun` : `${run.label}: ${run.state}, round ${run.round} of ${run.rounds}`];
    if (run.state === "running" && run.left_s != null) text.push(`about ${duration(run.left_s)} left`);
    const lines = [node("div", { class: run.state }, text.join(", ")),
      node("div", { class: "bar" }, node("i", { style: `width:${(100 * done).toFixed(2)}%` }))];
    if (run.state === "stopped") lines.push(node("div", {}, "It was interrupted: ", node("code", {}, run.resume), " goes on."));
    if (run.state === "running") lines.push(node("div", { class: "states" }, ...run.workers.map(([name, what]) => node("span", { class: what }, `${name} ${what}`))));
    return node("div", { "data-state": run.state }, ...lines);
  }));
}

function follow() {
  const source = new EventSource("events" + location.search);
  source.onmessage = async (message) => {
    el("gone").hidden = true;
    const { edition, live } = JSON.parse(message.data);
    if (edition === state.data.edition) { state.data.live = live; drawLive(); return; }
    const answer = await fetch("data.json" + location.search, { cache: "no-store" });
    if (!answer.ok) return;
    state.data = await answer.json();
    if (state.data.runs.length) draw();
  };
  source.onerror = () => { el("gone").hidden = false; };
}

function draw() {
  drawHead(); drawLive(); drawWaiting(); drawCurves(); drawTimeline(); drawWidths(); drawSettings();
}

let waiting = null;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { drawWaiting(); drawCurves(); drawTimeline(); }, 120); });
theme.addEventListener("change", draw);

state.data = JSON.parse(el("data").textContent);
if (state.data.runs.length) draw();
if (state.data.live) follow();
