"use strict";
// The report's page. Texts of runs are written as text nodes only, never as HTML.
const data = JSON.parse(document.getElementById("contents").textContent);
const COLOURS = ["#1f77b4", "#d6592b", "#2c8a4b", "#8a4fa3", "#b5872b", "#d1498b", "#4b9aa8", "#6b6b6b", "#a03333", "#5a6fd0"];
const colour = (i) => COLOURS[i % COLOURS.length];
const state = { hidden: new Set(), eachSeed: false };

/** Make an element: properties, "on..." listeners, "data-..." and other attributes, then children (texts or nodes). */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map((x) => (x instanceof Node ? x : String(x))));
  return node;
}

/** Largest value; `Math.max(...values)` fails on more than about 100,000 values. */
const largest = (values, least) => values.reduce((a, b) => Math.max(a, b), least);
const format = (x, sign = false) => (x === null || x === undefined ? "" : (sign && x > 0 ? "+" : "") + Number(x.toPrecision(4)));
function spread(s, sign) {
  if (!s) return "";
  const digits = (x) => format(Math.abs(x) < 1e-12 ? 0 : Number(x.toPrecision(3)), sign); // the mean of values that cancel
  return s.low !== null ? `${digits(s.mean)} [${digits(s.low)}, ${digits(s.high)}]` : digits(s.mean);
}

function duration(seconds) {
  if (seconds < 90) return `${format(Math.round(seconds))} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function section(id, title, ...children) {
  document.getElementById("nav").append(el("a", { href: `#${id}` }, title));
  const node = el("section", { id }, el("h2", {}, title), ...children);
  document.getElementById("main").append(node);
  return node;
}

/** A table whose columns sort on a click of their headers. Rows: {cells: [{text, key, node}], node}. */
function table(headers, rows, id) {
  const body = el("tbody", {}, rows.map((row) => row.node));
  let sorted = null, ascending = false;
  const head = headers.map((header, column) => el("th", {
    title: "sort",
    onclick() {
      ascending = sorted === column ? !ascending : typeof (rows[0] || { keys: [] }).keys[column] === "string";
      sorted = column;
      const missing = (x) => x === null || x === undefined;
      const order = (a, b) => (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b);
      rows.sort((r, s) => {
        const [a, b] = [r.keys[column], s.keys[column]];
        if (missing(a) || missing(b)) return missing(a) - missing(b);
        return ascending ? order(a, b) : order(b, a);
      });
      body.append(...rows.map((row) => row.node));
      head.forEach((th, i) => th.setAttribute("aria-sort", i !== column ? "none" : ascending ? "ascending" : "descending"));
    },
  }, header));
  return el("div", { className: "scroll" }, el("table", { id }, el("thead", {}, el("tr", {}, head)), body));
}

function about() {
  const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const names = data.groups.length === 1 ? data.groups[0].name : count(data.groups.length, "member");
  document.title = `${names} · rlmods report`;
  document.getElementById("main").append(el("p", { className: "note", id: "about" },
    `${count(data.runs.length, "run")} in ${count(data.groups.length, "member")} · ${data.created} · ${data.command}`),
    el("div", { id: "answer" }, data.answer.map((sentence) => el("p", {}, sentence))));
}

