// The table of gangs, waiting ones first: with columns to choose and to sort by, and the reasons for which gangs wait, grouped.

import { $, el, portion, refill, setName, setText } from "./dom.js";
import { short } from "./names.js";
import { age, byName, count } from "./units.js";

const STEP = 200; // rows
const REASONS = 3; // groups of reasons that are shown at once

export const STATES = {
  observed: "seen; no decision yet",
  waiting: "members or groups are missing",
  unschedulable: "complete, but there is no capacity",
  preempting: "victims are being evicted for it",
  invalid: "breaks a rule, so it is not scheduled",
  refused: "a workload of which no gang can be made; its pods wait",
  degraded: "its minimum was bound; members of it were lost",
  preempted: "its minimum was bound; all members are gone, the last one was preempted",
  suspended: "its workload is suspended, so it does not wait",
  admitted: "its minimum is reserved",
  scheduled: "its minimum is bound",
  completed: "its members have succeeded",
};
export const RUNNING = new Set(["admitted", "scheduled", "completed"]);
const QUIET = new Set([...RUNNING, "suspended"]); // their reason is not one to wait for

export const badge = (state) => el("span", { class: `badge ${STATES[state] ? state : ""}`, text: state, title: STATES[state] });

/** Since when a gang waits, is degraded or runs. @param now of the moment that is shown, in milliseconds. */
export function since(gang, now) {
  if (gang.last_loss && ["degraded", "preempted"].includes(gang.state)) return `${gang.state} for ${age(gang.last_loss.time, now)}`;
  if (gang.state === "refused") return `refused ${age(gang.observed, now)} ago`;
  if (QUIET.has(gang.state) && gang.admitted) return `admitted ${age(gang.admitted, now)} ago`;
  if (QUIET.has(gang.state)) return `first seen ${age(gang.observed, now)} ago`;
  const waits = `waits for ${age(gang.waiting_since || gang.observed, now)}`;
  return gang.admitted ? `${waits}, last admitted ${age(gang.admitted, now)} ago` : waits;
}

/** The time from which `since` counts. */
function from(gang) {
  if (gang.last_loss && ["degraded", "preempted"].includes(gang.state)) return gang.last_loss.time;
  return (QUIET.has(gang.state) && gang.admitted) || gang.waiting_since || gang.observed;
}

/** A workload that is refused, as a row of the table; `about` is its name with its kind. */
export const refusedRow = (tree) => ({
  gang: tree.workload, about: `${tree.kind}/${tree.workload}`, uid: `${tree.kind} ${tree.uid}`, kind: tree.kind, workload: `${tree.kind}/${tree.workload}`,
  state: "refused", reasons: [tree.message.replace(`${tree.kind}/${tree.workload}: `, "")], observed: tree.time, plan: "",
});

