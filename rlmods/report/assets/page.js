"use strict";
const DATA = JSON.parse(document.getElementById("contents").textContent);
const COLORS = ["#1f5fbf", "#d9661f", "#2a8f4c", "#b3261e", "#7a4fbf", "#8a6d3b", "#c2478f", "#5b6575", "#1b9aaa", "#a3a300"];
const color = (i) => COLORS[i % COLORS.length];
const byId = (id) => document.getElementById(id);
const number = (x, digits = 4) => (x === null || x === undefined ? "" : Number(x).toFixed(digits).replace(/^-0\.0+$/, (s) => s.slice(1)));
const signed = (x) => (x > 0 ? "+" : "") + number(x);

/** Make an element. Text is always set as text, never as HTML: it may come from a model or from somebody else's run. */
function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function bounds(interval, format) {
  if (!interval) return "";
  const range = interval.low === null ? "" : ` [${format(interval.low)}, ${format(interval.high)}]`;
  return format(interval.mean) + range;
}

/** Fill a table. A column has a title, `text(row)` and `key(row)`, by which a click on the title sorts; rows without a key come last. */
function fillTable(table, columns, rows) {
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const draw = (sorted) => {
    body.replaceChildren();
    for (const row of sorted) {
      const line = body.insertRow();
      for (const column of columns) {
        const cell = line.insertCell();
        const content = column.text(row);
        if (content instanceof Node) cell.append(content);
        else cell.textContent = content ?? "";
        const name = column.className && (typeof column.className === "function" ? column.className(row) : column.className);
        if (name) cell.className = name;
      }
    }
  };
  columns.forEach((column) => {
    const cell = make("th", column.title, column.className === "text" ? "text" : "");
    head.append(cell);
    cell.onclick = () => {
      const down = cell.getAttribute("aria-sort") !== "descending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const missing = (x) => x === null || x === undefined || x === "";
      draw([...rows].sort((a, b) => {
        const [x, y] = [column.key(a), column.key(b)];
        if (missing(x) || missing(y)) return missing(x) - missing(y);
        const order = x < y ? -1 : x > y ? 1 : 0;
        return down ? -order : order;
      }));
    };
  });
  draw(rows);
}

function about() {
  byId("about").textContent = `${DATA.runs.length} runs in ${DATA.groups.length} groups · ${DATA.created} · ${DATA.command}`;
  const names = DATA.groups.length === 1 ? DATA.groups[0].name : `${DATA.groups.length} groups`;
  document.title = `${names} · rlmods report`;
}

function comparison() {
  const value = DATA.last === 1 ? "the last value" : `the mean of the last ${DATA.last} values`;
  const p = DATA.baseline === null ? "" : ` Differences from ${DATA.baseline} are paired by seed; p-values of the paired t test are adjusted for `
    + `the number of comparisons (Holm). Better and worse: p < 0.05. By prompt: bootstrap over held-out prompts, for these seeds.`;
  byId("statistics").textContent = `${DATA.metric}: ${value} of each run, mean and 95 % interval over seeds.${p}`;
  const rows = DATA.groups.map((group, i) => ({ ...group, i }));
  const verdict = (g) => (g.name === DATA.baseline ? "baseline" : g.better === true ? "better" : g.better === false ? "worse" : g.difference ? "not decided" : "");
  const stages = [...new Set(DATA.groups.flatMap((g) => Object.keys(g.stages)))].filter((name) => name !== "time/iteration_s").sort();
  fillTable(byId("groups"), [
    { title: "group", text: (g) => { const x = make("span"); const s = make("span", "", "swatch"); s.style.background = color(g.i); x.append(s, g.name); return x; }, key: (g) => g.name, className: "text" },
    { title: "seeds", text: (g) => g.seeds.length, key: (g) => g.seeds.length },
    { title: DATA.metric, text: (g) => bounds(g.result, number), key: (g) => g.result && g.result.mean },
    { title: "difference", text: (g) => bounds(g.difference, signed), key: (g) => g.difference && g.difference.mean },
    { title: "p", text: (g) => (g.p_value === null ? "" : g.p_value.toPrecision(2)), key: (g) => g.p_value },
    { title: "verdict", text: verdict, key: verdict, className: (g) => (g.better === true ? "better" : g.better === false ? "worse" : "") },
    { title: "by prompt", text: (g) => bounds(g.prompts, signed), key: (g) => g.prompts && g.prompts.mean },
    ...stages.map((name) => ({ title: `${name.slice(5).replace(/_s$/, "")}, s`, text: (g) => number(g.stages[name], 2), key: (g) => g.stages[name] })),
  ], rows);
}