function members() {
  const many = data.baseline !== null, allFinished = data.runs.every((run) => run.exit === "finished");
  const comparison = many ? ["difference", "verdict", "by prompt"] : [];
  const headers = ["", "member", "seeds", data.metric, ...comparison, "iterations", "time", ...(allFinished ? [] : ["exit"])];
  const rows = data.groups.map((group, i) => {
    const box = el("input", {
      type: "checkbox", checked: true, ariaLabel: `show ${group.name}`,
      onchange() { state.hidden[box.checked ? "delete" : "add"](i); redraw(); },
    });
    const own = data.runs.filter((run) => run.group === i), exit = [...new Set(own.map((run) => run.exit))].join("; ");
    const verdict = group.name === data.baseline ? "baseline" : group.better === true ? "better" : group.better === false ? "worse" : group.difference ? "not decided" : "";
    const known = group.result ? group.result.num_values : 0, seeds = known === own.length ? own.length : `${known} of ${own.length}`;
    const iterations = largest(own.map((run) => run.iterations), 0), seconds = own.reduce((sum, run) => sum + (run.wall_s || 0), 0) / own.length;
    const p = group.p_value === null || verdict === "baseline" ? "" : ` (p ${format(Number(group.p_value.toPrecision(2)))})`;
    const name = el("td", { className: "name" }, el("i", { className: "swatch", style: { background: colour(i) } }), group.name);
    const cell = (text) => el("td", { className: "number" }, text);
    const node = el("tr", { "data-member": i },
      el("td", {}, box), name, el("td", { title: own.map((run) => run.seed).join(", ") }, seeds), cell(spread(group.result)),
      many ? [cell(spread(group.difference, true)),
        el("td", { className: verdict === "better" || verdict === "worse" ? verdict : "" }, verdict + p), cell(spread(group.prompts, true))] : null,
      cell(iterations), cell(duration(seconds)), allFinished ? null : el("td", { className: exit === "finished" ? "" : "alarm" }, exit));
    const mean = (interval) => interval && interval.mean;
    const keys = [i, group.name, own.length, mean(group.result), ...(many ? [mean(group.difference), group.p_value, mean(group.prompts)] : []),
      iterations, seconds, exit];
    return { node, keys };
  });
  const filter = el("input", {
    type: "search", id: "member-filter", placeholder: "filter members", hidden: rows.length <= 5,
    oninput() {
      const words = filter.value.toLowerCase().split(/\s+/);
      rows.forEach(({ node }) => {
        const found = words.every((word) => node.textContent.toLowerCase().includes(word));
        node.hidden = !found;
        state.hidden[found && node.querySelector("input").checked ? "delete" : "add"](Number(node.dataset.member));
      });
      redraw();
    },
  });
  const value = data.last === 1 ? "the last value" : `the mean of the last ${data.last} values`;
  const difference = many ? ` Differences from ${data.baseline} are paired by seed. p: paired t test, adjusted for the number of comparisons (Holm).`
    + " By prompt: bootstrap over held-out prompts." : "";
  section("members", "Members", filter, table(headers, rows, "members-table"), el("p", { className: "note" },
    `A member is the runs that differ in their seed only. ${data.metric}: ${value}, mean over seeds and 95 % interval.${difference} Time: of a run.`));
}

function differences() {
  const found = [...Object.entries(data.parts), ...Object.entries(data.settings)];
  if (!found.length) return;
  const rows = found.map(([key, values], n) => ({
    node: el("tr", { className: n < Object.keys(data.parts).length ? "part" : "" }, el("td", { className: "name" }, key), values.map((value) => el("td", {}, value))),
    keys: [key, ...values],
  }));
  section("differences", "What differs", el("p", { className: "note" }, "Parts, then settings."), table(["part or setting", ...data.groups.map((group) => group.name)], rows, "differences-table"));
}

/* Charts. A chart is drawn when it comes into view. */
const charts = [];
const visible = new IntersectionObserver((entries) => entries.forEach((entry) => {
  const chart = charts.find((other) => other.node === entry.target);
  chart.inView = entry.isIntersecting;
  if (chart.inView) chart.draw();
}), { rootMargin: "300px" });

function redraw() { charts.forEach((chart) => { chart.stale = true; if (chart.inView) chart.draw(); }); }

