// The list of gangs, waiting ones first.

import { $, el, portion, setText } from "./dom.js";
import { age, byName, count } from "./units.js";

const STEP = 200; // rows

export const STATES = {
  observed: "seen; no decision yet",
  waiting: "members or groups are missing",
  unschedulable: "complete, but there is no capacity",
  preempting: "victims are being evicted for it",
  invalid: "breaks a rule, so it is not scheduled",
  admitted: "its minimum is reserved",
  scheduled: "its minimum is bound",
  degraded: "its minimum was bound; members of it were lost",
  preempted: "its minimum was bound; all members are gone, the last one was preempted",
  suspended: "its minimum was bound; its workload is suspended",
  completed: "its members have succeeded",
};
export const RUNNING = new Set(["admitted", "scheduled", "completed"]);

export const badge = (state) => el("span", { class: `badge ${STATES[state] ? state : ""}`, text: state, title: STATES[state] });

/** Since when a gang waits, is degraded or runs. @param now of the moment that is shown, in milliseconds. */
export function since(gang, now) {
  if (gang.last_loss && ["degraded", "preempted"].includes(gang.state)) return `${gang.state} for ${age(gang.last_loss.time, now)}`;
  if (RUNNING.has(gang.state) || gang.state === "suspended") return `admitted ${age(gang.admitted, now)} ago`;
  if (gang.admitted) return `first seen ${age(gang.observed, now)} ago, last admitted ${age(gang.admitted, now)} ago`;
  return `waits for ${age(gang.observed, now)}`;
}

export class Gangs {
  /**
   * @param on `link(name)`: the properties of a link to a gang; `filter(namespace, state)` when a filter was chosen.
   */
  constructor(on) {
    this.on = on;
    this.gangs = [];
    this.chosen = "";
    this.most = STEP;
    this.filters = { namespace: "", state: "" };
    $("gang-filter").addEventListener("input", () => { this.most = STEP; this.draw(); });
    for (const name of ["namespace", "gang-state"]) {
      $(name).addEventListener("change", () => { this.most = STEP; on.filter($("namespace").value, $("gang-state").value); });
    }
  }

  /** @param filters `namespace` and `state`; empty: all. @param now of the moment that is shown, in milliseconds. */
  show(gangs, chosen, filters, now) {
    this.gangs = [...gangs].sort(
      (a, b) => RUNNING.has(a.state) - RUNNING.has(b.state) || b.priority - a.priority || byName(a.gang, b.gang),
    );
    this.chosen = chosen;
    this.filters = filters;
    this.now = now;
    this.choices($("namespace"), "all namespaces", gangs.map((gang) => gang.gang.split("/")[0]), filters.namespace);
    this.choices($("gang-state"), "every state", gangs.map((gang) => gang.state), filters.state);
    this.draw();
  }

  /** Offer the values that there are; the one that is chosen stays, also if it is gone. */
  choices(select, all, values, chosen) {
    const names = [...new Set([...values, chosen].filter(Boolean))].sort(byName);
    if ([...select.options].slice(1).map((option) => option.value).join("\n") !== names.join("\n") || !select.options.length) {
      select.replaceChildren(el("option", { value: "", text: all }), ...names.map((name) => el("option", { value: name, text: name })));
    }
    select.value = chosen;
  }

  draw() {
    const words = $("gang-filter").value.trim().toLowerCase();
    const { namespace, state } = this.filters;
    const found = this.gangs.filter((gang) => (!namespace || gang.gang.startsWith(`${namespace}/`)) && (!state || gang.state === state)
      && (gang.gang.toLowerCase().includes(words) || gang.state.startsWith(words)));
    const waiting = this.gangs.filter((gang) => !RUNNING.has(gang.state)).length;
    setText($("gang-count"), `${count(this.gangs.length, "gang")}, ${waiting} pending`);
    if (found.length) portion($("gang-more"), Math.min(this.most, found.length), found.length, STEP, () => { this.most += STEP; this.draw(); });
    else $("gang-more").replaceChildren(this.gangs.length ? "No gang matches the filters." : "No gang at this time.");
    d3.select("#gang-list")
      .selectAll("li")
      .data(found.slice(0, this.most), (gang) => gang.uid)
      .join((enter) => enter.append("li").each((gang, index, list) => list[index].append(this.row(gang))))
      .order()
      .each((gang, index, list) => this.fill(list[index], gang));
  }

  row(gang) {
    const name = el("span", { class: "name" });
    const line = el("a", { ...this.on.link(gang.gang), class: "gang" }, name, el("span", { class: "state" }), el("span", { class: "numbers" }));
    line.append(el("span", { class: "reason quiet" }));
    return line;
  }

  fill(item, gang) {
    const line = item.firstChild;
    const [name, state, numbers, reason] = line.children;
    if (gang.gang === this.chosen) line.setAttribute("aria-current", "true");
    else line.removeAttribute("aria-current");
    setText(name, gang.gang);
    name.title = gang.gang;
    if (state.textContent !== gang.state) state.replaceChildren(badge(gang.state));
    setText(numbers, `${since(gang, this.now)}; ${gang.bound} bound, ${gang.reserved} reserved, priority ${gang.priority}`);
    setText(reason, gang.reasons[0] ?? "");
    reason.title = gang.reasons.join("\n");
  }
}