const hidden = new Set();
const MAIN = [/^val\/(accuracy|reward|mean@\d+|pass@\d+|maj@\d+)$/, /^train\/(accuracy|reward|reward_std|entropy|kl_ref|kl_old|grad_norm|response_tokens|truncated_fraction|all_correct_fraction|all_wrong_fraction|flat_group_fraction|staleness_max|branched_fraction|loss)$/,
  /^train\/clip_fraction\//, /^train\/reward\/[^/]+$/, /^time\/(rollout|reward|score|update)_s$/, /^perf\/peak_memory_mb$/];
const rank = (name) => { const i = name === DATA.metric ? -1 : MAIN.findIndex((pattern) => pattern.test(name)); return i < -1 || (i === -1 && name !== DATA.metric) ? 99 : i; };

function drawChart(holder, name) {
  const groups = DATA.groups.map((g, i) => ({ i, curve: g.curves[name] })).filter((x) => x.curve && !hidden.has(x.i));
  const xs = [...new Set(groups.flatMap((x) => x.curve[0]))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  const data = [xs], series = [{ label: "iteration" }], bands = [];
  for (const { i, curve } of groups) {
    const several = DATA.groups[i].seeds.length > 1;
    const column = (values) => { const full = new Array(xs.length).fill(undefined); curve[0].forEach((x, k) => { full[place.get(x)] = values[k]; }); return full; };
    data.push(column(curve[1]));
    series.push({ label: DATA.groups[i].name, stroke: color(i), width: 2, spanGaps: true, points: { show: curve[0].length < 40, size: 4 }, value: (_, v) => (v === null || v === undefined ? "" : Number(v.toPrecision(4))) });
    if (several) {
      const first = series.length;
      for (const values of [curve[3], curve[2]]) { data.push(column(values)); series.push({ label: "", stroke: "transparent", spanGaps: true, points: { show: false } }); }
      bands.push({ series: [first, first + 1], fill: `${color(i)}22` });
    }
  }
  holder.replaceChildren(make("h3", name));
  const plot = new uPlot({ width: Math.max(320, holder.clientWidth), height: 220, scales: { x: { time: false } }, axes: [{}, { size: 62 }], legend: { show: false },
    cursor: { sync: { key: "iteration" } }, series, bands }, data, holder);
  const readout = make("div", "", "facts");
  holder.append(readout);
  plot.over.addEventListener("mousemove", () => {
    const k = plot.cursor.idx;
    if (k === null || k === undefined) return;
    readout.textContent = `iteration ${xs[k]}: ` + series.map((s, j) => (s.width && data[j][k] !== undefined ? `${s.label} ${Number(data[j][k].toPrecision(4))}` : "")).filter(Boolean).join(" · ");
  });
  holder.plot = plot;
}

function charts() {
  const names = [...new Set(DATA.groups.flatMap((g) => Object.keys(g.curves)))].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); drawChart(entry.target, entry.target.dataset.metric); }
  }, { rootMargin: "200px" });
  const holders = names.map((name) => { const holder = make("div", name, "chart"); holder.dataset.metric = name; byId("charts").append(holder); return holder; });
  const update = () => {
    const words = byId("metric-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const holder of holders) {
      const name = holder.dataset.metric;
      const wanted = words.length ? words.every((word) => name.toLowerCase().includes(word)) : byId("all-metrics").checked || rank(name) < 99;
      holder.hidden = !wanted;
      holder.style.display = wanted ? "" : "none";
      seen.unobserve(holder);
      if (wanted && !holder.plot) seen.observe(holder);
    }
  };
  byId("metric-filter").oninput = update;
  byId("all-metrics").onchange = update;
  DATA.groups.forEach((group, i) => {
    const item = make("span");
    const swatch = make("span", "", "swatch");
    swatch.style.background = color(i);
    item.append(swatch, group.name);
    item.onclick = () => {
      if (hidden.has(i)) hidden.delete(i); else hidden.add(i);
      item.classList.toggle("off");
      for (const holder of holders) if (holder.plot) { holder.plot.destroy(); drawChart(holder, holder.dataset.metric); }
    };
    byId("legend").append(item);
  });
  update();
}

