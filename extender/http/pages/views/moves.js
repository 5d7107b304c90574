// Moves: those that the service makes, and those that a question about the live cluster would take; the map has the nodes
// before and after. The page only reads: `gang-extender make-room --apply`, `drain --apply` and `moves` do the rest.

import { ask, send } from "../api.js";
import { copyable } from "../commands.js";
import { $, el, refill, setText, textList } from "../dom.js";
import { changesOf, withMoves } from "../model.js";
import { apart, spaced } from "../names.js";
import { count, local, utc } from "../units.js";

const SUBJECTS = { groups: "NAMESPACE/GANG", free: "KEY=N, such as topology.example.com/rack=1", drain: "NODE or KEY=VALUE; several with spaces" };
const VERDICTS = { fits: "no move is needed", impossible: "impossible (proved)", unknown: "not decided: the search ended at its budget" };

export class Moves {
  /** @param on `link(kind, name)`: the properties of a link; `moves(resource)`: the map shows other moves. */
  constructor(on) {
    this.on = on;
    this.underWay = []; // moves that are not made yet
    this.answered = null; // MovesAnswer of the last question, until moves change the cluster
    this.progress = " 0"; // id of the moves under way, and how many are made
    this.turn = 0;
    $("moves-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.find();
    });
    $("moves-kind").addEventListener("change", () => this.choose());
    $("moves-moment").addEventListener("change", () => this.redraw());
    this.choose();
  }

  choose() {
    const kind = $("moves-kind").value;
    $("moves-subject").placeholder = SUBJECTS[kind];
    $("moves-subject").ariaLabel = SUBJECTS[kind];
    $("moves-budget").disabled = kind === "drain"; // all that can move leaves
  }

  show() {
    this.read();
  }

  /** Read the moves that the service makes. */
  async read() {
    try {
      const { body } = await ask("moves");
      this.drawUnderWay(body);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      setText($("moves-state"), problem.message);
    }
  }

  drawUnderWay(body) {
    const { made } = body;
    const by = body.by ? `, asked for by ${body.by}` : "";
    const head = body.plan ? `${body.question}: ${made} of ${count(body.moves.length, "move")} made, since ${utc(body.since)}${by}. ` : "";
    setText($("moves-state"), `${head}${body.state}`);
    const states = body.moves.map((_, index) => (index < made ? "made" : index > made ? "waits" : body.paused ? "paused" : "now"));
    refill($("moves-under-way"), body.plan ? this.table(body.moves, "Moves under way", states) : null, body.plan ? copyable(`gang-extender moves ${body.paused ? "resume" : "pause"}`) : null);
    this.underWay = body.moves.slice(made);
    const progress = `${body.plan} ${made}`;
    if (progress !== this.progress) this.answered = null;
    this.progress = progress;
    this.redraw();
  }

  /** Ask which moves make room. */
  async find() {
    const turn = ++this.turn;
    this.draw("Searching …");
    try {
      const question = await this.question();
      const { body } = await send("moves", question);
      if (turn === this.turn) this.draw(words(body), body.verdict === "fits" || body.verdict === "moves" ? "good" : "bad", body);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (turn === this.turn) this.draw(problem.message, "bad");
    }
  }

  async question() {
    const [kind, subject, budget] = [$("moves-kind").value, $("moves-subject").value.trim(), Number($("moves-budget").value)];
    if (kind === "drain") return { drain: subject.split(/[\s,]+/) };
    if (kind === "free") return { free: subject, budget };
    const { body } = await ask("gangs", { namespace: subject.split("/")[0] });
    const root = body.find((line) => line.gang === subject);
    return { groups: [root ? `${root.kind}/${root.gang}` : `PodGroup/${subject}`], budget };
  }

  /** @param answer MovesAnswer, once there is one. */
  draw(text, tone = "", answer = null) {
    this.answered = answer;
    setText($("moves-text"), text);
    $("moves-text").className = tone;
    refill($("moves-answer"), ...(answer ? this.parts(answer) : []));
    this.redraw();
  }

  parts(answer) {
    const { moves } = answer;
    return [
      ...answer.warnings.map((text) => el("p", { class: "notice", text: `Warning: ${text}` })),
      textList(null, answer.reasons),
      moves.length ? this.table(moves, "Moves, one after the other") : null,
      textList(el("h3", { text: "Then placed" }), answer.assignments.map(({ pod, node }) => `${pod} on ${node}`)),
      textList(el("h3", { text: "Ends in time, and need not move" }), answer.ends.map(({ name, pods, ends }) => `${spaced(name)}: ${count(pods, "pod")}, ${utc(ends)} at the latest`)),
      textList(el("h3", { text: "Gangs that break when the rest is evicted" }), answer.breaks.map(({ gang, running, left, minimum }) => `${spaced(gang)}: ${left} of ${running} left, its minimum is ${minimum}`)),
      textList(el("h3", { text: "No place elsewhere" }), answer.unmoved),
      textList(el("h3", { text: "Stays" }), answer.stays.map(({ pod, node, reason }) => `${pod} on ${node}: ${reason}`)),
    ];
  }

  /** @param states of the moves: made, now, paused or waits; none of a question. */
  table(moves, title, states = null) {
    const head = ["#", ...(states ? ["state"] : []), "pod", "gang or group", "from", "to", "priority"].map((text) => el("th", { scope: "col", text }));
    const rows = moves.map((move, index) => el("tr", {},
      el("td", { text: String(index + 1) }),
      states ? el("td", {}, el("span", { class: `badge move-${states[index]}`, text: states[index] })) : null,
      el("th", { scope: "row" }, this.link("Pod", move.pod)),
      el("td", {}, move.group ? this.link(...apart(move.group)) : "none"),
      el("td", {}, this.link("Node", move.from)),
      el("td", {}, this.link("Node", move.to)),
      el("td", { text: String(move.priority) })));
    return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": title }, el("table", { class: "texts" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
  }

  link(kind, name) {
    return el("a", { ...this.on.link(kind, name), text: name });
  }

  redraw() {
    $("moves-moment").hidden = !(this.answered?.moves.length || this.underWay.length);
    this.on.moves(this.answered?.nodes[0]?.resource ?? "");
  }

  /** Return the picture of the map: of the question that was answered, else of the moves under way. @param state StateAt. */
  pictured(picture, state) {
    const used = ({ resource, free_before: before, free_after: after }) => ({ [resource]: before - after });
    const changes = this.answered ? new Map(this.answered.nodes.map((node) => [node.node, used(node)])) : changesOf(state, this.underWay);
    return withMoves(picture, changes, $("moves-moment").querySelector("[value=after]").checked);
  }
}

/** An answer in one sentence. */
function words(answer) {
  const moves = count(answer.moves.length, "move");
  const proof = answer.least === answer.moves.length ? "proved: no fewer lead there" : `proved: ${answer.least} at least`;
  const partly = (answer.stays.length || answer.unmoved.length) && answer.verdict !== "fits" && answer.verdict !== "moves";
  const text = answer.verdict === "moves" ? `${moves} (${proof})` : partly ? `not all pods can move; as far as possible: ${moves}` : VERDICTS[answer.verdict];
  const empty = answer.emptied.length ? ` Empty then: ${answer.emptied.join(", ")}.` : "";
  return `${answer.question}: ${text}.${empty} As of ${utc(answer.as_of)} = ${local(answer.as_of)}; nothing was evicted.`;
}