function chart(metric) {
  const curve = data.curves[metric], node = el("figure", { className: "chart", "data-metric": metric });
  const self = { node, stale: true, inView: false, plot: null };
  self.draw = () => {
    if (!self.stale) return;
    self.stale = false;
    if (self.plot) self.plot.destroy();
    const shown = data.groups.map((_, i) => i).filter((i) => curve[i] && !state.hidden.has(i));
    const x = [...new Set(shown.flatMap((i) => curve[i].x))].sort((a, b) => a - b), place = new Map(x.map((value, n) => [value, n]));
    const columns = [x], series = [{ label: "iteration" }], bands = [];
    const add = (own, values, options) => {
      const column = Array(x.length).fill(null);
      own.x.forEach((value, n) => { column[place.get(value)] = values[n]; });
      columns.push(column);
      series.push({ spanGaps: true, points: { show: own.x.length < 30, size: 4 }, value: (_, y) => (y === null || y === undefined ? "" : format(y)), ...options });
    };
    shown.forEach((i) => {
      const own = curve[i], name = data.groups[i].name, bound = { label: "", stroke: "transparent", points: { show: false }, class: "bound" };
      add(own, own.mean, { label: name, stroke: colour(i), width: own.seeds ? 2 : 1.5 });
      if (!own.seeds) return;
      add(own, own.high, bound);
      add(own, own.low, bound);
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${colour(i)}26` });
      const runs = data.runs.filter((run) => run.group === i);
      if (state.eachSeed) own.seeds.forEach((values, n) => add(own, values, { label: `${name}, seed ${runs[n].seed}`, stroke: colour(i), width: 0.7 }));
    });
    const axis = { font: "11px system-ui", stroke: "#555", grid: { stroke: "#e8e8e8", width: 1 }, ticks: { stroke: "#ccc", width: 1 } };
    self.plot = new uPlot({
      width: Math.max(260, node.clientWidth - 12), height: 210, series, bands, scales: { x: { time: false } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] }, { ...axis, size: 58, values: (_, splits) => splits.map((x) => (x === null ? "" : format(x))) }],
      legend: { show: shown.length <= 6 && !state.eachSeed }, cursor: { sync: { key: "all", setSeries: false } },
    }, columns, node);
  };
  node.append(el("figcaption", {}, metric));
  charts.push(self);
  visible.observe(node);
  return node;
}

const GROUPS = [
  ["Curves", (m) => m === data.metric || /^val\/(accuracy|reward|gold_reward|mean@|pass@|maj@)[^/]*$/.test(m) || /^train\/(accuracy|reward)$/.test(m)],
  ["Entropy and KL", (m) => /entropy|\/kl|grad_norm|\/lr$|ratio_max|clip_fraction|loss/.test(m)],
  ["Groups", (m) => /flat_group|all_correct|all_wrong|kept_fraction|unique|reward_std|unscored/.test(m)],
  ["Reward terms", (m) => /(^reward\/)|\/reward\/|alert\//.test(m)],
  ["Lengths", (m) => /token|truncated|turn|call|branch/.test(m) && !/_s$|_per_s/.test(m)],
  ["Staleness", (m) => /gap|correction|ahead|policy_age|stale/.test(m)],
  ["Time and memory", (m) => /^(time|perf)\//.test(m)],
  ["Others", () => true],
];

/** Metrics of the curves by the number of their group. */
function grouped() {
  const found = GROUPS.map(() => []);
  Object.keys(data.curves).forEach((metric) => found[GROUPS.findIndex(([, has]) => has(metric))].push(metric));
  found[0].sort((a, b) => (b === data.metric) - (a === data.metric));
  return found;
}

function curves() {
  const metrics = grouped()[0];
  if (!metrics.length) return;
  const box = el("input", { type: "checkbox", id: "each-seed", onchange() { state.eachSeed = box.checked; redraw(); } });
  section("curves", "Curves", el("p", { className: "note" }, "Line: mean over seeds. Band: range over seeds. Drag to enlarge a range, double click to go back. ",
    el("label", {}, box, " a line for each seed")), el("div", { className: "charts" }, metrics.map(chart)));
}

function diagnostics() {
  grouped().forEach((metrics, i) => {
    const [name] = GROUPS[i];
    if (i === 0 || !metrics.length) return;
    const node = section(name.toLowerCase().replaceAll(" ", "-"), name, el("div", { className: "charts" }, metrics.map(chart)));
    if (name === "Time and memory") node.insertBefore(stages(), node.querySelector(".charts"));
  });
  const constant = Object.entries(data.constants).map(([metric, value]) => `${metric} ${format(value)}`);
  if (constant.length) document.getElementById("main").append(el("p", { className: "note", id: "constants" }, `Constant: ${constant.join(", ")}`));
}

/** Mean seconds of an iteration by stage, a bar for each member. */
function stages() {
  const names = [...Object.keys(data.curves), ...Object.keys(data.constants)].filter((metric) => /^time\/.*_s$/.test(metric) && metric !== "time/iteration_s");
  const mean = (metric, i) => {
    if (!data.curves[metric]) return data.constants[metric];
    const values = (data.curves[metric][i] || { mean: [] }).mean;
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0;
  };
  const totals = data.groups.map((_, i) => names.map((name) => mean(name, i)));
  const most = largest(totals.map((t) => t.reduce((a, b) => a + b, 0)), 1e-9);
  const key = el("p", { className: "note" }, "Mean seconds of an iteration: ",
    names.map((name, n) => [el("i", { className: "swatch", style: { background: colour(n) } }), name.slice(5, -2), " "]));
  return el("div", { className: "stages" }, key, totals.map((t, i) => el("div", { className: "stage" }, el("span", {}, data.groups[i].name),
    el("div", {}, t.map((x, n) => el("b", { style: { width: `${(100 * x) / most}%`, background: colour(n) }, title: `${names[n]}: ${format(x)}` }))),
    el("em", {}, `${format(t.reduce((a, b) => a + b, 0))} s`))));
}

/* Samples. */
const select = (id, options, onchange) => el("select", { id, onchange }, options.map(([value, text]) => el("option", { value }, text)));

/** Colour of a signed value: green for positive ones, red for negative ones, deeper for larger ones. */
function shade(x, scale) {
  const strength = Math.min(1, Math.abs(x) / (scale || 1));
  return `rgba(${x >= 0 ? "30,140,70" : "205,60,40"},${(0.08 + 0.5 * strength).toFixed(3)})`;
}

/** Number of each token of a response: its advantage, or the advantage of a term of a sum; null without a loss. */
function tokenValues(row, column) {
  const values = Array((row.tokens || [row.text]).length).fill(null), k = ["advantage", ...(row.credit_terms || [])].indexOf(column);
  if (k >= 0) (row.credit || []).forEach(([begin, end, ...numbers]) => values.fill(numbers[k], begin, Math.min(end, values.length)));
  return values;
}

/** Text of a response by token, each coloured by its number and underlined instead if it is not trained, below a note for each turn. */
function responseText(row, column, scale) {
  const values = tokenValues(row, column), texts = row.tokens || [row.text], turns = row.turns || [];
  const isIn = (runs, t) => runs.some(([begin, end]) => begin <= t && t < end);
  const note = (i) => el("b", { className: "turn" }, [turns.length > 1 ? `turn ${i + 1}` : null, turns[i][2]].filter(Boolean).join(": "));
  const spans = texts.map((text, t) => {
    const notes = turns.map((turn, i) => (turn[0] === t ? note(i) : null)), x = values[t];
    if (x === null) return [notes, el("span", { className: turns.length && !isIn(turns, t) ? "observed" : "" }, text)];
    const isLeft = row.trained && row.tokens && !isIn(row.trained, t), background = shade(x, scale);
    return [notes, el("span", { className: isLeft ? "left" : "", style: isLeft ? { borderColor: background } : { background },
      title: `token ${t}: ${column} ${format(x, true)}${isLeft ? ", not trained" : ""}` }, text)];
  });
  return el("pre", { className: "text" }, spans, row.tokens ? null : turns.slice(1).map((_, i) => note(i + 1)));
}

function card(row, i, column, scale) {
  const terms = Object.entries(row.terms || {}).map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, format(value))));
  const facts = [
    row.reward === undefined ? "not scored" : `reward ${format(row.reward)}`,
    row.advantage === undefined ? "not trained on" : `advantage ${format(row.advantage, true)}`,
    row.correct === undefined ? null : row.correct ? "correct" : "wrong",
    row.kept === false ? "filtered out" : null, row.length ? `${row.length} tokens` : null, row.finish === "length" ? "truncated" : null,
  ].filter(Boolean);
  const calls = (row.calls || []).map((call) => el("details", { className: call.error ? "call alarm" : "call" },
    el("summary", {}, `turn ${call.turn}: ${call.name || "call"} ${call.error ? `(${call.error})` : ""}`),
    el("pre", {}, call.arguments), el("pre", {}, `→ ${call.result}`)));
  const columns = Object.entries(row.columns || {}).map(([name, value]) => `${name}: ${value}`).join("\n");
  return el("article", { className: row.kept === false ? "card rejected" : "card", title: columns },
    el("header", {}, el("strong", {}, `response ${i}`), " ", facts.join(" · ")),
    responseText(row, column, scale), calls, terms.length ? el("table", { className: "terms" }, terms) : null);
}

/** The tree of responses to a prompt, of which some branch off from others. */
function tree(nodes, rows) {
  return el("ul", { className: "tree" }, nodes.map((node) => {
    const rewards = node.members.map((i) => (rows[i] || {}).reward).filter((x) => x !== undefined);
    const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
    const texts = (rows[node.response].tokens || []).slice(node.begin, node.end).join("");
    const scale = largest(rows.map((row) => Math.abs(row.advantage || 0)), 1e-9);
    const calls = (rows[node.response].calls || []).map((call) => `${call.name || "call"}${call.error ? ` (${call.error})` : ""} → ${call.result}`);
    const line = [`tokens ${node.begin}–${node.end}`, node.members.length > 1 ? `${node.members.length} responses` : `response ${node.response}`,
      mean === null ? "not scored" : `reward ${format(mean)}`];
    const advantages = node.advantages.map((x) => el("span", { className: "tag", style: { background: shade(x, scale) } }, `advantage ${format(x, true)}`));
    const decisions = node.decisions.map((d) => el("span", { className: "tag branch" },
      `branch: entropy ${format(d.initial_entropy)} → ${format(d.entropy)}, P ${format(d.probability)}`));
    return el("li", {}, el("div", { title: calls.join("\n") }, line.join(" · "), " ", advantages, decisions),
      texts ? el("pre", {}, texts.length > 600 ? `${texts.slice(0, 600)} …` : texts) : null,
      !node.children.length && calls.length ? el("div", { className: "note" }, `calls: ${calls.join("; ")}`) : null,
      node.children.length ? tree(node.children, rows) : null);
  }));
}

function samples() {
  if (!data.samples.length) return;
  const PAGE = 4;
  let shown = PAGE;
  data.samples.forEach((group) => {
    group.text = [group.id, group.prompt, group.answer || "", ...group.rows.map((row) => (row.tokens ? row.tokens.join("") : row.text))].join("\n").toLowerCase();
  });
  const runs = [...new Set(data.samples.map((group) => group.run))];
  const when = [...new Set(data.samples.map((group) => `${group.kind} ${group.iteration}`))];
  when.sort((a, b) => a.split(" ")[0].localeCompare(b.split(" ")[0]) || a.split(" ")[1] - b.split(" ")[1]);
  const again = () => { shown = PAGE; draw(); };
  const name = (i) => { const run = data.runs[i]; return `${data.groups[run.group].name}, seed ${run.seed}`; };
  const run = select("sample-run", [["", "all runs"], ...runs.map((i) => [i, name(i)])], again);
  const iteration = select("sample-iteration", [["", "all iterations"], ...when.map((x) => [x, x])], again);
  const only = select("sample-only", [["", "all responses"], ["kept", "kept by the filter"], ["rejected", "filtered out"], ["correct", "correct"],
    ["wrong", "wrong"], ["length", "truncated"], ["tree", "trees of responses"]], again);
  const terms = [...new Set(data.samples.flatMap((group) => group.rows.flatMap((row) => row.credit_terms || [])))];
  const column = select("sample-colour", [...["advantage", ...terms].map((x) => [x, `colour: ${x}`]), ["", "no colour"]], () => draw());
  const search = el("input", { type: "search", id: "sample-search", placeholder: "search prompts and responses", oninput: again });
  const count = el("span", { className: "note", id: "sample-count" }), list = el("div", { id: "sample-list" });
  const more = el("button", { id: "sample-more", onclick() { shown += PAGE; draw(); } }, "more");
  const tests = { kept: (row) => row.kept === true, rejected: (row) => row.kept === false, correct: (row) => row.correct === true,
    wrong: (row) => row.correct === false, length: (row) => row.finish === "length" };

  function draw() {
    const words = search.value.toLowerCase(), test = tests[only.value];
    const groups = data.samples.filter((group) => (run.value === "" || group.run === Number(run.value))
      && (iteration.value === "" || iteration.value === `${group.kind} ${group.iteration}`)
      && (only.value !== "tree" || group.tree) && (!test || group.rows.some(test)) && group.text.includes(words));
    count.textContent = `${groups.length} of ${data.samples.length} groups`;
    more.hidden = groups.length <= shown;
    list.replaceChildren(...groups.slice(0, shown).map((group) => {
      const all = group.rows.flatMap((row) => tokenValues(row, column.value)).filter((x) => x !== null), scale = largest(all.map(Math.abs), 1e-9);
      const cards = group.rows.map((row, i) => [row, i]).filter(([row]) => !test || test(row)).map(([row, i]) => card(row, i, column.value, scale));
      const rewards = group.rows.map((row) => row.reward).filter((x) => x !== undefined);
      const mean = rewards.length ? `mean reward ${format(rewards.reduce((a, b) => a + b, 0) / rewards.length)}` : "not scored";
      return el("div", { className: "group" },
        el("h3", {}, `${group.kind} ${group.iteration} · ${name(group.run)} · ${group.id} · ${mean}`),
        el("pre", { className: "prompt" }, group.prompt), group.answer === undefined ? null : el("div", { className: "note" }, `answer: ${group.answer}`),
        group.tree ? el("details", { className: "branches" }, el("summary", {}, "tree of responses"), tree(group.tree, group.rows)) : null,
        el("div", { className: "cards" }, cards));
    }));
  }
  section("samples", "Samples", el("p", { className: "note" },
    "The first prompts of a few iterations of each run. Responses that the sampling filter left out are grey."
    + " Green: above 0. Red: below. Underlined: not selected by tokens=. Grey text: observed."),
    el("div", { className: "controls" }, run, iteration, only, column, search, count), list, more);
  draw();
}

function alarms() {
  const rows = data.runs.flatMap((run) => run.alarms.map((alarm) => {
    const cells = [data.groups[run.group].name, run.seed, ...alarm];
    return { node: el("tr", {}, cells.map((x) => el("td", {}, x ?? ""))), keys: cells };
  }));
  const ended = data.runs.filter((run) => run.exit !== "finished").map((run) => el("li", {}, `${run.path}: ${run.exit}`));
  section("alarms", "Alarms", ended.length ? el("ul", {}, ended) : null,
    rows.length ? table(["member", "seed", "iteration", "alarm", "value"], rows, "alarms-table")
      : el("p", { className: "note" }, "No alarm of the monitor."));
}

function runs() {
  const all = new Map();
  data.runs.forEach((run) => run.versions.forEach(([name, value]) => all.set(name, (all.get(name) || new Set()).add(value))));
  const equal = [...all].filter(([name, values]) => values.size === 1 && data.runs.every((run) => run.versions.some(([n]) => n === name)));
  const common = new Set(equal.map(([name]) => name));
  const node = section("runs", "Commands and versions", el("p", { className: "note" }, "The same in all runs: ", equal.map(([name, [value]]) => `${name} ${value}`).join(", ") || "nothing"));
  node.append(...data.runs.map((run) => {
    const own = run.versions.filter(([name]) => !common.has(name)).map(([name, value]) => `${name} ${value}`).join(", ");
    const command = run.command ? el("pre", {}, run.command) : null;
    return el("details", {}, el("summary", {}, `${data.groups[run.group].name} · seed ${run.seed} · ${run.label} · ${run.exit}`),
      command, el("div", { className: "note" }, run.path), own ? el("div", { className: "note" }, own) : null);
  }));
}

about();
members();
differences();
curves();
samples();
diagnostics();
alarms();
runs();
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
document.documentElement.dataset.ready = "true";
