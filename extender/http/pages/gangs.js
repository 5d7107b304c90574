// The list of gangs, waiting ones first.

import { $, el, setText } from "./dom.js";
import { byName, count } from "./units.js";

const ROWS_MAX = 200;

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

export class Gangs {
  /** @param choose called with the name of a gang. */
  constructor(choose) {
    this.choose = choose;
    this.gangs = [];
    this.chosen = "";
    $("gang-filter").addEventListener("input", () => this.draw());
  }

  show(gangs, chosen) {
    this.gangs = [...gangs].sort(
      (a, b) => RUNNING.has(a.state) - RUNNING.has(b.state) || b.priority - a.priority || byName(a.gang, b.gang),
    );
    this.chosen = chosen;
    this.draw();
  }

  draw() {
    const words = $("gang-filter").value.trim().toLowerCase();
    const found = this.gangs.filter((gang) => gang.gang.toLowerCase().includes(words) || gang.state.startsWith(words));
    const waiting = this.gangs.filter((gang) => !RUNNING.has(gang.state)).length;
    setText($("gang-count"), `${count(this.gangs.length, "gang")}, ${waiting} pending`);
    setText($("gang-more"), this.rest(found.length));
    d3.select("#gang-list")
      .selectAll("li")
      .data(found.slice(0, ROWS_MAX), (gang) => gang.uid)
      .join((enter) => enter.append("li").each((gang, index, list) => list[index].append(this.row())))
      .order()
      .each((gang, index, list) => this.fill(list[index], gang));
  }

  rest(found) {
    if (this.gangs.length === 0) return "No gang at this time.";
    if (found === 0) return "No gang matches the filter.";
    return found > ROWS_MAX ? `… and ${found - ROWS_MAX} more; filter to find them` : "";
  }

  row() {
    const name = el("span", { class: "name" });
    const line = el("button", { type: "button", class: "gang" }, name, el("span", { class: "state" }), el("span", { class: "numbers" }));
    line.append(el("span", { class: "reason quiet" }));
    return line;
  }

  fill(item, gang) {
    const line = item.firstChild;
    const [name, state, numbers, reason] = line.children;
    line.onclick = () => this.choose(gang.gang);
    line.setAttribute("aria-pressed", String(gang.gang === this.chosen));
    setText(name, gang.gang);
    name.title = gang.gang;
    if (state.textContent !== gang.state) state.replaceChildren(badge(gang.state));
    setText(numbers, `${gang.bound} bound, ${gang.reserved} reserved, priority ${gang.priority}`);
    setText(reason, gang.reasons[0] ?? "");
    reason.title = gang.reasons.join("\n");
  }
}
