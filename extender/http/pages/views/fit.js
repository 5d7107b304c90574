// Would it fit: manifests are planned on the live cluster; nothing is reserved.

import { $, el, setText, textList } from "../dom.js";
import { send } from "../api.js";
import { short, spaced } from "../names.js";
import { count, utc } from "../units.js";

const VERDICTS = {
  placed: "fits",
  waiting: "waits",
  unknown: "not known: the search ended at its budget",
  impossible: "does not fit",
  invalid: "breaks a rule",
};

export class Fit {
  /** @param on `link(kind, name)`: the properties of a link. */
  constructor(on) {
    this.on = on;
    this.turn = 0;
    $("fit-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.read();
    });
    $("manifest").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.read();
    });
    $("fit-file").addEventListener("change", () => this.load());
  }

  async load() {
    const texts = await Promise.all([...$("fit-file").files].map((file) => file.text()));
    $("manifest").value = texts.join("\n---\n");
    $("manifest").focus();
  }

  async read() {
    const turn = ++this.turn;
    const manifest = $("manifest").value;
    if (!manifest.trim()) {
      this.draw("Paste the manifests of a workload, or of groups and their pods, first.");
      return;
    }
    this.draw("Planning …");
    try {
      const { body } = await send("plan", { manifest, preemption: $("fit-preemption").checked });
      if (turn === this.turn) this.answer(body);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (turn === this.turn) this.draw(problem.message, "bad");
    }
  }

  draw(words, tone = "") {
    setText($("fit-text"), words);
    $("fit-text").className = tone;
    $("fit-answer").replaceChildren();
  }

  answer(found) {
    const { gangs } = found;
    if (!gangs.length) {
      this.draw("The text has nothing to plan: no pod without a node, no group with pods, no workload.", "bad");
      return;
    }
    const fits = gangs.filter((gang) => gang.verdict === "placed").length;
    const words = gangs.length === 1 ? `${gangs[0].gang} ${VERDICTS[gangs[0].verdict]}.` : `${fits} of ${count(gangs.length, "tree")} fit, planned one after the other.`;
    this.draw(`${words} As of ${utc(found.as_of)}; nothing was reserved.`, fits === gangs.length ? "good" : "bad");
    const head = ["tree", "answer", "why, and what would help", "places"].map((text) => el("th", { scope: "col", text }));
    const rows = gangs.map((gang) => this.row(gang));
    $("fit-answer").replaceChildren(
      ...found.warnings.map((text) => el("p", { class: "notice", text: `Warning: ${text}` })),
      el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Answer" }, el("table", { class: "texts" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows))),
    );
  }

  row(gang) {
    const from = gang.workload ? el("div", { class: "quiet", text: `made for ${spaced(gang.workload)}` }) : null;
    return el("tr", {},
      el("th", { scope: "row" }, gang.gang, el("div", { class: "quiet", text: gang.kind }), from),
      el("td", {}, el("span", { class: `badge verdict-${gang.verdict}`, text: VERDICTS[gang.verdict] })),
      el("td", {}, ...this.reasons(gang)),
      el("td", {}, ...this.places(gang)));
  }

  reasons(gang) {
    const empty = { fits: "It would fit if no other pod ran.", never: "It would not fit if no other pod ran either.", unknown: "Whether it would fit if no other pod ran is not known." };
    return [
      list("", gang.reasons),
      list("Cannot hold together:", gang.conflict.map(requirement)),
      gang.when_empty ? el("p", { text: empty[gang.when_empty] }) : null,
      list("", gang.reasons_when_empty),
      list("Would help:", gang.help, "help"),
      list("Would be evicted:", gang.victims.map((unit) => `${spaced(unit.unit)} (${count(unit.pods.length, "pod")})`)),
    ];
  }

  places(gang) {
    const nodes = new Map();
    for (const { node } of gang.assignments) nodes.set(node, (nodes.get(node) ?? 0) + 1);
    const lines = [...nodes].map(([node, pods]) => el("li", {}, el("a", { ...this.on.link("Node", node), text: node }), ` ${count(pods, "pod")}`));
    const domains = Object.entries(gang.domains).flatMap(([group, keys]) => Object.entries(keys).map(([key, value]) => `${group} in ${short(key)} ${value}`));
    const without = gang.unplaced.length ? el("p", { class: "quiet", text: `${count(gang.unplaced.length, "pod")} without a place` }) : null;
    if (!lines.length) return [without];
    const words = `${count(gang.assignments.length, "pod")} on ${count(lines.length, "node")}`;
    return [list("", domains), el("details", { open: lines.length <= 8 }, el("summary", { text: words }), el("ul", { class: "plain" }, ...lines)), without];
  }
}

const requirement = ({ object, message }) => `${spaced(object)}: ${message}`;

const list = (title, texts, name) => textList(title ? el("strong", { text: title }) : null, texts, name);