/** The first reason without what its row has already, the kind and name of the group, and with the last part of a key. */
const brief = (gang) => (gang.reasons[0] ?? "")
  .replace(/^[A-Z][A-Za-z]+ [^\s/]+\/\S+ /, "")
  .replace(/ of PodGroup [^\s:]+/, "")
  .replaceAll(/( in one | label )[a-z0-9.-]+\//g, "$1");

/** What a gang waits for, without how much each node lacks: the same for all that wait for the same. */
export function need(gang) {
  return QUIET.has(gang.state) ? "" : brief(gang).split(/; |: /)[0].replace(/^needs /, "").replace(/\.$/, "");
}

const text = (value) => (gang) => ({ text: value(gang) });
const amount = (name) => text((gang) => String(gang[name] ?? "")); // a refused workload has none
/** The columns: heading, what the heading means, the value to sort by, whether sorting begins with the largest, and the cell. */
export const COLUMNS = {
  gang: { title: "gang", about: "namespace and name of the root group", value: (gang) => gang.gang },
  state: { title: "state", about: "of the gang now", value: (gang) => Object.keys(STATES).indexOf(gang.state) },
  age: { title: "for", about: "how long it has waited; of one that runs since its admission, of one with losses since the last", value: (gang) => -Date.parse(from(gang)), down: true,
    cell: (gang, now) => ({ text: age(from(gang), now), title: since(gang, now) }) },
  priority: { title: "prio.", about: "priority", value: (gang) => gang.priority ?? -Infinity, down: true, number: true, cell: amount("priority") },
  bound: { title: "bound", about: "members that are bound", value: (gang) => gang.bound ?? -1, down: true, number: true, cell: amount("bound") },
  reserved: { title: "res.", about: "members with a reservation", value: (gang) => gang.reserved ?? -1, down: true, number: true, cell: amount("reserved") },
  reason: { title: "reason", about: "why it waits, or what happened to it", value: (gang) => gang.reasons[0] ?? "", wide: true,
    cell: (gang) => ({ text: brief(gang), title: gang.reasons.join("\n") }) },
  kind: { title: "kind", about: "of the root group", value: (gang) => gang.kind, cell: text((gang) => gang.kind) },
  workload: { title: "workload", about: "for which the root group was made", value: (gang) => gang.workload, cell: text((gang) => (gang.workload ? short(gang.workload) : "")) },
  plan: { title: "plan", about: "of the newest admission", value: (gang) => gang.plan, cell: text((gang) => gang.plan) },
};
const SHOWN = ["state", "age", "priority", "bound", "reserved", "reason"]; // without a choice

export class Gangs {
  /**
   * @param on `link(name)` and `about(name)`: the properties of a link to a gang and to another object; `filter(changes)`: of `namespace`, `state`, `reason`,
   *   `sort` and `columns` in the address.
   */
  constructor(on) {
    this.on = on;
    this.gangs = [];
    this.chosen = "";
    this.most = STEP;
    this.filters = { namespace: "", state: "", reason: "", sort: "", columns: "" };
    this.allReasons = false;
    $("gang-filter").addEventListener("input", () => { this.most = STEP; this.draw(); });
    $("namespace").addEventListener("change", () => on.filter({ namespace: $("namespace").value }));
    $("gang-list").addEventListener("keydown", (event) => this.key(event));
    $("columns").append(...Object.entries(COLUMNS).slice(1).map(([name, { title, about }]) =>
      el("label", { title: about }, el("input", { type: "checkbox", value: name, onchange: () => this.choose() }), ` ${title}: ${about}`)));
  }

  /** @param gangs and refused workloads. @param chosen name of a gang, or of another object with its kind. @param filters of the address; empty: all. @param now of the moment that is shown, in milliseconds. */
  show(gangs, chosen, filters, now) {
    if (["namespace", "state", "reason", "sort"].some((name) => filters[name] !== this.filters[name])) this.most = STEP;
    this.gangs = gangs;
    this.chosen = chosen;
    this.filters = filters;
    this.now = now;
    this.columns = filters.columns ? filters.columns.split(",").filter((name) => name in COLUMNS && name !== "gang") : SHOWN;
    for (const box of document.querySelectorAll("#columns input")) box.checked = this.columns.includes(box.value);
    this.choices($("namespace"), "all namespaces", gangs.map((gang) => gang.gang.split("/")[0]), filters.namespace);
    this.draw();
  }

  choose() {
    const names = [...document.querySelectorAll("#columns input:checked")].map((box) => box.value);
    this.on.filter({ columns: names.join() === SHOWN.join() ? "" : names.join() || "state" });
  }

  /** Offer the values that there are; the one that is chosen stays, also if it is gone. */
  choices(select, all, values, chosen) {
    const names = [...new Set([...values, chosen].filter(Boolean))].sort(byName);
    if ([...select.options].slice(1).map((option) => option.value).join("\n") !== names.join("\n") || !select.options.length) {
      select.replaceChildren(el("option", { value: "", text: all }), ...names.map((name) => el("option", { value: name, text: name })));
    }
    select.value = chosen;
  }

  sorted(gangs) {
    const name = this.filters.sort.replace(/^-/, "");
    const usual = (a, b) => QUIET.has(a.state) - QUIET.has(b.state) || (b.priority ?? 0) - (a.priority ?? 0) || byName(a.gang, b.gang);
    if (!(name in COLUMNS)) return [...gangs].sort(usual);
    const { value } = COLUMNS[name];
    const sign = this.filters.sort.startsWith("-") ? -1 : 1;
    const order = (a, b) => (typeof a === "number" ? a - b : byName(a, b));
    return [...gangs].sort((a, b) => sign * order(value(a), value(b)) || usual(a, b));
  }

  draw() {
    const typed = $("gang-filter").value.trim().toLowerCase();
    const { namespace, state, reason } = this.filters;
    const within = this.gangs.filter((gang) => (!namespace || gang.gang.startsWith(`${namespace}/`)) && (!state || gang.state === state)
      && (gang.gang.toLowerCase().includes(typed) || gang.state.startsWith(typed)));
    const matching = this.sorted(within.filter((gang) => !reason || need(gang) === reason));
    const refused = this.gangs.filter((gang) => gang.about).length;
    const pending = this.gangs.filter((gang) => !QUIET.has(gang.state)).length - refused;
    const words = refused ? `, ${refused} refused` : "";
    setText($("gang-count"), `${count(this.gangs.length - refused, "gang")}, ${pending} pending${words}${matching.length === this.gangs.length ? "" : `, ${matching.length} shown`}`);
    this.reasons(within, reason);
    if (matching.length) portion($("gang-more"), Math.min(this.most, matching.length), matching.length, STEP, () => { this.most += STEP; this.draw(); });
    else $("gang-more").replaceChildren(this.gangs.length ? "No gang matches the filters." : "No gang at this time.");
    this.head();
    d3.select("#gang-list")
      .selectAll("tr")
      .data(matching.slice(0, this.most), (gang) => gang.uid || gang.gang)
      .join((enter) => enter.append((gang) => this.row(gang)))
      .order()
      .each((gang, index, list) => this.fill(list[index], gang));
  }

  /** Why gangs wait, the most frequent reason first: each is a filter. */
  reasons(gangs, chosen) {
    const groups = d3.rollups(gangs.filter(need), (list) => list.length, need).sort((a, b) => b[1] - a[1] || byName(a[0], b[0]));
    if (chosen && !groups.some(([reason]) => reason === chosen)) groups.unshift([chosen, 0]);
    const shown = this.allReasons ? groups : groups.filter(([reason], index) => index < REASONS || reason === chosen);
    const items = shown.map(([reason, number]) => el("li", {}, el("button", { type: "button", class: "chip", "aria-pressed": String(reason === chosen), title: reason,
      onclick: () => this.on.filter({ reason: reason === chosen ? "" : reason }) }, el("strong", { text: `${number} ${number === 1 ? "waits" : "wait"}` }), `: ${reason}`)));
    const rest = groups.length - shown.length;
    if (rest > 0 || this.allReasons) {
      items.push(el("li", {}, el("button", { type: "button", class: "link", text: rest > 0 ? `${count(rest, "more reason")}` : "fewer reasons", onclick: () => { this.allReasons = !this.allReasons; this.draw(); } })));
    }
    refill($("reasons"), ...items);
    $("reasons").classList.toggle("all", this.allReasons);
    $("reasons").hidden = groups.length === 0;
  }

  head() {
    const { sort } = this.filters;
    const cells = ["gang", ...this.columns].map((name) => {
      const { title, about, number, down, wide } = COLUMNS[name];
      const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
      const [first, second] = down ? [`-${name}`, name] : [name, `-${name}`];
      const next = sort === first ? second : sort === second ? "" : first;
      const button = el("button", { type: "button", class: "link", text: title, title: `${about}; click to sort`, onclick: () => this.on.filter({ sort: next }) });
      return el("th", { scope: "col", "aria-sort": order, "data-column": name, class: [number ? "number" : "", wide ? "fill" : ""].join(" ").trim() }, button, order === "none" ? "" : order === "ascending" ? " ▴" : " ▾");
    });
    refill($("gang-head"), el("tr", {}, ...cells));
  }

  row(gang) {
    const link = gang.about ? this.on.about(gang.about) : this.on.link(gang.gang);
    return el("tr", {}, el("th", { scope: "row" }, el("a", { ...link, class: "link name" })));
  }

  fill(row, gang) {
    const [name] = row.children;
    const link = name.firstChild;
    const chosen = (gang.about ?? gang.gang) === this.chosen;
    if (chosen) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    row.classList.toggle("chosen", chosen);
    setName(link, gang.gang);
    const drawn = this.columns.join();
    if (row.dataset.columns !== drawn) {
      row.replaceChildren(name, ...this.columns.map((column) => el("td", { class: `${column}${COLUMNS[column].number ? " number" : ""}` })));
      row.dataset.columns = drawn;
    }
    this.columns.forEach((column, index) => {
      const cell = row.children[index + 1];
      if (column === "state") {
        if (cell.textContent !== gang.state) cell.replaceChildren(badge(gang.state));
        return;
      }
      const { text: words, title = words } = COLUMNS[column].cell(gang, this.now);
      setText(cell, words);
      if (cell.title !== title) cell.title = title;
    });
  }

  /** Arrow keys go from row to row. */
  key(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const row = event.target.closest("tr");
    if (!step || !row?.[step]) return;
    event.preventDefault();
    row[step].querySelector("a").focus();
  }
}
