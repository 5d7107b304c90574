// The selection: the tree of a gang with the state of each group, or a node with its pods.

import { takeAlong } from "./commands.js";
import { $, el, refill, setName, textList, wide } from "./dom.js";
import { eventParts } from "./event.js";
import { badge, RUNNING, since } from "./gangs.js";
import { amountsOf, gangTree, placeOf } from "./model.js";
import { apart, short, spaced } from "./names.js";
import { age, amount, count, local, unit, utc } from "./units.js";

const MEMBERS_STEP = 100;
const WORDS = {
  bound: "its minimum is bound",
  reserved: "its minimum is bound or reserved",
  partly: "less than its minimum is reserved",
  waits: "nothing of it is reserved",
};

export class Detail {
  /**
   * @param on `link(kind, name)`: the properties of a link; `close()`; `moment(position)`; `explain(name, version)`: the
   *   element with an explanation at the moment that is shown, and `explained(name)`: whether it is there; `at()`: the
   *   position of that moment, empty: now.
   */
  constructor(on) {
    this.on = on;
    this.box = $("detail");
    this.open = new Set(); // levels of a tree that the user opened
    this.most = new Map(); // members that are shown, by level
    this.drawn = ""; // the event that is drawn; it does not change
    this.taken = false; // whether the commands are open
  }

  hide() {
    this.drawn = "";
    this.box.hidden = true;
    this.box.replaceChildren();
  }

  fill(...parts) {
    const top = this.box.scrollTop;
    this.drawn = "";
    this.box.hidden = false;
    refill(this.box, ...parts);
    this.box.scrollTop = top;
  }

  /** Move the focus to the heading of what was selected. */
  focus() {
    this.box.scrollTop = 0;
    this.box.querySelector("h2")?.focus({ preventScroll: true });
    this.box.scrollIntoView({ block: matchMedia("(max-width: 800px)").matches ? "start" : "nearest" });
  }

  head(kind, name) {
    const close = el("button", { type: "button", class: "close", text: "✕", "aria-label": "Close", title: "Close (Escape)", onclick: () => this.on.close() });
    return el("div", { class: "row head" }, el("h2", { tabindex: "-1" }, `${kind} `, setName(el("span", { class: "name" }), name)), close);
  }

  link(kind, name) {
    return setName(el("a", this.on.link(kind, name)), name);
  }

  /** Show that there is no such thing at this point in time. */
  missing(kind, name, past) {
    this.fill(this.head(kind, name), el("p", { text: `There ${past ? "was" : "is"} no such ${kind.toLowerCase()} at this time in the log.` }));
  }

  /**
   * @param gang GangAt.
   * @param tree TreeNow; null where the past is shown or the cluster has none.
   * @param preemption PreemptionAt of this gang, if any.
   * @param now of the moment that is shown, in milliseconds.
   * @param pictured the nodes. @param builtin whether the cluster has groups of Kubernetes, too.
   */
  gang(gang, tree, preemption, now, pictured, builtin) {
    this.pictured = pictured;
    const name = `${gang.kind}/${gang.gang}`;
    this.fill(
      this.head("Gang", gang.gang),
      el("p", {}, badge(gang.state), ` ${short(gang.kind)}, priority ${gang.priority}: ${gang.bound} bound, ${gang.reserved} reserved, ${since(gang, now)}`),
      gang.workload ? this.workload(gang.workload) : null,
      this.on.explain(name, `${gang.uid} ${gang.state} ${gang.last_decision_position}`),
      RUNNING.has(gang.state) || !this.on.explained(name) ? this.decision(gang) : null,
      this.loss(gang.last_loss, now),
      preemption ? this.preempting(preemption) : null,
      this.levels(gang, tree),
      el("dl", { class: "quiet" }, ...pair("observed", moment(gang.observed)), ...pair("admitted", moment(gang.admitted)), ...pair("last decision", moment(gang.last_decision_time)), ...pair("UID", gang.uid), ...pair("plan", gang.plan)),
      this.take(gang.kind, gang.gang, tree ? { ...gang, groups: tree.groups } : gang, builtin),
    );
  }

  take(kind, name, has, builtin = false) {
    const box = takeAlong(kind, name, this.on.at(), has, builtin);
    box.open = this.taken;
    box.querySelector("summary").addEventListener("click", () => { this.taken = !box.open; }); // `toggle` may come after the next drawing
    return box;
  }

