// Shows the events of `tollgate serve`. Keys and all other text of the server are untrusted: they become text nodes only.

const RATES_SPAN = 120_000; // milliseconds that the sparklines of the two rates span
const MAX_HISTORY = 60; // samples that the sparkline of a row spans
const STALE_AFTER = 15_000; // milliseconds without an event after which the page connects again
const RETRY_AFTER = 3_000; // milliseconds until the page connects again if the browser gives up
const LONGEST = 100_000; // numbers from this one on are shortened, as `tollgate watch` does
const UNITS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const NONE = "–";
/** Control characters, and characters that are invisible or reorder others. */
const UNSEEN = /[\p{Cc}\p{Cs}\p{Default_Ignorable_Code_Point}\u2028\u2029\ufff9-\ufffb]/gu;

/** Escapes characters that a reader cannot see: `\u0001`. */
export function plain(text) {
  const escaped = (char) => {
    const digits = char.codePointAt(0).toString(16).padStart(4, "0");
    return digits.length > 4 ? `\\u{${digits}}` : `\\u${digits}`;
  };
  return text == null || text === "" ? NONE : String(text).replace(UNSEEN, escaped);
}

/** Formats a number so that it is short: `947.0`, `5.0M`. */
export function number(value, digits = 1) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  const unit = size >= LONGEST && UNITS.find(([from]) => size >= from);
  // Truncates, so that 999 999 is not 1000.0k.
  return unit ? `${(Math.trunc((value / unit[0]) * 10) / 10).toFixed(1)}${unit[1]}` : value.toFixed(digits);
}

export const whole = (value) => number(value, 0);
export const counted = (value, noun) => `${whole(value)} ${noun}${value === 1 ? "" : "s"}`;

