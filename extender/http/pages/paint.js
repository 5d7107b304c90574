// Draw on the canvas: the amounts of a node or a domain, as a bar of parts.

const FONT = '12px system-ui, "DejaVu Sans", sans-serif';
const BOLD = `600 ${FONT}`;
const UNITS_MAX = 16; // up to this number, units of a resource are separated by lines
const SHADES = 5; // as the classes of #ramp in the style sheet

/** Return the colours of the style sheet, which has light and dark ones. */
export function palette(element) {
  const style = getComputedStyle(element);
  const names = ["bound", "reserved", "claimed", "other", "free", "unknown", "text", "quiet", "line", "ground", "box", "accent", "bad"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

export class Brush {
  constructor(context, colours) {
    this.context = context;
    this.colours = colours;
    this.unknown = this.stripes(colours.box, colours.unknown, false);
    this.claimed = this.stripes(colours.box, colours.claimed, true);
    this.shades = d3.quantize(d3.interpolateRgb(colours.free, colours.bound), SHADES);
  }

  /** Make a pattern of diagonal stripes. */
  stripes(ground, line, heavy) {
    const tile = new OffscreenCanvas(6, 6);
    const drawn = tile.getContext("2d");
    drawn.fillStyle = ground;
    drawn.fillRect(0, 0, 6, 6);
    drawn.strokeStyle = line;
    drawn.lineWidth = heavy ? 3 : 1;
    drawn.beginPath();
    for (const shift of [-6, 0, 6]) {
      drawn.moveTo(shift - 1, heavy ? -1 : 7);
      drawn.lineTo(shift + 7, heavy ? 7 : -1);
    }
    drawn.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  /**
   * Draw a bar of what there is; the rest is free, or not known.
   *
   * @param scale amount that the whole width stands for.
   */
  bar({ x, y, width, height }, amounts, scale) {
    const { context, colours } = this;
    context.fillStyle = amounts.free === null ? this.unknown : colours.free;
    context.fillRect(x, y, width, height);
    const whole = Math.max(scale, amounts.bound + amounts.reserved + (amounts.other ?? 0));
    if (whole > 0) this.parts({ x, y, width, height }, amounts, whole);
    if (scale > 0 && Number.isInteger(scale) && scale <= UNITS_MAX && width / scale >= 5) {
      context.fillStyle = colours.box;
      for (let unit = 1; unit < scale; unit += 1) context.fillRect(x + (unit * width) / scale - 0.5, y, 1, height);
    }
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  /** Fill a square by the share that is used, in steps; stripes where that is not known. */
  shade({ x, y, width, height }, amounts) {
    const { context } = this;
    const { capacity, free } = amounts;
    const share = capacity ? (capacity - free) / capacity : 0;
    context.fillStyle = free === null ? this.unknown : this.shades[Math.ceil(Math.min(1, share) * (SHADES - 1))];
    context.fillRect(x, y, width, height);
  }

  parts({ x, y, width, height }, amounts, whole) {
    const { context, colours } = this;
    let from = x;
    for (const part of ["bound", "reserved", "other"]) {
      const long = ((amounts[part] ?? 0) / whole) * width;
      context.fillStyle = colours[part];
      context.fillRect(from, y, long, height);
      from += long;
    }
    // claims are drawn at the end: over free capacity, and over victims that are not gone
    const long = Math.min(1, amounts.claimed / whole) * width;
    context.fillStyle = this.claimed;
    context.fillRect(Math.min(from, x + width - long), y, long, height);
  }

  /** Write a text, cut so that it fits. */
  text(words, x, y, space, { bold = false, quiet = false } = {}) {
    const { context, colours } = this;
    context.font = bold ? BOLD : FONT;
    context.fillStyle = quiet ? colours.quiet : colours.text;
    context.textBaseline = "middle";
    const shown = fitted(context, words, space);
    context.fillText(shown, x, y);
    return context.measureText(shown).width;
  }

  box({ x, y, width, height }, depth) {
    const { context, colours } = this;
    context.fillStyle = depth % 2 ? colours.box : colours.ground;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, width - 1, height - 1, 5);
    context.fill();
    context.stroke();
  }

  frame({ x, y, width, height }, colour, thick, dash = []) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.setLineDash(dash);
    context.strokeRect(x - 1, y - 1, width + 2, height + 2);
    context.setLineDash([]);
  }
}

/** Cut a text to a width, with "…" in the middle: names differ at both ends. By whole characters, also wide ones. */
export function fitted(context, words, space) {
  if (space <= 0) return "";
  const whole = words.length > 300 ? `${words.slice(0, 150)}…${words.slice(-150)}` : words;
  if (context.measureText(whole).width <= space) return whole;
  const letters = [...whole];
  let [least, most] = [0, letters.length];
  const cut = (kept) => `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(letters.length - Math.floor(kept / 2)).join("")}`;
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (context.measureText(cut(middle)).width <= space) least = middle;
    else most = middle - 1;
  }
  return least > 0 ? cut(least) : "";
}
