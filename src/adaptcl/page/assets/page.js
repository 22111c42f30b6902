"use strict";
// Draws the runs in #data. Served by `adaptcl watch`, it follows a run that goes on.

const PHASES = ["send", "train", "receive", "wait"];
const el = (id) => document.getElementById(id);
const state = { data: null, hidden: new Set(), axis: "time", run: {}, zoom: null, plots: [] };

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (x, digits = 1) => (x == null ? "–" : (100 * x).toFixed(digits) + " %");

// Writes values of a metric: shares in per cent, others as numbers.
const metric = (kind) => (x) => (kind.in_percent || x == null ? percent(x) : Number(x.toPrecision(4)).toString());

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
const shown = () => begun().filter((run) => !state.hidden.has(run.label));

// The head ------------------------------------------------------------------------------------

function drawHead() {
  const runs = state.data.runs;
  const first = runs[0];
  const same = (name) => runs.every((run) => run[name] === first[name]);
  el("title").textContent = runs.map((run) => run.label).slice(0, 4).join(" · ") + (runs.length > 4 ? " …" : "");
  document.title = el("title").textContent + " – AdaptCL";
  el("job").textContent = [
    same("model") && "model " + first.model, same("data") && "data " + first.data,
    same("workers") && first.workers + " workers", same("rounds_planned") && first.rounds_planned + " rounds",
  ].filter(Boolean).join(", ");
  const lines = [...verdict(begun()), ...(state.data.verdict ? [[node("b", {}, state.data.verdict)]] : [])];
  el("verdict").replaceChildren(...lines.map((line) => node("li", {}, ...line)));
  el("methods").replaceChildren(...(runs.length > 1 ? runs : []).map((run) => node("button", {
    "aria-pressed": String(!state.hidden.has(run.label)), title: "show or hide this run",
    onclick: () => {
      if (!state.hidden.delete(run.label)) state.hidden.add(run.label);
      if (state.hidden.size === runs.length) state.hidden.clear();
      draw();
    },
  }, node("span", { class: "dot", style: "background:" + run.colour }), run.label)));
}

function verdict(runs) {
  return runs.slice(0, 6).map((run) => {
    const after = run.finished ? "" : " so far";
    return [
      node("span", { class: "dot", style: "background:" + run.colour }),
      node("b", {}, run.label),
      `: ${run.metric.label} ${metric(run.metric)(run.value)} after ${duration(run.time_s)} of ${run.clock}${after}; workers waited `,
      node("b", {}, percent(run.phases.waiting, 0)),
      " of the time.",
    ];
  });
}

// Who waits for whom --------------------------------------------------------------------------

function drawPhases() {
  el("phases-legend").replaceChildren(...PHASES.map((name) => node("span", {},
    name === "wait" ? node("i", { class: "swatch wait" }) : node("i", { class: "swatch", style: `background:var(--${name})` }),
    name)));
  const total = (each) => each.reduce((a, b) => a + b, 0);
  // One scale for all runs: a shorter run has shorter bars.
  const most = Math.max(...shown().flatMap((run) => run.phases.seconds.map(total)), 1e-9);
  el("phases").replaceChildren(...shown().map((run) => {
    const { workers, seconds, waiting, workers_in_all } = run.phases;
    const rows = workers.map((worker, place) => node("div", { class: "phase-row" },
      node("span", { class: "name" }, "worker " + worker),
      node("div", { class: "phase-bar", "data-worker": worker }, ...seconds[place].map((value, phase) => {
        const width = `width:${(100 * value / most).toFixed(3)}%`;
        const name = PHASES[phase];
        const part = name === "wait" ? node("i", { class: "wait", style: width })
          : node("i", { style: `${width};background:var(--${name})` });
        hover(part, () => `worker ${worker}\n${name} ${duration(value)}`);
        return part;
      }))));
    const some = workers_in_all > workers.length ? `, ${workers.length} of ${workers_in_all} workers shown` : "";
    return node("div", { class: "phase-run" },
      node("h3", {}, node("span", { class: "dot", style: "background:" + run.colour }),
        `${run.label}: ${percent(waiting, 0)} waiting${some}`), ...rows);
  }));
}

