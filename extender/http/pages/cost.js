// The cost of a set of victims in words; the fields are those of `GET /v1/preemptions`, the most important first.

import { el } from "./dom.js";
import { spaced } from "./names.js";
import { count, duration } from "./units.js";

const WORDS = {
  violations: (value) => `${count(value, "eviction")} beyond what PodDisruptionBudgets allow`,
  highest: (value) => `highest priority of a victim ${value}`,
  broken: (value) => `${count(value, "group")} evicted as a whole or left below the minimum`,
  cascades: (value) => `${count(value, "victim")} that would evict others when created again`,
  lost_min: (value) => `lost ${(value / 60).toFixed(1)} GPU-hours`,
  units: (value) => count(value, "disruption unit"),
  pods: (value) => `${count(value, "pod")} evicted`,
  age_s: (value) => `victims ran ${duration(value)} longer, all together, than the youngest pod that could be evicted`,
  reserved_pods: (value) => `${count(value, "reservation")} of trees of lower priority`,
};

/** Return the cost as one text; sums that only order sets of victims are left out. */
export function costText(cost) {
  const parts = Object.keys(WORDS).filter((name) => name in (cost ?? {})).map((name) => WORDS[name](cost[name]));
  return parts.join("; ") || "nothing";
}

/** Return a list of the sets of victims that were examined and not taken; null: there are none. */
export function alternativesList(alternatives) {
  if (!alternatives?.length) return null;
  const lines = alternatives.map(({ units, cost, reason }) =>
    el("li", {}, el("strong", { text: units.map(spaced).join(", ") || "no victims" }), ` ${reason}`,
      cost && Object.keys(cost).length ? el("span", { class: "quiet", text: ` Cost: ${costText(cost)}.` }) : null));
  return el("div", {}, el("h3", { text: "Examined and not taken" }), el("ul", { class: "plain" }, ...lines));
}
