// The map: blocks, racks and nodes on a canvas, with a tip under the pointer, and keys to move over it.

import { $, el, setText } from "./dom.js";
import { DENSITY_FROM, layout } from "./layout.js";
import { amountsOf, domains, nodesBelow, sumOf, within } from "./model.js";
import { short } from "./names.js";
import { Brush, palette } from "./paint.js";
import { amount, count, unit } from "./units.js";

const HEAD = 24; // space above a place when it is scrolled to
const WORDS = { other: "other pods" };

export class Topology {
  /** @param on `node(name)`: a node was chosen. */
  constructor(on) {
    this.on = on;
    this.canvas = $("map");
    this.picture = { nodes: [], keys: [], resources: [], past: false };
    this.path = [];
    this.plan = { boxes: [], cells: [], width: 0, height: 0 };
    this.at = -1; // index of the cell selected by keys
    this.chosen = { node: "", gang: "" };
    this.listen();
  }

  listen() {
    for (const name of ["resource", "grain"]) $(name).addEventListener("change", () => this.arrange());
    new ResizeObserver(() => { if ($("stage").clientWidth !== this.stageWidth) this.arrange(); }).observe($("stage"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => { this.at = -1; this.draw(); });
  }

  /** Show a picture; `chosen`: names of a node and a gang to highlight. */
  show(picture, chosen) {
    const other = chosen.node !== this.chosen.node || chosen.gang !== this.chosen.gang;
    this.picture = picture;
    this.chosen = { node: chosen.node, gang: chosen.gang };
    this.fillResources();
    this.arrange();
    const place = this.plan.cells.find(({ node }) => node.name === chosen.node || this.marked.has(node.name));
    if (other && place) this.uncover(place);
  }

  fillResources() {
    const select = $("resource");
    const { resources } = this.picture;
    if ([...select.options].map((option) => option.value).join() === resources.join()) return;
    const before = select.value;
    select.replaceChildren(...resources.map((name) => el("option", { value: name, text: `${name} (${unit(name)})` })));
    if (resources.includes(before)) select.value = before;
  }

  /** Show another resource, if the nodes have it. */
  choose(resource) {
    if (this.picture.resources.includes(resource)) $("resource").value = resource;
  }

  get resource() {
    return $("resource").value;
  }

  /** Compute the layout and draw it. */
  arrange() {
    const { nodes, keys } = this.picture;
    const root = domains(nodes, keys.length);
    this.domain = within(root, this.path);
    if (this.domain === root) this.path = [];
    const below = nodesBelow(this.domain);
    const grain = this.grain(below.length, keys.length > this.path.length);
    this.stageWidth = $("stage").clientWidth;
    const width = Math.max(280, this.stageWidth);
    const height = Math.max(360, innerHeight * 0.55);
    this.plan = layout(this.domain, { width, height, grain, count: below.length });
    $("legend").hidden = grain === "density";
    $("ramp").hidden = grain !== "density";
    this.amounts = new Map(below.map((node) => [node.name, amountsOf(node, this.resource)]));
    this.marked = new Set();
    for (const node of below) {
      if (node.moved || node.had?.pods.some((pod) => pod.gang === this.chosen.gang)) this.marked.add(node.name);
    }
    const places = this.places();
    if (this.at >= places.length) this.at = places.length - 1;
    this.crumbs(root);
    setText($("sums"), this.totals(below, grain));
    this.draw();
  }

  /** How nodes are drawn: as chosen, else by their number. @param parted whether there are domains below. */
  grain(nodes, parted) {
    const chosen = $("grain").value;
    if (chosen === "sums" && !parted) return "nodes";
    if (chosen !== "auto") return chosen;
    return nodes < DENSITY_FROM ? "nodes" : "density";
  }

  /** What keys and clicks select: nodes, or domains. */
  places() {
    return this.plan.grain === "nodes" || this.plan.boxes.length === 1 ? this.plan.cells : this.plan.boxes.filter((box) => box.sum || box.dense);
  }

  crumbs(root) {
    const parts = [el("button", { type: "button", text: "cluster", onclick: () => this.look([]) })];
    this.path.forEach((value, level) => {
      const path = this.path.slice(0, level + 1);
      parts.push(document.createTextNode(" › "));
      parts.push(el("button", { type: "button", text: this.title(path), title: path.at(-1), onclick: () => this.look(path) }));
    });
    $("crumbs").replaceChildren(...parts);
    $("crumbs").hidden = this.path.length === 0 || root === this.domain;
  }

  /** All of a path, from the outermost domain on: the same name may be in several of them. */
  whole(path) {
    return path.map((value, level) => this.title(path.slice(0, level + 1))).join(" › ");
  }

  title(path) {
    const key = short(this.picture.keys[path.length - 1] ?? "");
    const value = path.at(-1);
    if (!value) return `without a ${key}`;
    return value.startsWith(key) ? value : `${key} ${value}`;
  }

  look(path) {
    this.path = path;
    this.at = -1;
    this.arrange();
  }

  totals(below, grain) {
    if (below.length === 0) return "No nodes are known.";
    const total = sumOf(below.map((node) => this.amounts.get(node.name)));
    const parts = ["bound", "reserved", "claimed", "other", "free"].map((part) => `${WORDS[part] ?? part} ${this.format(total[part])}`);
    const whole = total.capacity === null ? "capacity not known" : `${this.format(total.capacity)} ${unit(this.resource)}`;
    return `${count(below.length, "node")}${{ nodes: "", density: ", drawn by density", sums: ", drawn as sums" }[grain]}: ${this.resource}, ${whole}: ${parts.join(", ")}`;
  }

  format(value) {
    return value === null ? "not known" : amount(this.resource, value);
  }

  draw() {
    const { width, height, boxes, cells } = this.plan;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(Math.max(height, 40) * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${Math.max(height, 40)}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const brush = new Brush(context, palette(this.canvas));
    for (const box of boxes) this.drawBox(brush, box);
    for (const cell of cells) this.drawCell(brush, cell);
    const reached = this.places()[this.at];
    if (reached && document.activeElement === this.canvas) brush.frame(reached, brush.colours.text, 2, [4, 2]);
  }

  drawBox(brush, box) {
    const { domain } = box;
    if (domain === this.domain && this.path.length === 0 && domain.children) return;
    brush.box(box, box.depth);
    if (!box.named) return;
    const total = sumOf(nodesBelow(domain).map((node) => this.amounts.get(node.name)));
    const space = box.width - 12;
    const name = domain.path.length ? (space < 90 && domain.name) || this.title(domain.path) : "all nodes";
    const used = brush.text(name, box.x + 6, box.y + 10, space, { bold: true });
    const free = total.free === null ? "" : `${this.format(total.free)}/${this.format(total.capacity)} free`;
    if (space - used > 60) brush.text(free, box.x + 12 + used, box.y + 10, space - used - 8, { quiet: true });
    if (!box.sum) return;
    const bar = { x: box.x + 6, y: box.y + 19, width: box.width - 12, height: box.height - 25 };
    brush.bar(bar, total, this.scaleOf(nodesBelow(domain), total));
    if (nodesBelow(domain).some((node) => this.marked.has(node.name))) brush.frame(bar, brush.colours.accent, 2);
  }

  drawCell(brush, cell) {
    const { node } = cell;
    const amounts = this.amounts.get(node.name);
    const context = brush.context;
    context.globalAlpha = this.chosen.gang && this.marked.size && !this.marked.has(node.name) ? 0.4 : 1;
    const bar = cell.name ? { x: cell.x, y: cell.y + 16, width: cell.width, height: cell.height - 16 } : cell;
    if (this.plan.grain === "density") brush.shade(bar, amounts);
    else brush.bar(bar, amounts, this.scaleOf([node], amounts));
    if (cell.name) {
      const rest = amounts.free === null ? "" : `${this.format(amounts.free)} free`;
      context.font = '12px system-ui, "DejaVu Sans", sans-serif';
      const tail = cell.width > 100 ? context.measureText(rest).width : 0;
      brush.text(node.name, cell.x, cell.y + 8, cell.width - tail - (tail ? 6 : 0));
      if (tail) brush.text(rest, cell.x + cell.width - tail, cell.y + 8, tail + 1, { quiet: true });
    }
    if (node.closed) {
      context.strokeStyle = brush.colours.bad;
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(bar.x, bar.y + bar.height);
      context.lineTo(bar.x + bar.width, bar.y);
      context.stroke();
    }
    context.globalAlpha = 1;
    if (this.marked.has(node.name)) brush.frame(bar, brush.colours.accent, 2);
    if (node.name === this.chosen.node) brush.frame(bar, brush.colours.text, 2);
  }

  /** The amount of the whole width of a bar: the capacity (for the past that of now), else what is there. */
  scaleOf(nodes, amounts) {
    if (amounts.capacity !== null) return amounts.capacity;
    const now = d3.sum(nodes, (node) => node.scale?.[this.resource] ?? 0);
    return Math.max(now, amounts.bound + amounts.reserved, amounts.claimed);
  }

  hit(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const inside = (place) => x >= place.x && x < place.x + place.width && y >= place.y && y < place.y + place.height;
    const cell = this.plan.cells.find(inside);
    return { x, y, cell: this.places() === this.plan.cells ? cell : undefined, box: this.plan.boxes.findLast(inside) };
  }

  point(event) {
    const { x, y, cell, box } = this.hit(event);
    const words = cell ? this.describeCell(cell) : box?.domain.path.length ? this.describeBox(box) : [];
    this.canvas.classList.toggle("points", words.length > 0);
    this.tip(words, x, y);
  }

  tip(words, x, y) {
    const tip = $("tip");
    tip.hidden = words.length === 0;
    if (tip.hidden) return;
    tip.replaceChildren(...words.map((line, index) => el(index ? "div" : "strong", { text: line })));
    const left = Math.min(x + 14, this.plan.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    const above = y > this.plan.height / 2 && y > tip.offsetHeight + 8;
    tip.style.top = `${above ? y - tip.offsetHeight - 8 : y + 16}px`;
  }

  describeCell({ node }) {
    const [title, ...lines] = this.describe([node], node.name);
    return [title, ...(node.path.length ? [this.whole(node.path)] : []), ...lines];
  }

  describeBox(box) {
    const below = nodesBelow(box.domain);
    return this.describe(below, `${this.whole(box.domain.path)}, ${count(below.length, "node")}`);
  }

  /** The lines of the tip: the amounts of nodes. */
  describe(nodes, title) {
    const total = sumOf(nodes.map((node) => this.amounts.get(node.name)));
    const of = total.capacity === null ? "" : ` of ${this.format(total.capacity)}`;
    const lines = [title, `${this.resource}${of}, in ${unit(this.resource)}`];
    for (const part of ["bound", "reserved", "claimed", "other", "free"]) {
      if (total[part] !== 0) lines.push(`${WORDS[part] ?? part}: ${this.format(total[part])}`);
    }
    if (nodes.length === 1) {
      const [node] = nodes;
      if (node.closed) lines.push("accepts no new pods (cordoned, tainted or being deleted)");
      if (node.gone) lines.push("not in the cluster now");
      const gangs = [...new Set((node.had?.pods ?? []).map((pod) => pod.gang))];
      if (gangs.length) lines.push(`gangs: ${gangs.slice(0, 3).join(", ")}${gangs.length > 3 ? ", …" : ""}`);
    }
    return lines;
  }

  click(event) {
    const { cell, box } = this.hit(event);
    if (cell) this.on.node(cell.node.name);
    else if (box && box.domain.path.length > this.path.length) this.look(box.domain.path);
  }

  key(event) {
    const places = this.places();
    if (!places.length) return;
    if (event.key === "Escape" && this.path.length) this.look(this.path.slice(0, -1));
    else if (event.key === "Enter" && this.at >= 0) {
      const { node, domain } = places[this.at];
      if (node) this.on.node(node.name);
      else this.look(domain.path);
    } else if (event.key.startsWith("Arrow")) this.at = this.at < 0 ? 0 : this.step(places, event.key);
    else return;
    event.preventDefault();
    this.draw();
    const reached = this.places()[this.at];
    if (!reached) return;
    this.uncover(reached);
    const words = reached.node ? this.describeCell(reached) : this.describeBox(reached);
    setText($("map-text"), words.join("; "));
    this.tip(words, reached.x, reached.y + reached.height - 12);
  }

  /** Scroll until a place is visible. */
  uncover({ y, height }) {
    const stage = $("stage");
    if (y < stage.scrollTop) stage.scrollTop = y - HEAD;
    else if (y + height > stage.scrollTop + stage.clientHeight) stage.scrollTop = y + height + HEAD - stage.clientHeight;
  }

  /** Find the next place in a direction: in the same row or column first. */
  step(places, key) {
    const from = places[this.at];
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    let [best, price] = [this.at, Infinity];
    places.forEach((place, index) => {
      const [x, y] = [place.x - from.x, place.y - from.y];
      const along = x * dx + y * dy;
      const cost = along + 3 * Math.abs(x * dy + y * dx);
      if (along > 0 && cost < price) [best, price] = [index, cost];
    });
    return best;
  }
}