  workload(path) {
    return el("p", { class: "workload" }, "made for ", el("a", { ...this.on.link(...apart(path)), text: spaced(path) }));
  }

  loss(loss, now) {
    if (!loss) return null;
    const by = loss.preemptor ? ` by ${spaced(loss.preemptor)}` : "";
    return el("p", { class: "loss" }, `Last loss: ${loss.pod} on `, this.link("Node", loss.node), `, ${loss.cause}${by}, ${age(loss.time, now)} ago. ${loss.message} `,
      el("a", { ...this.on.event(loss.position), text: `Event ${loss.position}` }));
  }

  /** Show the explanation of a group, a pod or a workload. @param about KIND/NAMESPACE/NAME. */
  about(about) {
    this.fill(this.head(...apart(about)), this.on.explain(about, ""), this.take(...apart(about), null));
  }

  /** Show one event. @param found of `readEvent`, or a text while there is none. */
  event(position, found) {
    const drawn = `event ${position} ${typeof found === "string" ? found : "found"}`;
    if (drawn === this.drawn) return;
    this.drawEvent(position, found);
    this.drawn = drawn;
  }

  drawEvent(position, found) {
    const head = this.head("Event", String(position));
    if (typeof found === "string" || found.event === null) {
      this.fill(head, el("p", { text: typeof found === "string" ? found : "The log has no such event." }));
      return;
    }
    const { event } = found;
    this.fill(
      head,
      el("p", {}, el("strong", { text: event.type }), event.gang ? " of " : "", event.gang ? this.link("Gang", event.gang) : null),
      el("p", { class: "answer", text: event.summary }),
      el("p", { class: "quiet", text: `${moment(event.time)}, ${age(event.time)} ago; written by ${event.actor}${event.cause ? `, because of ${event.cause}` : ""}` }),
      el("p", {}, el("button", { type: "button", text: "Show the state as of this event", onclick: () => this.on.moment(position) })),
      ...eventParts(found),
    );
  }

  decision(gang) {
    if (!gang.outcome && !gang.reasons.length) return null;
    const reasons = gang.reasons.map((reason) => el("li", { text: reason }));
    const about = RUNNING.has(gang.state) ? "Extra members" : "Decision";
    const head = gang.outcome ? `${about}: ${gang.outcome}` : "No decision now";
    return el("div", { class: "notice" }, el("strong", { text: head }), el("ul", {}, ...reasons), textList(el("strong", { text: "What would help" }), gang.help));
  }

  preempting(preemption) {
    const victims = preemption.victims.map((victim) => el("li", {}, `${victim.pod} on `, this.link("Node", victim.node)));
    const words = `Preempts since ${utc(preemption.planned)}: ${count(preemption.evicted, "victim")} gone, ${preemption.victims.length} to go`;
    return el("div", { class: "notice" }, el("strong", { text: words }), el("ul", {}, ...victims));
  }

  levels(gang, tree) {
    const root = gangTree(gang, tree);
    if (root === null) return el("p", { class: "quiet", text: "The log has the groups of a gang from its first admission on; those of this time are not known." });
    const list = el("ul", { class: "tree", role: "tree", "aria-label": "Groups" });
    list.append(this.level(root));
    return list;
  }

  level(level) {
    const { data: group } = level;
    const leaf = group.kind === "PodGroup";
    const all = leaf ? level.members.length || group.members || 0 : level.children?.length ?? 0;
    const what = leaf ? "pod" : "group";
    const needs = group.basic ? `any ${what}` : `at least ${count(group.minimum, what)}`;
    const nodes = new Set(level.descendants().flatMap((below) => below.data.kind === "PodGroup" ? below.members.map((member) => member.node).filter(Boolean) : []));
    const place = (Object.keys(level.domain).length ? placeOf(level.domain, this.pictured, nodes) : []).map(([key, value]) => (value.startsWith(short(key)) ? value : `${short(key)} ${value}`)).join(", ");
    const numbers = `${level.bound} bound, ${level.reserved} reserved${level.waiting ? `, ${level.waiting} waiting` : ""}`;
    const line = el(
      "div",
      { class: "level" },
      el("span", { class: `badge level-${level.word}`, text: level.word, title: WORDS[level.word] }),
      setName(el("span", { class: "name" }), group.name),
      el("span", { class: "quiet", text: `${needs}; ${leaf ? numbers : `${level.held} of ${count(all, what)} reserved or bound, ${numbers}`}` }),
      place ? el("span", { class: "place", text: `in ${place}`, title: place }) : null,
      ...level.wishes.map((wish) => el("span", { class: "quiet", text: wish.text })),
      this.meter(level),
    );
    const item = el("li", { role: "treeitem", "aria-label": `${group.name}: ${level.word}` }, line);
    if (level.children) item.append(el("ul", { role: "group" }, ...level.children.map((child) => this.level(child))));
    if (level.members.length) item.append(this.members(level));
    return item;
  }

