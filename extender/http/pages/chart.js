// A small chart of amounts over a span of time: areas on one another, a line for the capacity, and a mark that keys and pointer move.

import { el, setText } from "./dom.js";
import { clock } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";
const SIZE = { width: 300, height: 44 };

function draw(tag, properties) {
  const shape = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) shape.setAttribute(name, String(value));
  return shape;
}

export class Chart {
  /**
   * @param title what is drawn. @param on `moment(time)`: the user wants the state of that time.
   */
  constructor(title, on) {
    this.on = on;
    this.points = [];
    this.mark = -1;
    this.picture = draw("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" });
    this.words = el("span", { class: "chart-words", "aria-live": "polite" });
    this.title = el("strong", { text: title });
    this.button = el("button", { type: "button", class: "chart-picture", title: "Click: the state of that time; arrow keys move the mark" }, this.picture);
    this.box = el("div", { class: "chart" }, el("p", {}, this.title, " ", this.words), this.button);
    this.button.addEventListener("pointermove", (event) => this.point(event));
    this.button.addEventListener("pointerleave", () => this.move(-1));
    this.button.addEventListener("blur", () => this.move(-1));
    this.button.addEventListener("keydown", (event) => this.key(event));
    this.button.addEventListener("click", () => { if (this.points[this.mark]) on.moment(this.points[this.mark].at); });
  }

  /**
   * @param title what is drawn. @param points [{at, parts: [{name, amount}]}], oldest first, all with the same names.
   * @param capacity amount of a line, or null. @param write an amount as text.
   */
  show(title, points, capacity, write) {
    setText(this.title, title);
    this.points = points;
    this.capacity = capacity;
    this.write = write;
    if (this.mark >= points.length) this.mark = -1;
    this.redraw();
  }

  redraw() {
    const { points, capacity } = this;
    const { width, height } = SIZE;
    const sums = points.map((point) => point.parts.reduce((sum, part) => sum + part.amount, 0));
    const most = Math.max(1e-9, capacity ?? 0, ...sums);
    const x = (index) => (index / Math.max(1, points.length - 1)) * width;
    const y = (amount) => height - (amount / most) * (height - 2);
    const shapes = [];
    const below = points.map(() => 0);
    (points[0]?.parts ?? []).forEach(({ name }, part) => {
      const edge = points.map((point, index) => [x(index), y(below[index] + point.parts[part].amount)]);
      const back = below.map((amount, index) => [x(index), y(amount)]).reverse();
      shapes.push(draw("path", { class: `area ${name}`, d: `M${[...edge, ...back].map((place) => place.map((n) => n.toFixed(1)).join(",")).join("L")}Z` }));
      points.forEach((point, index) => { below[index] += point.parts[part].amount; });
    });
    if (capacity) shapes.push(draw("line", { class: "capacity", x1: 0, x2: width, y1: y(capacity), y2: y(capacity) }));
    if (this.mark >= 0) shapes.push(draw("line", { class: "mark", x1: x(this.mark), x2: x(this.mark), y1: 0, y2: height }));
    this.picture.replaceChildren(...shapes);
    this.describe(sums);
  }

  describe(sums) {
    const { points, mark, capacity, write } = this;
    if (!points.length) {
      setText(this.words, "not known");
      return;
    }
    const at = mark >= 0 ? mark : points.length - 1;
    const named = points[at].parts.length > 1 ? `: ${points[at].parts.map((part) => `${write(part.amount)} ${part.name}`).join(", ")}` : "";
    const of = capacity ? ` of ${write(capacity)}` : "";
    const most = d3.maxIndex(sums);
    const text = mark >= 0 ? `${write(sums[at])} at ${clock(points[at].at)}${named}` : `${write(sums[at])}${of}${named}; most ${write(sums[most])} at ${clock(points[most].at)}`;
    setText(this.words, text);
    this.button.setAttribute("aria-label", `${this.title.textContent}, over 24 hours: ${text}`);
  }

  move(mark) {
    if (mark === this.mark) return;
    this.mark = mark;
    this.redraw();
  }

  point(event) {
    const { left, width } = this.button.getBoundingClientRect();
    this.move(Math.max(0, Math.min(this.points.length - 1, Math.round(((event.clientX - left) / width) * (this.points.length - 1)))));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12 }[event.key];
    const last = this.points.length - 1;
    if (step === undefined || last < 0) return;
    event.preventDefault();
    this.move(Math.max(0, Math.min(last, (this.mark < 0 ? last : this.mark) + step)));
  }
}