export function time(timestamp) {
  const date = new Date(timestamp ?? NaN);
  return Number.isNaN(date.getTime()) ? NONE : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Places samples, pairs of a position from 0 to 1 and a value, in a box of 100 by 20. */
export function points(samples) {
  const known = samples.filter(([, value]) => Number.isFinite(value));
  const highest = Math.max(0, ...known.map(([, value]) => value));
  const height = (value) => (highest > 0 ? 19 - (Math.max(value, 0) / highest) * 18 : 19);
  return known.map(([at, value]) => `${(at * 100).toFixed(1)},${height(value).toFixed(1)}`).join(" ");
}

/** Samples of a row's history; the newest is at the right. */
export function historySamples(history) {
  const values = list(history).slice(-MAX_HISTORY);
  return values.map((value, place) => [(MAX_HISTORY - values.length + place) / (MAX_HISTORY - 1), value]);
}

/** Adds a read to the rates, and drops reads that are older than the span. Starts again if the server's clock went back. */
export function withRead(rates, at, totals) {
  if (!Number.isFinite(at)) return rates;
  const before = rates.some((rate) => rate.at > at) ? [] : rates.filter((rate) => rate.at < at && at - rate.at <= RATES_SPAN);
  return [...before, { at, granted: totals?.granted_per_s, denied: totals?.denied_per_s }];
}

/** The key, with the name of the limit if the bucket belongs to a further limit. */
export const rowName = (row) => plain(row.key) + (row.limit ? ` limit=${plain(row.limit)}` : "");

const list = (value) => (Array.isArray(value) ? value : []);
const byId = (id) => document.getElementById(id);

/** Sets a text. Leaves an equal text alone, so that a reader's selection stays. */
function setText(node, text, className = node.className) {
  if (node.textContent !== text) node.textContent = text;
  if (node.className !== className) node.className = className;
}

function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const drawLine = (svg, samples) => setAttribute(svg.firstElementChild, "points", points(samples));

/** The elements that each parent shows, by id. */
const shownElements = new WeakMap();

/** Shows the items in order. Reuses the element of an item, and moves only elements that are out of place. */
function fill(parent, items, idOf, make) {
  const before = shownElements.get(parent) ?? new Map();
  const now = new Map();
  for (const item of items) {
    const id = JSON.stringify(idOf(item));
    const made = now.get(id) ?? before.get(id) ?? make();
    made.update(item);
    now.set(id, made);
  }
  before.forEach((made, id) => now.has(id) || made.node.remove());
  let place = parent.firstElementChild;
  for (const { node } of now.values()) {
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  shownElements.set(parent, now);
}

function keyRow() {
  const [key, quota, tokens, granted] = ["bdi", "td", "span", "span"].map((name) => element(name));
  const [deniedRate, denied] = ["td", "td"].map((name) => element(name, { className: "number" }));
  const meter = element("meter", { min: 0 });
  const line = byId("granted-line").cloneNode(true);
  line.removeAttribute("id");
  const node = element("tr", {}, element("th", { scope: "row" }, key), quota,
    element("td", { className: "number" }, meter, tokens), element("td", { className: "number" }, line, granted), deniedRate, denied);
  const update = (row) => {
    const { available, capacity } = row;
    const hasLevel = Number.isFinite(available) && Number.isFinite(capacity);
    const scarce = capacity * 0.2;
    setText(key, rowName(row));
    setText(quota, plain(row.quota));
    const scarcity = available < 1 ? "bad" : available < scarce ? "warn" : "";
    setText(tokens, hasLevel ? `${whole(available)}/${whole(capacity)}` : NONE, hasLevel ? scarcity : "");
    meter.hidden = !hasLevel || capacity <= 0;
    if (!meter.hidden) {
      const level = { max: capacity, high: capacity, optimum: capacity, low: scarce, value: Math.max(available, 0) };
      Object.entries(level).forEach(([name, value]) => setAttribute(meter, name, value));
      setAttribute(meter, "aria-label", `available tokens of ${rowName(row)}`);
    }
    drawLine(line, historySamples(row.history));
    setText(granted, number(row.granted_per_s));
    setText(deniedRate, number(row.denied_per_s));
    setText(denied, whole(row.denied));
  };
  return { node, update };
}

/** Makes rows of text. A cell is a text, or a text and a class. */
const textRow = (cellsOf) => () => {
  const node = element("tr");
  const update = (item) => cellsOf(item).forEach((cell, place) => {
    const [text, className = ""] = [cell].flat();
    if (!node.children[place]) node.append(place ? element("td") : element("th", { scope: "row" }));
    setText(node.children[place], text, className);
  });
  return { node, update };
};

const modeCell = (mode) => [plain(mode), mode && mode !== "enforce" ? "warn" : ""];
const countCell = (count, className = "") => [whole(count), count > 0 ? `number ${className}` : "number"];
const until = (timestamp, at) => (Date.parse(timestamp) <= Date.parse(at) ? `expired ${time(timestamp)}` : time(timestamp));

const KEY_COLUMNS = ["key", "quota", "tokens", "granted/s", "denied/s", "denied"];
const KEY_TABLE = { columns: KEY_COLUMNS, idOf: (row) => [row.key, row.limit], make: keyRow };
const NUMBER_COLUMNS = ["tokens", "granted/s", "denied/s", "granted", "denied", "shadow", "failed"];
const NO_BUCKETS = "No buckets. Create one: tollgate create KEY --capacity 2 --per 1h";
const TABS = ["hottest", "most_denied", "emptiest"];
const TABLES = {
  hottest: { ...KEY_TABLE, caption: "Buckets with the most tokens granted per second", emptyText: () => NO_BUCKETS },
  most_denied: {
    ...KEY_TABLE, caption: "Keys with the most requests denied in the last 24 hours",
    emptyText: (board) => (board.note ? plain(board.note)
      : "No denied requests in the last 24 hours. To see the limits of a key: tollgate explain KEY"),
  },
  emptiest: { ...KEY_TABLE, caption: "Buckets with the smallest part of their capacity available", emptyText: () => NO_BUCKETS },
  rules: {
    columns: ["rule", "domain", "granted", "denied", "shadow", "failed"], idOf: (rule) => [rule.domain, rule.rule],
    caption: "Requests since the server started. Shadow: requests that only shadow mode let pass.",
    make: textRow((rule) => [plain(rule.rule), plain(rule.domain), countCell(rule.granted), countCell(rule.denied),
      countCell(rule.shadow, "warn"), countCell(rule.failed, "bad")]),
    emptyText: (board) => (board.config?.files === 0 ? "No configuration files. Name one: tollgate serve --config FILE"
      : "No rules. Add a rate_limit to a configuration file; the server reloads the file."),
  },
  plans: {
    columns: ["plan", "limits", "mode"], caption: "Limits of all keys that follow a plan", idOf: (plan) => plan.name,
    make: textRow((plan) => [plain(plan.name), plain(plan.limits), modeCell(plan.mode)]),
    emptyText: () => "No plans. Create one: tollgate plan set free '10/s burst 20'",
  },
  modes: {
    columns: ["applies to", "mode", "until", "reason"], idOf: (mode) => [mode.scope, mode.name, mode.limit],
    caption: "A key's mode precedes its plan's mode, and a plan's mode precedes the mode of all keys.",
    make: textRow((mode) => [mode.scope === "all" ? "all keys" : `${plain(mode.scope)} ${plain(mode.name)}${mode.limit == null ? "" : ` limit=${plain(mode.limit)}`}`, modeCell(mode.mode),
      mode.until == null ? "you change it" : until(mode.until, state.board.at), plain(mode.reason)]),
    emptyText: () => "No modes are set in the database. To try limits without denials: tollgate mode shadow --all --for 2h",
  },
};

/** What the page shows: the last board, the rates since the page opened, the tab, and the connection to the server. */
const state = { board: null, rates: [], tab: TABS[0], version: null, source: null, timer: null, paused: false };

function makeTable(id) {
  const { caption, columns } = TABLES[id];
  const headers = columns.map((title) =>
    element("th", { scope: "col", textContent: title, className: NUMBER_COLUMNS.includes(title) ? "number" : "" }));
  const table = element("table", { hidden: true }, element("caption", { textContent: caption }),
    element("thead", {}, element("tr", {}, ...headers)), element("tbody"));
  byId(id).append(table, element("p", { className: "empty", textContent: "Waiting for the first read." }));
}

/** Fills a table, or shows what to do if there are no items. */
function showTable(id, items, emptyText = TABLES[id].emptyText(state.board)) {
  const [table, empty] = byId(id).children;
  fill(table.querySelector("tbody"), items, TABLES[id].idOf, TABLES[id].make);
  table.hidden = items.length === 0;
  empty.hidden = items.length > 0;
  setText(empty, emptyText);
}

function showHeader(board) {
  const { database, config, totals } = board;
  state.version ??= board.version;
  setText(byId("version"), plain(board.version));
  setText(byId("database"), plain(database?.name));
  setText(byId("health"), ...({ true: ["answers", "good"], false: ["does not answer", "bad"] }[database?.answers] ?? [NONE, ""]));
  setText(byId("mode"), ...modeCell(board.mode));
  setText(byId("fallbacks"), whole(database?.fallbacks), database?.fallbacks > 0 ? "warn" : "");
  setText(byId("read-at"), time(board.at));
  setText(byId("buckets"), `${totals?.all === false ? "the first " : ""}${counted(totals?.buckets, "bucket")}`);
  const notes = [
    database?.error && [`Database: ${plain(database.error)}`, "bad"],
    config?.error && [`Configuration: ${plain(config.error)}`, "bad"],
    board.unreadable > 0 && [`${counted(board.unreadable, "row")} cannot be read. Find them: tollgate doctor`, "warn"],
    board.note && [plain(board.note), "warn"],
    board.version && board.version !== state.version && ["The version of the server changed. Reload this page.", "warn"],
  ];
  const makeNote = (node = element("li")) => ({ node, update: (item) => setText(node, ...item) });
  fill(byId("notes"), notes.filter(Boolean), ([text]) => text, makeNote);
  const loaded = `${counted(config?.files, "file")}, loaded ${time(config?.loaded_at)}`;
  setText(byId("config"), config?.error
    ? `Invalid: ${plain(config.error)}. Correct the file; the server reloads it. Still in effect: ${loaded}` : loaded,
    config?.error ? "bad" : "");
}

function showRates(board) {
  for (const name of ["granted", "denied"]) {
    const samples = state.rates.map((rate) => [1 - (state.rates.at(-1).at - rate.at) / RATES_SPAN, rate[name]]);
    const known = samples.map(([, value]) => value).filter(Number.isFinite);
    setText(byId(name), number(board.totals?.[`${name}_per_s`]));
    setText(byId(`${name}-highest`), number(Math.max(...known)));
    drawLine(byId(`${name}-line`), samples);
  }
}

function showKeys(board) {
  const typed = byId("filter").value;
  const rows = list(board[state.tab]);
  const found = rows.filter((row) => rowName(row).toLowerCase().includes(typed.toLowerCase()));
  const isFiltered = typed && rows.length > 0;
  showTable(state.tab, found,
    isFiltered ? `No key of this list contains '${plain(typed)}'. To show all, press Esc in the filter.` : undefined);
  setText(byId("shown"), isFiltered ? `${found.length} of ${counted(rows.length, "row")}` : "");
}

function show() {
  if (!state.board) return;
  [showHeader, showRates, showKeys].forEach((part) => part(state.board));
  ["rules", "plans", "modes"].forEach((id) => showTable(id, list(state.board[id])));
}

function showConnection(name) {
  byId("state").dataset.connection = name;
  setText(byId("connection"), name[0].toUpperCase() + name.slice(1));
}

const showProblem = (message) => setText(byId("problem"), message == null ? "" : `No newer read: ${plain(message)}`);

function disconnect() {
  state.source?.close();
  clearTimeout(state.timer);
}

function reconnectAfter(delay) {
  clearTimeout(state.timer);
  state.timer = setTimeout(() => {
    showConnection("reconnecting");
    connect();
  }, delay);
}

function receive(event, take) {
  showConnection("live");
  reconnectAfter(STALE_AFTER);
  try {
    take(JSON.parse(event.data));
  } catch (error) {
    showProblem(`this page cannot show the event: ${error.message}`);
  }
}

function connect() {
  disconnect();
  reconnectAfter(STALE_AFTER);
  const source = new EventSource("events");
  state.source = source;
  source.addEventListener("board", (event) => receive(event, (board) => {
    state.board = board;
    state.rates = withRead(state.rates, Date.parse(board.at), board.totals);
    show();
    showProblem(null);
  }));
  source.addEventListener("problem", (event) => receive(event, (problem) => showProblem(problem.message ?? "unknown error")));
  source.addEventListener("error", () => {
    showConnection("reconnecting");
    // The browser gives up if the response is not a stream of events.
    if (source.readyState === EventSource.CLOSED) reconnectAfter(RETRY_AFTER);
  });
}

/** Pauses or resumes. A paused page has no connection, so that the server need not read for it. */
function togglePause() {
  state.paused = !state.paused;
  setAttribute(byId("pause"), "aria-pressed", state.paused);
  showConnection(state.paused ? "paused" : "connecting");
  if (state.paused) disconnect();
  else connect();
}

function choose(tab) {
  state.tab = tab;
  for (const id of TABS) {
    byId(id).hidden = id !== tab;
    setAttribute(byId(`${id}-tab`), "aria-selected", id === tab);
    byId(`${id}-tab`).tabIndex = id === tab ? 0 : -1;
  }
  show();
}

const hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;

function onTabKey(event) {
  const place = TABS.indexOf(state.tab);
  const next = { ArrowLeft: place - 1, ArrowRight: (place + 1) % TABS.length, Home: 0, End: -1 }[event.key];
  if (next === undefined || hasModifier(event)) return;
  event.preventDefault();
  choose(TABS.at(next));
  byId(`${state.tab}-tab`).focus();
}

function onPageKey(event) {
  if (event.repeat || hasModifier(event) || event.target.closest("input")) return;
  if (event.key === "p") togglePause();
  if (event.key === "/") {
    event.preventDefault();
    byId("filter").select();
    byId("filter").focus();
  }
}

function onFilterKey(event) {
  if (event.key === "Escape") byId("filter").value = "";
  show();
}

function start() {
  Object.keys(TABLES).forEach(makeTable);
  for (const id of TABS) {
    byId(`${id}-tab`).addEventListener("click", () => choose(id));
    byId(`${id}-tab`).addEventListener("keydown", onTabKey);
  }
  byId("filter").addEventListener("input", show);
  byId("filter").addEventListener("keyup", onFilterKey);
  byId("pause").addEventListener("click", togglePause);
  document.addEventListener("keydown", onPageKey);
  choose(TABS[0]);
  connect();
}

if (globalThis.document) start();