function hover(element, text) {
  element.addEventListener("pointermove", (event) => tip(event, text()));
  element.addEventListener("pointerleave", () => tip(null));
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

// Curves --------------------------------------------------------------------------------------

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

function curve(place, { x, y, runs, value, low, title }) {
  const axis = { stroke: css("--ink"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  const seconds = x === "time";
  const few = runs.every((run) => run.curves[x].length < 60);
  const plot = new uPlot({
    width: Math.max(260, el(place).clientWidth), height: 260,
    scales: { x: { time: false }, y: { range: (_, min, max) => range(low ?? min, max) } },
    axes: [
      { ...axis, ...(seconds ? { incrs: STEPS } : {}), values: (_, ticks) => ticks.map((t) => (seconds ? duration(t).replace(".0 ", " ") : t)) },
      { ...axis, size: 76, values: (_, ticks) => ticks.map(value) },
    ],
    series: [
      { label: seconds ? "time" : "round", value: (_, at) => (at == null ? "–" : seconds ? duration(at) : at) },
      ...runs.map((run) => ({
        label: run.label, stroke: run.colour, width: 2, spanGaps: true, points: { show: few, size: 5 },
        value: (_, v) => (v == null ? "–" : value(v)),
      })),
    ],
    cursor: { drag: { x: true, y: false } },
  }, joined(runs, x, y), el(place));
  plot.root.dataset.points = String(runs.reduce((sum, run) => sum + run.curves[y].filter((v) => v != null).length, 0));
  plot.root.setAttribute("aria-label", title);
  state.plots.push([plot, place]);
}

function drawCurves() {
  for (const [plot] of state.plots) plot.destroy();
  state.plots = [];
  const runs = shown();
  const { label, ...shown_as } = (runs[0] || state.data.runs[0]).metric;
  el("metric-title").textContent = label[0].toUpperCase() + label.slice(1);
  tabs("metric-tabs", [["time", "over time"], ["round", "over rounds"]], state.axis, (axis) => { state.axis = axis; drawCurves(); });
  curve("metric", { x: state.axis, y: "value", runs, value: metric(shown_as), title: label });
  curve("heterogeneity", { x: "round", y: "heterogeneity", runs, value: (v) => v.toFixed(2), low: 0, title: "Heterogeneity" });
  curve("waiting", { x: "round", y: "waiting", runs, value: (v) => percent(v, 0), low: 0, title: "Waiting" });
  curve("bytes", { x: "round", y: "bytes", runs, value: (v) => bytes(v), low: 0, title: "Bytes" });
  drawRetention();
}

function tabs(place, choices, chosen, choose) {
  el(place).replaceChildren(...choices.map(([name, text]) =>
    node("button", { "aria-pressed": String(name === chosen), onclick: () => choose(name) }, text)));
}

function runTabs(place, runs, redraw) {
  const chosen = runs.find((run) => run.label === state.run[place]) || runs[runs.length - 1];
  tabs(place, runs.length > 1 ? runs.map((run) => [run.label, run.label]) : [], chosen && chosen.label,
    (label) => { state.run[place] = label; redraw(); });
  return chosen;
}

function drawRetention() {
  state.plots = state.plots.filter(([plot, place]) => place !== "retention" || (plot.destroy(), false));
  const run = runTabs("retention-tabs", shown(), drawRetention);
  if (!run) return;
  const { workers, bars } = run.timeline;
  const rounds = [...new Set(bars.flat().map((bar) => bar[0]))].sort((a, b) => a - b);
  const rows = bars.map((each) => {
    const known = new Map(each.map((bar) => [bar[0], bar[5]]));
    return rounds.map((round) => known.get(round) ?? null);
  });
  const shade = (place) => `hsl(${215 - 195 * place / Math.max(1, workers.length - 1)} 70% 50%)`;
  const axis = { stroke: css("--ink"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  const plot = new uPlot({
    width: Math.max(260, el("retention").clientWidth), height: 260, scales: { x: { time: false }, y: { range: [0, 1.03] } },
    axes: [axis, { ...axis, size: 58, values: (_, ticks) => ticks.map((t) => percent(t, 0)) }],
    series: [{ label: "round" }, ...workers.map((worker, place) => ({
      label: "worker " + worker, stroke: shade(place), width: 1.5, spanGaps: true, points: { show: false },
      value: (_, v) => percent(v, 0),
    }))],
    legend: { show: workers.length <= 12 }, cursor: { drag: { x: true, y: false } },
  }, [rounds, ...rows], el("retention"));
  state.plots.push([plot, "retention"]);
}

// Timeline ------------------------------------------------------------------------------------

const ROW = 18, LEFT = 62, BOTTOM = 22;

function drawTimeline() {
  const run = runTabs("timeline-tabs", shown(), () => { state.zoom = null; drawTimeline(); });
  const canvas = el("timeline");
  if (!run) return;
  const { workers, bars, ends } = run.timeline;
  const end = Math.max(ends[ends.length - 1] || 1, ...bars.map((each) => (each.length ? each[each.length - 1][6] : 0)));
  const [from, to] = state.zoom || [0, end];
  const width = canvas.clientWidth, height = workers.length * ROW + BOTTOM, ratio = devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const at = (time) => LEFT + (width - LEFT - 4) * (time - from) / (to - from);
  const colours = PHASES.map((name) => css("--" + name));
  const stripes = stripe(pen);
  pen.font = "11px system-ui, sans-serif";
  workers.forEach((worker, row) => {
    const top = row * ROW + 2;
    pen.fillStyle = css("--faint"); pen.textAlign = "right";
    pen.fillText("worker " + worker, LEFT - 6, top + ROW - 7);
    for (const bar of bars[row]) {
      if (bar[6] < from || bar[1] > to) continue;
      edges(bar).forEach(([begin, finish], phase) => {
        const x = Math.max(LEFT, at(begin)), w = Math.min(width - 4, at(finish)) - x;
        if (w <= 0) return;
        pen.fillStyle = phase === 3 ? stripes : colours[phase];
        pen.fillRect(x, top, Math.max(w, .5), ROW - 4);
      });
    }
  });
  pen.fillStyle = css("--faint"); pen.strokeStyle = css("--paper");
  const marks = ends.filter((time) => time >= from && time <= to);
  if (marks.length < width / 6) {
    pen.beginPath();
    for (const time of marks) { pen.moveTo(at(time), 0); pen.lineTo(at(time), workers.length * ROW); }
    pen.stroke();
  }
  pen.textAlign = "center";
  for (let tick = 0; tick <= 4; tick += 1) {
    const time = from + (to - from) * tick / 4;
    pen.textAlign = tick === 0 ? "left" : tick === 4 ? "right" : "center";
    pen.fillText(duration(time), at(time), height - 6);
  }
  canvas.dataset.bars = String(bars.reduce((sum, each) => sum + each.length, 0));
  listen(canvas, run, { at, from, to, end, width });
}

function edges([, begin, send, train, receive, , until]) {
  const sent = begin + send, trained = sent + train, back = trained + receive;
  return [[begin, sent], [sent, trained], [trained, back], [back, until]];
}

function stripe(pen) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.fillStyle = css("--wait"); brush.fillRect(0, 0, 6, 6);
  brush.strokeStyle = css("--wait-line"); brush.lineWidth = 1;
  brush.beginPath(); brush.moveTo(0, 6); brush.lineTo(6, 0); brush.stroke();
  return pen.createPattern(tile, "repeat");
}

function listen(canvas, run, { from, to, end, width }) {
  const time = (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    return from + (to - from) * Math.min(1, Math.max(0, (x - LEFT) / (width - LEFT - 4)));
  };
  let begun = null;
  canvas.onpointerdown = (event) => { begun = time(event); };
  canvas.onpointerup = (event) => {
    if (begun === null) return;
    const [low, high] = [begun, time(event)].sort((a, b) => a - b);
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
  canvas.onpointermove = (event) => {
    const row = Math.floor((event.clientY - canvas.getBoundingClientRect().top) / ROW);
    const at = time(event);
    const bar = (run.timeline.bars[row] || []).find((each) => each[1] <= at && at <= each[6]);
    if (!bar) { tip(null); return; }
    const spent = edges(bar).map(([a, b], phase) => `${PHASES[phase]} ${duration(Math.max(0, b - a))}`);
    tip(event, [`worker ${run.timeline.workers[row]}, round ${bar[0]}`, ...spent, `retention ${percent(bar[5])}`].join("\n"));
  };
}

// Tables --------------------------------------------------------------------------------------

function drawWidths() {
  const runs = shown().filter((run) => run.widths && run.widths.layers.length);
  el("widths-section").hidden = runs.length === 0;
  const run = runTabs("widths-tabs", runs, drawWidths);
  if (!run) return;
  const { layers, whole, workers, kept } = run.widths;
  const head = node("tr", {}, node("th", {}, "layer"), node("th", {}, "whole"), ...workers.map((w) => node("th", {}, "worker " + w)));
  el("widths").replaceChildren(head, ...layers.map((layer, row) => node("tr", {},
    node("td", {}, layer), node("td", { class: "number" }, String(whole[row])),
    ...workers.map((_, column) => {
      const share = kept[column][row] / whole[row];
      return node("td", { class: "number", style: `background:color-mix(in srgb, var(--train) ${Math.round(60 * share)}%, transparent)` },
        String(kept[column][row]));
    }))));
}

function drawSettings() {
  const runs = shown();
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const differs = (name) => new Set(runs.map((run) => run.settings[name])).size > 1;
  const order = [...names.filter(differs), ...names.filter((name) => !differs(name))];
  const head = node("tr", {}, node("th", {}, "setting"), ...runs.map((run) => node("th", {}, run.label)));
  el("settings").replaceChildren(head, ...order.map((name) => node("tr", differs(name) && runs.length > 1 ? { class: "differs" } : {},
    node("td", {}, name), ...runs.map((run) => node("td", {}, run.settings[name] ?? "–")))));
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
  source.onmessage = async () => {
    const answer = await fetch("data.json" + location.search, { cache: "no-store" });
    if (!answer.ok) return;
    state.data = await answer.json();
    draw();
  };
}

function draw() {
  drawHead(); drawLive(); drawPhases(); drawCurves(); drawTimeline(); drawWidths(); drawSettings();
}

let waiting = null;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { drawCurves(); drawTimeline(); }, 120); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

state.data = JSON.parse(el("data").textContent);
if (state.data.runs.length) draw();
if (state.data.live) follow();
