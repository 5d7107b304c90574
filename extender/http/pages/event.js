// One event: what happened, its data, and for a decision its input, its alternatives and their cost.

import { ask } from "./api.js";
import { alternativesList, costText } from "./cost.js";
import { el, textList } from "./dom.js";
import { count, utc } from "./units.js";

const DECISIONS = new Set(["GangAdmitted", "GangExtended", "GangUnschedulable", "PreemptionPlanned"]);
const DRAWN = new Set(["cost", "alternatives"]); // of the data; in words of their own
const LIST_MAX = 20;
const DEPTH_MAX = 4;

/** Return an event with its decision (null: it is none, or its input is gone). Throws Problem. */
export async function readEvent(position) {
  const { body } = await ask("events", { after: Math.max(0, position - 1), limit: 1 });
  const event = body[0]?.position === position ? body[0] : null;
  if (event === null || !DECISIONS.has(event.type)) return { event, decision: null };
  try {
    return { event, decision: (await ask(`decisions/${position}`)).body.decision };
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    return { event, decision: null };
  }
}

/** Return the parts that show an event below its heading. */
export function eventParts({ event, decision }) {
  const { data } = event;
  const rest = Object.entries(data).filter(([name, value]) => !DRAWN.has(name) && !empty(value));
  return [
    data.cost ? el("div", {}, el("h3", { text: "Cost" }), el("p", { class: "cost", text: costText(data.cost) })) : null,
    alternativesList(data.alternatives),
    decision ? decisionPart(decision) : null,
    rest.length ? el("div", {}, el("h3", { text: "Data" }), fields(rest, 0)) : null,
    el("details", {}, el("summary", { text: "All of it as JSON" }), el("pre", { tabindex: "0", text: JSON.stringify(event, null, 2) })),
  ];
}

function decisionPart(decision) {
  const { input } = decision;
  const looked = input.stored
    ? `Planned over ${count(input.nodes, "node")} for ${count(input.waiting, "waiting member")} and ${count(input.bound, "bound member")} in ${count(input.groups, "group")}; ${count(input.evictable, "disruption unit")} could be evicted.`
    : "The input of this decision was pruned.";
  const search = decision.exhausted ? "The search was complete, so the answer is proved" : "The search ended at its budget, so there may be a better answer";
  return el("div", {}, el("h3", { text: "How it was decided" }), el("p", { text: looked }), el("p", { text: `${search} (${count(decision.search_nodes, "search node")}, planner ${decision.planner}).` }),
    textList(el("strong", { text: "What its wishes reached" }), decision.wishes.map((wish) => `${wish.group}: ${wish.text}`)));
}

const empty = (value) => value === null || value === "" || (Array.isArray(value) && value.length === 0);
const spaced = (name) => name.replaceAll("_", " ");

function fields(entries, depth) {
  return el("dl", { class: "data" }, ...entries.flatMap(([name, value]) => [el("dt", { text: spaced(name), title: name }), el("dd", {}, shown(value, depth))]));
}

/** Return a value as text, list or fields; below `DEPTH_MAX` as JSON. */
function shown(value, depth) {
  if (empty(value)) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "object") return String(value);
  if (depth >= DEPTH_MAX) return JSON.stringify(value);
  if (!Array.isArray(value)) return fields(Object.entries(value).filter(([, part]) => !empty(part)), depth + 1);
  const items = value.map((part) => el("li", {}, shown(part, depth + 1)));
  const list = el("ul", { class: "plain" }, ...items.slice(0, LIST_MAX));
  if (items.length <= LIST_MAX) return list;
  const more = el("button", { type: "button", class: "more", text: `Show ${items.length - LIST_MAX} more`, onclick: () => {
    list.append(...items.slice(LIST_MAX));
    more.remove();
  } });
  return el("div", {}, list, more);
}
