// Preemptions of a span of time, newest first: for whom, who lost, why these victims, and how it ended.

import { ask } from "../api.js";
import { alternativesList, costText } from "../cost.js";
import { $, el, portion, setText } from "../dom.js";
import { apart, spaced } from "../names.js";
import { age, count, local, utc } from "../units.js";
import { sinceOf, SPAN } from "./spans.js";

const PAGE = 1000; // of one request
const STEP = 100; // rows

export class Preemptions {
  /** @param on `link(kind, name)` and `event(position)`: the properties of links. */
  constructor(on) {
    this.on = on;
    this.lines = []; // newest first
    this.more = false; // the service has earlier ones
    this.asked = "";
    this.shown = STEP;
    for (const name of ["preemption-filter", "preemption-outcome"]) $(name).addEventListener("input", () => this.draw());
    $("preemptions-again").addEventListener("click", () => this.again());
  }

  /** Show those of the span and the namespace in the address. */
  show({ span, namespace }) {
    this.namespace = namespace;
    const asked = span || SPAN;
    if (asked === this.asked) {
      this.draw();
      return;
    }
    this.asked = asked;
    this.again();
  }

  /** There is an event about a preemption; what is read stays until the user reads again. */
  changed() {
    setText($("preemptions-again"), "Read again: there is news");
  }

  again() {
    setText($("preemptions-again"), "Read again");
    this.lines = [];
    this.shown = STEP;
    this.since = sinceOf(this.asked);
    this.read();
  }

  /** Read the page before the preemptions that were read. */
  async read() {
    const { asked, lines } = this;
    setText($("preemptions-text"), "reading …");
    try {
      const { body } = await ask("preemptions", { since: this.since, after: lines.at(-1)?.position, order: "newest", limit: PAGE });
      if (lines !== this.lines || asked !== this.asked) return;
      this.lines = [...lines, ...body];
      this.more = body.length === PAGE;
      this.draw();
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (lines === this.lines) setText($("preemptions-text"), problem.message);
    }
  }

  draw() {
    const words = $("preemption-filter").value.trim().toLowerCase();
    const outcome = $("preemption-outcome").value;
    const inNamespace = (name) => name.split("/").at(-2) === this.namespace;
    const found = this.lines.filter((line) => {
      const names = [line.preemptor, ...line.victims.flatMap((unit) => [unit.unit, ...unit.pods.map((pod) => pod.pod)]), ...line.superseded];
      return (!outcome || line.outcome === outcome) && (!this.namespace || names.some(inNamespace)) && names.some((name) => name.toLowerCase().includes(words));
    });
    const all = `${this.more ? "the newest " : ""}${count(this.lines.length, "preemption")}`;
    setText($("preemptions-text"), found.length === this.lines.length ? all : `${found.length} of ${all}`);
    $("preemption-list").replaceChildren(...found.slice(0, this.shown).map((line) => this.row(line)));
    const box = $("preemptions-more");
    if (found.length > this.shown) portion(box, this.shown, found.length, STEP, () => { this.shown += STEP; this.draw(); });
    else if (this.more) box.replaceChildren(el("button", { type: "button", class: "more", text: "Show more: read earlier ones", onclick: () => this.earlier(found.length) }));
    else box.replaceChildren(...(found.length ? [] : [this.lines.length ? "None matches the filters." : "There was no preemption in this span of time."]));
  }

  /** All that were read are shown: read earlier ones and show more. */
  earlier(count) {
    this.shown = count + STEP;
    this.read();
  }

  row(line) {
    const [kind, name] = apart(line.preemptor);
    const units = line.victims.filter((unit) => !unit.spared);
    const pods = units.reduce((sum, unit) => sum + unit.pods.length, 0);
    const words = `${line.outcome === "pending" ? "evicts" : "evicted"} ${count(pods, "pod")} of ${count(units.length, "unit")}`;
    const lost = [pods ? words : "", line.superseded.length ? `reservations of ${line.superseded.join(", ")} released` : ""];
    return el("li", {},
      el("div", { class: "row line" },
        el("span", { class: `badge outcome-${line.outcome}`, text: line.outcome }),
        kind ? el("a", { ...this.on.link(kind, name), text: name, title: line.preemptor }) : el("span", { text: name }),
        el("span", { text: `priority ${line.priority}: ${lost.filter(Boolean).join(", ") || "without victims"}` }),
        el("a", { ...this.on.event(line.position), text: `event ${line.position}` }),
        el("time", { class: "quiet", datetime: line.planned, text: `${age(line.planned)} ago`, title: `${utc(line.planned)} = ${local(line.planned)}` })),
      el("details", {}, el("summary", { text: "Victims, reason and cost" }),
        el("p", { text: line.explanation || line.message }),
        line.victims.length ? this.victims(line) : null,
        el("p", {}, el("strong", { text: "Cost: " }), costText(line.cost)),
        alternativesList(line.alternatives)));
  }

  victims(line) {
    const rows = line.victims.flatMap((unit) => unit.pods.map((pod) => el("tr", {},
      el("td", {}, apart(unit.unit)[0] ? el("a", { ...this.on.link(...apart(unit.unit)), text: spaced(unit.unit) }) : unit.unit),
      el("td", { text: String(unit.priority) }),
      el("td", { text: pod.pod }),
      el("td", {}, pod.node ? el("a", { ...this.on.link("Node", pod.node), text: pod.node }) : null),
      el("td", { text: unit.spared ? "spared" : pod.gone ? `gone ${utc(pod.gone)} (${pod.via})` : "not gone yet" }))));
    const head = ["victim", "priority", "pod", "node", "end"].map((text) => el("th", { scope: "col", text }));
    return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Victims" }, el("table", { class: "texts" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
  }
}
