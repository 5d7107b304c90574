// The layout of the map: domains within domains, nodes in a grid in the lowest ones.
// Nodes get the largest size with which all of them fit the height, but none that is too small to hit.

const FORMS = [
  { width: 116, height: 42, name: true },
  { width: 78, height: 36, name: true },
  { width: 44, height: 26 },
  { width: 26, height: 24 },
  { width: 18, height: 16 },
  { width: 12, height: 12 },
];
export const DENSITY_FROM = 2001; // nodes; from this number on, each is one square of its density by default
const LEAST = [[800, 24], [DENSITY_FROM, 16], [Infinity, 12]]; // below so many nodes, the least size of one in pixels
const DENSE = [{ width: 9, height: 9, pad: 3 }, { width: 6, height: 6, pad: 3 }];
const SUMS = [
  { width: 132, height: 46 },
  { width: 104, height: 38 },
  { width: 76, height: 38 },
];
const HEADER = 18;
const PAD = 6;
const GAP = { form: 3, domain: 8, dense: 4 };

/** The space above the nodes of a domain: its name, but in the density of many of them. */
const topOf = (domain, grain) => (grain === "density" && domain.depth > 0 ? DENSE[0].pad : HEADER);

/**
 * Lay out a tree of domains.
 *
 * @param grain `nodes`; `density`: nodes as squares, only their domains are places to hit; `sums`: domains as bars.
 * @returns {width, height, grain, boxes: [{domain, x, y, width, height, sum}], cells: [{node, x, y, width, height, name}]}
 */
export function layout(root, { width, height, grain, count }) {
  const [, least] = LEAST.find(([below]) => count < below);
  const forms = { nodes: FORMS.filter((form) => form.height >= least), density: DENSE, sums: SUMS }[grain];
  let found = null;
  for (const form of forms) {
    found = place(root, width, form, grain);
    if (found.height <= height) return found;
  }
  return found;
}

function place(root, width, form, grain) {
  const tree = d3.hierarchy(root, (domain) => domain.children);
  const made = { width, height: 0, grain, boxes: [], cells: [] };
  const size = measure(tree, width, form, grain);
  made.height = Math.ceil(size.height);
  put(tree, 0, 0, form, grain, made);
  return made;
}

/** Set `size` and the places of the children of a domain, for a maximum width. */
function measure(domain, available, form, grain) {
  const inner = available - 2 * PAD;
  if (!domain.children) {
    domain.size = grain === "sums" ? { ...form } : gridSize(domain.data.nodes.length, inner, form, topOf(domain, grain));
    return domain.size;
  }
  const header = domain.data.path.length === 0 ? PAD : HEADER; // the whole cluster has no box
  const gap = grain === "density" ? GAP.dense : GAP.domain;
  let [x, y, row, right] = [0, 0, 0, 0];
  for (const child of domain.children) {
    const size = measure(child, inner, form, grain);
    if (x > 0 && x + size.width > inner) {
      [x, y, row] = [0, y + row + gap, 0];
    }
    child.offset = { x: PAD + x, y: header + y };
    x += size.width + gap;
    row = Math.max(row, size.height);
    right = Math.max(right, x - gap);
  }
  domain.size = { width: right + 2 * PAD, height: header + y + row + PAD };
  return domain.size;
}

function gridSize(count, inner, form, top) {
  const dense = DENSE.includes(form);
  const between = dense ? 1 : GAP.form;
  const pad = form.pad ?? PAD;
  const step = { x: form.width + between, y: form.height + between };
  const most = Math.max(1, Math.floor((inner + between) / step.x));
  const wanted = Math.ceil(Math.sqrt((count * step.y * 1.8) / step.x));
  const columns = Math.max(1, Math.min(most, Math.max(wanted, Math.ceil((dense ? 18 : 60) / step.x))));
  const rows = Math.ceil(count / columns);
  return {
    columns,
    step,
    top,
    width: Math.max(columns * step.x - between, dense ? 18 : 56) + 2 * pad,
    height: top + Math.max(rows * step.y - between, dense ? 18 : 0) + pad,
    pad,
  };
}

function put(domain, x, y, form, grain, made) {
  const { width, height, columns, step, top, pad } = domain.size;
  const named = grain !== "density" || Boolean(domain.children) || domain.depth === 0;
  made.boxes.push({ domain: domain.data, x, y, width, height, depth: domain.depth, sum: grain === "sums" && !domain.children, dense: grain === "density" && !domain.children, named });
  for (const child of domain.children ?? []) put(child, x + child.offset.x, y + child.offset.y, form, grain, made);
  if (domain.children || grain === "sums") return;
  domain.data.nodes.forEach((node, index) => {
    made.cells.push({
      node,
      x: x + pad + (index % columns) * step.x,
      y: y + top + Math.floor(index / columns) * step.y,
      width: form.width,
      height: form.height,
      name: form.name === true,
    });
  });
}