  meter(level) {
    const whole = Math.max(1, level.bound + level.reserved + level.waiting);
    return el("span", { class: "meter", "aria-hidden": "true" }, wide(el("i", { class: "bound" }), level.bound / whole), wide(el("i", { class: "reserved" }), level.reserved / whole));
  }

  members(level) {
    const most = this.most.get(level.id) ?? MEMBERS_STEP;
    const rows = level.members.slice(0, most).map((member) =>
      el("li", {}, setName(el("a", { ...this.on.link("Pod", member.pod), class: "link name" }), member.pod), ` ${member.state}${member.extra ? " (extra)" : ""} `,
        member.node ? this.link("Node", member.node) : null, member.gates?.length ? ` held by ${member.gates.join(", ")}` : null));
    const left = level.members.length - most;
    const more = left > 0 ? el("button", { type: "button", class: "more", text: `Show ${Math.min(left, MEMBERS_STEP)} more of ${level.members.length}`, onclick: () => {
      this.most.set(level.id, most + MEMBERS_STEP);
      box.replaceWith(this.members(level));
    } }) : null;
    const box = el("details", { open: this.open.has(level.id) }, el("summary", { text: count(level.members.length, "member") }), el("ul", { class: "members" }, ...rows), more);
    box.addEventListener("toggle", () => (box.open ? this.open.add(level.id) : this.open.delete(level.id)));
    return box;
  }

  /** @param node NodePicture; `resources`: names of all, `keys`: topology labels. */
  node(node, { resources, keys, past }) {
    const parts = ["capacity", "bound", "reserved", "claimed", "other", "free"];
    const head = el("tr", {}, ...["", "unit", "capacity", "bound", "reserved", "claimed", "other pods", "free"].map((text) => el("th", { text, scope: "col" })));
    const rows = resources.map((resource) => {
      const amounts = amountsOf(node, resource);
      if (parts.every((part) => amounts[part] === 0)) return null;
      const cells = parts.map((part) => el("td", { class: amounts[part] === null ? "quiet" : "", text: amounts[part] === null ? "not known" : amount(resource, amounts[part]) }));
      return el("tr", {}, el("th", { scope: "row", text: resource }), el("td", { class: "quiet", text: unit(resource) }), ...cells);
    });
    const pods = (node.had?.pods ?? []).map((pod) =>
      el("li", {}, setName(el("a", { ...this.on.link("Pod", pod.pod), class: "link name" }), pod.pod), ` ${pod.state}, of `, this.link("Gang", pod.gang)));
    const labels = keys.filter((key) => node.labels[key]).flatMap((key) => pair(key, node.labels[key]));
    this.fill(
      this.head("Node", node.name),
      node.gone && !past ? null : this.on.explain(`Node/${node.name}`, ""),
      node.closed ? el("p", { class: "notice", text: closed(node.now) }) : null,
      el("div", { class: "wide" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows.filter(Boolean)))),
      el("h3", { text: "Members of gangs" }),
      pods.length ? el("ul", { class: "members" }, ...pods) : el("p", { class: "quiet", text: "none" }),
      el("p", { class: "quiet", text: beside(node) }),
      el("dl", { class: "quiet" }, ...labels),
      this.take("Node", node.name, node.now ?? node.had),
    );
  }
}

const pair = (name, value) => (value ? [el("dt", { text: name }), el("dd", { text: value })] : []);
const moment = (time) => (time ? `${utc(time)} = ${local(time)}` : "");

function beside(node) {
  if (node.now) return `${count(node.now.ordinary_pods, "pod")} without a group ${node.now.ordinary_pods === 1 ? "is" : "are"} on it.`;
  return "Capacity, other pods and free capacity are not known: the log has only reservations and members of gangs.";
}

function closed(now) {
  const reasons = [now.unschedulable && "cordoned", now.deleting && "being deleted"].filter(Boolean);
  for (const taint of now.taints) reasons.push(`taint ${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`);
  return `Accepts no new pods, or only pods with a toleration: ${reasons.join(", ")}`;
}
