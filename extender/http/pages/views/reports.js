// The reports of /v1/reports as tables, for a span of time and a namespace.

import { ask } from "../api.js";
import { $, el, portion, setText } from "../dom.js";
import { byName, count, duration, utc } from "../units.js";
import { sinceOf, SPAN } from "./spans.js";

const LIMIT = 10000;
const STEP = 100; // rows
const GANGS = new Set(["gang", "preemptor", "bypassed_by"]);
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;
const SECONDS = /(^|_)(seconds|longest|waited)($|_)/;

export class Reports {
  /** @param on `link(kind, name)` and `event(position)`: the properties of links; `report(name)`: another was chosen. */
  constructor(on) {
    this.on = on;
    this.catalogue = null;
    this.asked = "";
    this.found = null;
    this.shown = STEP;
    this.sort = { column: "", down: false };
    $("report").addEventListener("change", () => on.report($("report").value));
    $("reports-again").addEventListener("click", () => this.read(this.asked));
  }

  /** Show the report of the address. */
  async show({ report, span, namespace }) {
    try {
      this.catalogue ??= (await ask("reports")).body;
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      setText($("report-text"), problem.message);
      return;
    }
    const names = this.catalogue.map((line) => line.name);
    if ($("report").options.length === 0) $("report").append(...names.map((name) => el("option", { value: name, text: name })));
    const name = names.includes(report) ? report : names[0];
    $("report").value = name;
    const asked = [name, span || SPAN, namespace].join("\n");
    if (asked === this.asked) return;
    this.asked = asked;
    this.sort = { column: "", down: false };
    await this.read(asked);
  }

  async read(asked) {
    const [name, span, namespace] = asked.split("\n");
    setText($("report-text"), "reading …");
    try {
      const since = span === "all" ? "1970-01-01T00:00:00Z" : sinceOf(span);
      const { body } = await ask(`reports/${name}`, { since, namespace, limit: LIMIT });
      if (asked !== this.asked) return;
      this.found = body;
      this.shown = STEP;
      this.draw();
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      this.found = null;
      if (asked !== this.asked) return;
      $("report-table").replaceChildren();
      $("report-more").replaceChildren();
      setText($("report-text"), problem.message);
    }
  }

  draw() {
    const { found } = this;
    const line = this.catalogue.find((one) => one.name === found.report);
    const rows = this.sorted(found.rows);
    setText($("report-text"), `${found.description} ${count(rows.length, "row")}${found.more ? ", the first of more (choose a shorter span or a namespace)" : ""}, from ${utc(found.since)} to ${utc(found.until)}.`);
    setText($("report-limits"), found.limitations);
    const columns = Object.keys(line.columns).filter((name) => !name.endsWith("_uid"));
    const numeric = new Set(columns.filter((name) => rows.some((row) => typeof row[name] === "number") && name !== "position"));
    const head = el("tr", {}, ...columns.map((name) => this.heading(name, line.columns[name], numeric.has(name))));
    const body = rows.slice(0, this.shown).map((row) => el("tr", {}, ...columns.map((name) => el("td", { class: numeric.has(name) ? "number" : "" }, this.cell(name, row[name], row)))));
    $("report-table").replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
    if (rows.length) portion($("report-more"), Math.min(this.shown, rows.length), rows.length, STEP, () => { this.shown += STEP; this.draw(); });
    else $("report-more").replaceChildren("Nothing of this kind in this span of time.");
  }

  heading(name, meaning, numeric) {
    const { column, down } = this.sort;
    const order = column !== name ? "none" : down ? "descending" : "ascending";
    const button = el("button", { type: "button", class: "link", text: name.replaceAll("_", " "), title: `${meaning}; click to sort`, onclick: () => {
      this.sort = { column: name, down: column === name ? !down : numeric };
      this.draw();
      $("report-table").querySelector(`[data-column="${name}"] button`).focus();
    } });
    return el("th", { scope: "col", "aria-sort": order, "data-column": name, class: numeric ? "number" : "" }, button, order === "none" ? "" : down ? " ▾" : " ▴");
  }

  sorted(rows) {
    const { column, down } = this.sort;
    if (!column) return rows;
    const order = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other : byName(String(one ?? ""), String(other ?? "")));
    return [...rows].sort((one, other) => (down ? -1 : 1) * order(one[column], other[column]));
  }

  cell(name, value, row) {
    if (value === null || value === "") return "–";
    if (GANGS.has(name)) return el("a", { ...this.on.link("Gang", value), text: value });
    if (name === "victim") return el("a", { ...this.on.link(row.victim_kind ?? "Gang", value), text: value });
    if (name === "node") return el("a", { ...this.on.link("Node", value), text: value });
    if (name === "position") return el("a", { ...this.on.event(value), text: String(value) });
    if (typeof value === "number" && SECONDS.test(name)) return duration(value);
    if (typeof value === "number") return String(Math.round(value * 1000) / 1000);
    return TIME.test(value) ? utc(value) : String(value);
  }
}
