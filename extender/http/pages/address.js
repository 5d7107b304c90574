// The address of what is shown, in the fragment of the URL: every view, moment, selection and filter has one.

const NAMES = ["view", "at", "gang", "node", "about", "event", "q", "report", "span", "namespace", "state", "reason", "sort", "columns"];

/** What can be selected; one of them at a time. `about` is KIND/NAMESPACE/NAME of a group, pod or workload. */
export const CHOICES = ["gang", "node", "about", "event"];

/** The selection of nothing. */
export const NOTHING = Object.fromEntries(CHOICES.map((name) => [name, ""]));

/** Return the fragment of an address; names without a value are left out. */
export function fragment(values) {
  const written = new URLSearchParams();
  for (const name of NAMES) if (values[name]) written.set(name, values[name]);
  return `#${String(written).replaceAll("%2F", "/").replaceAll("%2C", ",")}`;
}

function read() {
  const written = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(NAMES.map((name) => [name, written.get(name) ?? ""]));
}

export class Address {
  /** @param on called with the new values and those before, also when the user goes back or follows a link. */
  constructor(on) {
    this.on = on;
    this.now = read();
    addEventListener("popstate", () => this.arrive(read()));
  }

  /** Go to another address; `replace`: without a new entry in the history of the browser. */
  go(changes, { replace = false } = {}) {
    const next = { ...this.now, ...changes };
    if (NAMES.every((name) => next[name] === this.now[name])) return;
    history[replace ? "replaceState" : "pushState"](null, "", fragment(next));
    this.arrive(next);
  }

  arrive(next) {
    const before = this.now;
    this.now = next;
    this.on(next, before);
  }

  /** The properties of a link: a click goes there within this page, and the browser can open it in a new tab. */
  link(changes) {
    const kept = Object.fromEntries(["view", "namespace", "state", "reason", "sort", "columns"].map((name) => [name, this.now[name]]));
    return { class: "link", href: fragment({ ...kept, ...changes }), onclick: (event) => this.follow(event, changes) };
  }

  /** Go where a link leads, unless the click is one for the browser: a new tab, a new window, a download. */
  follow(event, changes) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.go(changes);
  }

  /** The properties of a link that selects an object of a kind, or a `Gang`. `gangs`: the names of all root groups. */
  object(kind, name, gangs) {
    if (kind === "Node") return this.link({ ...NOTHING, node: name });
    if (kind === "Gang" || (kind.endsWith("PodGroup") && gangs.has(name))) return this.link({ ...NOTHING, gang: name });
    return this.link({ ...NOTHING, about: `${kind}/${name}` });
  }
}
