// The strip above everything: how many gangs there are in each state, as filters, and what waited and was used over 24 hours.

import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { $, el, refill, setText } from "./dom.js";
import { badge, RUNNING, STATES } from "./gangs.js";
import { amountsOf, sumOf } from "./model.js";
import { amount, count, unit } from "./units.js";

const DAY_MS = 86400e3;
const AGAIN_MS = 5 * 60e3; // one step of the charts is a quarter of an hour
const ROWS = 10000;

export class Strip {
  /** @param on `state(name)`: the filter that was chosen, empty: none; `moment(time)`. */
  constructor(on) {
    this.on = on;
    this.rows = null; // of the report; null: no answer yet
    this.asked = "";
    this.readMs = -Infinity;
    this.pending = new Chart("Pending gangs", on);
    this.used = new Chart("Used", on);
    $("charts").append(this.pending.box, this.used.box);
    $("resource").addEventListener("change", () => this.drawCharts());
  }

  /**
   * @param gangs of all states, and refused workloads. @param filters `namespace` and `state`; empty: all. @param pictured of the nodes.
   * @param until time that is shown; empty: now.
   */
  show(gangs, filters, pictured, until) {
    const { namespace, state } = filters;
    const visible = gangs.filter((gang) => !namespace || gang.gang.startsWith(`${namespace}/`));
    const numbers = d3.rollup(visible, (list) => list.length, (gang) => gang.state);
    const names = Object.keys(STATES).filter((name) => numbers.has(name) || name === state).sort((a, b) => RUNNING.has(a) - RUNNING.has(b));
    const chip = (name, number, ...words) =>
      el("li", {}, el("button", { type: "button", class: "chip", "aria-pressed": String(name === state), title: STATES[name] ?? "gangs of every state",
        onclick: () => this.on.state(name === state ? "" : name) }, ...words, " ", el("strong", { text: count(number, "", "").trim() })));
    refill($("states"), chip("", visible.filter((gang) => !gang.about).length, "all gangs"), ...names.map((name) => chip(name, numbers.get(name) ?? 0, badge(name))));
    this.pictured = pictured;
    this.read(namespace, until);
    this.drawCharts();
  }

  /** Read the report where another one is shown, or the last answer is old. */
  async read(namespace, until) {
    const asked = `${namespace}\n${until}`;
    if (asked === this.asked && performance.now() - this.readMs < AGAIN_MS) return;
    if (asked !== this.asked) this.rows = null;
    [this.asked, this.readMs] = [asked, performance.now()];
    const span = until ? { since: new Date(Date.parse(until) - DAY_MS).toISOString(), until } : {};
    let problem = "";
    try {
      const { body } = await ask("reports/usage", { ...span, namespace, limit: ROWS });
      if (asked !== this.asked) return;
      const nothing = [body.since, body.until].map((at) => ({ at, state: "pending", resource: "gangs", amount: 0 }));
      this.rows = body.rows.length ? body.rows : nothing;
    } catch (error) {
      if (error.status === undefined) throw error;
      problem = error.status === 404 ? "" : `No charts: ${error.message}`; // 404: a namespace without gangs in the log
      this.asked = ""; // asked again with the next state
    }
    setText($("charts-fault"), problem);
    this.drawCharts();
  }

  drawCharts() {
    const rows = this.rows ?? [];
    const resource = $("resource").value;
    const times = d3.group(rows, (row) => row.at);
    const of = (list, state, name) => list.find((row) => row.state === state && row.resource === name)?.amount ?? 0;
    const points = (states, name) => [...times].map(([at, list]) => ({ at, parts: states.map((state) => ({ name: state, amount: of(list, state, name) })) }));
    this.pending.show("Pending gangs", points(["pending"], "gangs"), null, (value) => String(value));
    const counted = resource === "cpu" || resource.includes("/"); // the report has no others
    this.used.box.hidden = !counted;
    if (!counted) return;
    const scale = resource === "cpu" ? 1000 : 1;
    const whole = sumOf((this.pictured?.nodes ?? []).map((node) => amountsOf(node, resource))).capacity;
    this.used.show(`Used ${resource}${resource === "cpu" ? ` (${unit(resource)})` : ""}`, points(["bound", "reserved"], resource), whole === null ? null : whole / scale, (value) => amount(resource, value * scale));
  }
}
