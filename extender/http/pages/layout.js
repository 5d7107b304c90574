// The layout of the map: domains within domains, nodes in a grid in the lowest ones.
// Nodes get the largest size with which all of them fit the height.

const FORMS = [
  { width: 116, height: 42, name: true },
  { width: 78, height: 36, name: true },
  { width: 44, height: 22 },
  { width: 26, height: 16 },
  { width: 16, height: 11 },
  { width: 9, height: 8 },
  { width: 6, height: 6 },
];
const SUMS = [
  { width: 132, height: 46 },
  { width: 104, height: 38 },
  { width: 76, height: 38 },
];
export const SUMS_FROM = 3000; // nodes; from this number on, sums are drawn by default
const HEADER = 18;
const PAD = 6;
const GAP = { form: 3, domain: 8 };

/**
 * Lay out a tree of domains.
 *
 * @returns {width, height, boxes: [{domain, x, y, width, height, sum}], cells: [{node, x, y, width, height, name}]}
 */
export function layout(root, { width, height, sums }) {
  let found = null;
  for (const form of sums ? SUMS : FORMS) {
    found = place(root, width, form, sums);
    if (found.height <= height) return found;
  }
  return found;
}

function place(root, width, form, sums) {
  const tree = d3.hierarchy(root, (domain) => domain.children);
  const made = { width, height: 0, boxes: [], cells: [] };
  const size = measure(tree, width, form, sums);
  made.height = Math.ceil(size.height);
  put(tree, 0, 0, form, sums, made);
  return made;
}

/** Set `size` and the places of the children of a domain, for a maximum width. */
function measure(domain, available, form, sums) {
  const inner = available - 2 * PAD;
  if (!domain.children) {
    domain.size = sums ? { ...form } : gridSize(domain.data.nodes.length, inner, form);
    return domain.size;
  }
  const header = domain.data.path.length === 0 ? PAD : HEADER; // the whole cluster has no box
  let [x, y, row, right] = [0, 0, 0, 0];
  for (const child of domain.children) {
    const size = measure(child, inner, form, sums);
    if (x > 0 && x + size.width > inner) {
      [x, y, row] = [0, y + row + GAP.domain, 0];
    }
    child.offset = { x: PAD + x, y: header + y };
    x += size.width + GAP.domain;
    row = Math.max(row, size.height);
    right = Math.max(right, x - GAP.domain);
  }
  domain.size = { width: right + 2 * PAD, height: header + y + row + PAD };
  return domain.size;
}

function gridSize(count, inner, form) {
  const step = { x: form.width + GAP.form, y: form.height + GAP.form };
  const most = Math.max(1, Math.floor((inner + GAP.form) / step.x));
  const wanted = Math.ceil(Math.sqrt((count * step.y * 1.8) / step.x));
  const columns = Math.max(1, Math.min(most, Math.max(wanted, Math.ceil(60 / step.x))));
  const rows = Math.ceil(count / columns);
  return {
    columns,
    width: Math.max(columns * step.x - GAP.form, 56) + 2 * PAD,
    height: HEADER + rows * step.y - GAP.form + PAD,
  };
}

function put(domain, x, y, form, sums, made) {
  const { width, height, columns } = domain.size;
  made.boxes.push({ domain: domain.data, x, y, width, height, depth: domain.depth, sum: sums && !domain.children });
  for (const child of domain.children ?? []) put(child, x + child.offset.x, y + child.offset.y, form, sums, made);
  if (domain.children || sums) return;
  domain.data.nodes.forEach((node, index) => {
    made.cells.push({
      node,
      x: x + PAD + (index % columns) * (form.width + GAP.form),
      y: y + HEADER + Math.floor(index / columns) * (form.height + GAP.form),
      width: form.width,
      height: form.height,
      name: form.name === true,
    });
  });
}