function background(advantage, largest) {
  if (advantage === null || !largest) return "";
  const strength = Math.min(1, Math.abs(advantage) / largest) * 0.35;
  return advantage > 0 ? `rgba(42, 143, 76, ${strength})` : advantage < 0 ? `rgba(179, 38, 30, ${strength})` : "";
}

function responseCard(response, largest) {
  const card = make("div", null, response.kept === false ? "response dropped" : "response");
  card.style.background = background(response.advantage, largest);
  card.append(make("pre", response.text));
  const facts = [
    response.correct === null ? null : response.correct ? "right" : "wrong",
    response.reward === null ? "not scored" : `reward ${Number(response.reward.toPrecision(4))}`,
    ...Object.entries(response.terms).map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`),
    response.advantage === null ? null : `advantage ${Number(response.advantage.toPrecision(4))}`,
    response.length === null ? null : `${response.length} tokens`,
    response.finish,
    response.kept === false ? "dropped by sampling" : null,
  ];
  card.append(make("div", facts.filter(Boolean).join(" · "), "facts"));
  return card;
}

function browser() {
  const [runs, files] = [byId("sample-run"), byId("sample-file")];
  DATA.samples.forEach((entry, i) => runs.append(new Option(entry.run, i)));
  const matches = { "": () => true, right: (r) => r.correct === true, wrong: (r) => r.correct === false, kept: (r) => r.kept === true, dropped: (r) => r.kept === false };
  const draw = () => {
    const file = DATA.samples[runs.value]?.files[files.value];
    const search = byId("sample-search").value.toLowerCase();
    const wanted = matches[byId("sample-filter").value];
    byId("prompts").replaceChildren();
    let count = 0;
    for (const prompt of file ? file.prompts : []) {
      const inPrompt = prompt.prompt.toLowerCase().includes(search);
      const shown = prompt.responses.filter((r) => wanted(r) && (inPrompt || r.text.toLowerCase().includes(search)));
      if (!shown.length) continue;
      count += shown.length;
      const box = make("div", null, "prompt");
      box.append(make("pre", prompt.prompt));
      const rewards = prompt.responses.map((r) => r.reward).filter((x) => x !== null);
      const mean = rewards.reduce((a, b) => a + b, 0) / Math.max(1, rewards.length);
      box.append(make("div", `${prompt.id} · ${prompt.answer === null ? "no answer given" : `answer ${prompt.answer}`} · ${prompt.responses.length} responses, mean reward ${Number(mean.toPrecision(4))}`, "facts"));
      const largest = Math.max(0, ...prompt.responses.map((r) => Math.abs(r.advantage ?? 0)));
      const grid = make("div", null, "responses");
      grid.append(...shown.map((r) => responseCard(r, largest)));
      box.append(grid);
      if (prompt.tree) box.append(make("pre", prompt.tree, "tree"));
      byId("prompts").append(box);
    }
    byId("sample-count").textContent = `${count} responses`;
  };
  const fill = () => {
    files.replaceChildren();
    (DATA.samples[runs.value]?.files ?? []).forEach((file, i) => files.append(new Option(file.kind === "validation" ? `validation after iteration ${file.iteration}` : `iteration ${file.iteration}`, i)));
    draw();
  };
  runs.onchange = fill;
  for (const id of ["sample-file", "sample-filter"]) byId(id).onchange = draw;
  byId("sample-search").oninput = draw;
  fill();
}

function runs() {
  const column = (title, key, digits, className) => ({ title, key: (r) => r[key], text: (r) => (digits === undefined ? r[key] : number(r[key], digits)), className });
  fillTable(byId("run-table"), [
    column("group", "group", undefined, "text"), column("seed", "seed"), column("exit", "exit", undefined, "text"), column("iterations", "iterations"),
    column("first", "first", 3), column("best", "best", 3), column("last", "last", 3), column("seconds", "wall_s", 0),
    column("response tokens", "response_tokens"), column("peak memory, MB", "peak_memory_mb", 0),
    { title: "alarms", text: (r) => r.alarms.length || "", key: (r) => r.alarms.length, className: (r) => (r.alarms.length ? "worse" : "") },
  ], DATA.runs);
  for (const run of DATA.runs) {
    const box = make("details");
    box.append(make("summary", `${run.path} · ${run.label}`));
    for (const alarm of run.alarms) box.append(make("div", `alarm: ${alarm}`, "alarm"));
    box.append(make("pre", run.command ?? "The command was not recorded."), make("pre", run.versions));
    byId("run-details").append(box);
  }
}

about();
comparison();
charts();
browser();
runs();
document.body.dataset.ready = "true";
