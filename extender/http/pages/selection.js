// What is selected: one gang, node, other object or event; it is shown beside every view.

import { NOTHING } from "./address.js";
import { Detail } from "./detail.js";
import { $ } from "./dom.js";
import { readEvent } from "./event.js";
import { Explanations } from "./explanation.js";

export class Selection {
  /**
   * @param address of what is shown.
   * @param on `link(kind, name)` and `event(position)`: the properties of links; `moment(position)`; `answered()`: there
   *   is a new explanation to draw.
   */
  constructor(address, on) {
    this.address = address;
    this.found = null; // the event that is selected: {position, found}
    this.moment = ""; // position of the past that is shown; empty: now
    this.opener = null; // had the focus before something was selected
    this.explanations = new Explanations(on);
    this.detail = new Detail({
      ...on,
      close: () => this.close(),
      explain: (name, version) => this.explanations.of(name, this.moment, version),
      explained: (name) => this.explanations.has(name, this.moment),
      at: () => this.moment,
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && !$("detail").hidden) this.close();
    });
  }

  /** Another thing was selected. */
  changed() {
    if (!$("detail").contains(document.activeElement)) this.opener = document.activeElement;
    this.readEvent();
  }

  /** Ask again for the explanation that is shown: what it rests on changes without an event, too. */
  askAgain() {
    if (!$("detail").hidden) this.explanations.askAgain();
  }

  /** Select nothing; the focus goes back to where it was. */
  close() {
    const { opener } = this;
    this.address.go(NOTHING);
    if (opener?.isConnected) opener.focus();
  }

  /** Read the event that is selected, if one is. */
  async readEvent() {
    const position = Number(this.address.now.event);
    if (!Number.isSafeInteger(position) || position < 1) return;
    if (this.found?.position === position && typeof this.found.found !== "string") return;
    this.found = { position, found: "Reading …" };
    let found;
    try {
      found = await readEvent(position);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      found = problem.message;
    }
    if (Number(this.address.now.event) !== position) return;
    this.found = { position, found };
    this.detail.event(position, found);
  }

  /** Draw it. @param shown `state`, `tree`, `pictured`, `past`, and `now`: the moment in milliseconds. */
  draw({ state, tree, pictured, past, now }) {
    this.moment = past ? String(state.as_of.position) : "";
    const { gang: gangName, node: nodeName, about, event } = this.address.now;
    if (gangName) {
      const gang = state?.gangs.find((one) => one.gang === gangName);
      const preemption = state?.preemptions.find((one) => one.preemptor === gangName);
      const builtin = Boolean(state?.control_plane?.served.length);
      if (gang) this.detail.gang(gang, tree?.gang === gangName ? tree : null, preemption, now, pictured, builtin);
      else this.detail.missing("Gang", gangName, past);
    } else if (nodeName) {
      const node = pictured?.nodes.find((one) => one.name === nodeName);
      if (node) this.detail.node(node, pictured);
      else this.detail.missing("Node", nodeName, past);
    } else if (about) this.detail.about(about);
    else if (event) this.detail.event(event, this.found?.position === Number(event) ? this.found.found : `The position of an event is a whole number from 1 on, not ${event}.`);
    else this.detail.hide();
  }
}
