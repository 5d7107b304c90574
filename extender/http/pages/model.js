// The data that is shown, computed from the answers of /v1; nothing here changes the page.
//
// Live, capacity and other pods come from /v1/nodes. For the past the log has only the gangs: capacity, other pods and
// free capacity are null then, which means not known, and is never drawn as free.

import { byName } from "./units.js";

const WELL_KNOWN = /^topology\./;

// what holds free capacity for later: for preemptors, for members that are moved here, for replacements, for gangs that wait
const CLAIMS = ["preemption_claims", "move_claims", "replacement_holds", "capacity_holds"];

/** Amounts of one resource on a node or in a domain. null: not known. */
export function amountsOf(node, resource) {
  const of = (part) => node.had?.[part]?.[resource] ?? 0;
  const [recorded, reserved, claimed] = [of("bound"), of("reserved"), d3.sum(CLAIMS, of)];
  if (!node.now) return { capacity: null, bound: recorded, reserved, claimed, other: null, free: null };
  const capacity = node.now.allocatable[resource] ?? 0;
  // of members that were bound before the log began, or a moment ago, the log has no amounts
  const running = Math.max(recorded, (node.now.members[resource] ?? 0) - reserved);
  const moved = running + (node.moved?.[resource] ?? 0); // below 0: also pods of no gang leave
  const bound = Math.max(0, moved);
  const other = Math.max(0, (node.now.ordinary[resource] ?? 0) + Math.min(0, moved));
  // a claim holds what is free; victims still use the rest of it
  const left = Math.max(0, capacity - bound - reserved - other);
  return { capacity, bound, reserved, claimed, other, free: Math.max(0, left - claimed) };
}

/** Sum amounts; the sum is not known (null) if one part is not known. */
export function sumOf(list) {
  const total = { capacity: 0, bound: 0, reserved: 0, claimed: 0, other: 0, free: 0 };
  for (const amounts of list) {
    for (const part of Object.keys(total)) {
      total[part] = total[part] === null || amounts[part] === null ? null : total[part] + amounts[part];
    }
  }
  return total;
}

/**
 * Join a state and the nodes of now.
 *
 * @param state StateAt of /v1/state, or null (the log is empty).
 * @param fleet Nodes of /v1/nodes, or null (no answer).
 * @param past whether the state is not the newest one: `fleet` then has only the domains of nodes, not their amounts.
 */
export function picture(state, fleet, past) {
  const had = new Map((state?.nodes ?? []).map((node) => [node.node, node]));
  const now = new Map((fleet?.nodes ?? []).map((node) => [node.node, node]));
  const names = [...new Set([...had.keys(), ...now.keys()])].sort(byName);
  const nodes = names.map((name) => {
    const then = had.get(name);
    const here = now.get(name);
    return {
      name,
      had: then,
      now: past ? undefined : here,
      scale: here?.allocatable, // the whole width of its bar, also for the past
      labels: past ? { ...here?.labels, ...then?.topology } : { ...then?.topology, ...here?.labels },
      gone: here === undefined,
      closed: !past && here !== undefined && (here.unschedulable || here.deleting || here.taints.some(keepsOff)),
    };
  });
  const keys = keysOf(state, fleet, nodes);
  for (const node of nodes) node.path = keys.map((key) => node.labels[key] ?? "");
  return { nodes, keys, resources: resourcesOf(nodes), past };
}

/**
 * Return a picture in which the nodes that moves change are marked.
 *
 * @param changes Map of their names to what they have more after the moves, {resource: amount}. @param after whether to show that.
 */
export function withMoves(pictured, changes, after) {
  const nodes = pictured.nodes.map((node) => {
    const moved = changes.get(node.name);
    return moved ? { ...node, moved: after ? moved : {} } : node;
  });
  return { ...pictured, nodes };
}

/** Return the changes that moves of members make, as `withMoves` takes them. @param state StateAt. @param moves of MovesUnderWay. */
export function changesOf(state, moves) {
  const requests = new Map((state?.nodes ?? []).flatMap((node) => node.pods.map((pod) => [`${node.node}/${pod.uid}`, pod.requests])));
  const changes = new Map();
  for (const move of moves) {
    for (const [name, sign] of [[move.from, -1], [move.to, 1]]) {
      const sums = changes.get(name) ?? {};
      for (const [resource, amount] of Object.entries(requests.get(`${move.from}/${move.uid}`) ?? {})) sums[resource] = (sums[resource] ?? 0) + sign * amount;
      changes.set(name, sums);
    }
  }
  return changes;
}

const keepsOff = (taint) => taint.effect !== "PreferNoSchedule";

/** The topology labels in use, outer to inner: what groups ask for, then what admissions recorded, then well-known ones. */
function keysOf(state, fleet, nodes) {
  const used = new Set(fleet?.topology_keys);
  for (const gang of state?.gangs ?? []) {
    for (const group of gang.groups) Object.keys(group.domain).forEach((key) => used.add(key));
  }
  for (const node of state?.nodes ?? []) Object.keys(node.topology).forEach((key) => used.add(key));
  for (const node of nodes) {
    for (const key of Object.keys(node.labels)) if (WELL_KNOWN.test(key)) used.add(key);
  }
  const counted = [...used].map((key) => {
    const values = nodes.map((node) => node.labels[key]).filter((value) => value !== undefined);
    return { key, domains: new Set(values).size, nodes: values.length };
  });
  // one domain per node is the node itself
  return counted
    .filter(({ domains, nodes: there }) => domains > 0 && (there === 1 || domains < there))
    .sort((a, b) => a.domains - b.domains || byName(a.key, b.key))
    .map(({ key }) => key);
}

function resourcesOf(nodes) {
  const totals = new Map();
  for (const node of nodes) {
    for (const part of [node.scale, node.had?.bound, node.had?.reserved, ...CLAIMS.map((part) => node.had?.[part])]) {
      for (const [name, amount] of Object.entries(part ?? {})) totals.set(name, (totals.get(name) ?? 0) + amount);
    }
  }
  const rank = (name) => (name.includes("/") ? 0 : name === "cpu" ? 1 : name === "memory" ? 2 : 3);
  return [...totals.keys()].sort((a, b) => rank(a) - rank(b) || byName(a, b));
}

/** The nodes as a tree of domains: {name, path, children} down to {name, path, nodes}. */
export function domains(nodes, depth, path = []) {
  const name = path.at(-1) ?? "";
  const level = path.length;
  if (level === depth) return { name, path, nodes };
  const parts = d3.group(nodes, (node) => node.path[level]);
  const children = [...parts.keys()].sort(byName).map((value) => domains(parts.get(value), depth, [...path, value]));
  return { name, path, children };
}

/**
 * Return a domain of a group with the domains around it, the outermost first: [[key, value], ...]. A name such as r1 may
 * be that of a rack in every zone.
 *
 * @param domain {key: value} of the group. @param pictured of `picture`. @param names of nodes of its members; none: of any.
 */
export function placeOf(domain, pictured, names) {
  const inside = pictured.nodes.filter((node) => (!names.size || names.has(node.name)) && Object.entries(domain).every(([key, value]) => node.labels[key] === value));
  const last = Math.max(...Object.keys(domain).map((key) => pictured.keys.indexOf(key)));
  const around = pictured.keys.slice(0, last + 1).filter((key) => !(key in domain)).flatMap((key) => {
    const values = new Set(inside.map((node) => node.labels[key] ?? ""));
    return values.size === 1 && !values.has("") ? [[key, [...values][0]]] : [];
  });
  return [...around, ...Object.entries(domain)];
}

/** Find a part of the tree of domains by its path; the whole where there is no such part (any more). */
export function within(root, path) {
  let here = root;
  for (const value of path) {
    const next = here.children?.find((child) => child.name === value);
    if (next === undefined) return root;
    here = next;
  }
  return here;
}

export const nodesBelow = (domain) => domain.nodes ?? domain.children.flatMap(nodesBelow);

/**
 * The tree of a gang, root first, with what each level has: {group, parent, bound, reserved, word, held, children,
 * members}. null where neither log nor cluster has its groups.
 *
 * @param gang GangAt of /v1/state.
 * @param tree TreeNow of the cluster; null for the past.
 */
export function gangTree(gang, tree) {
  const recorded = new Map(gang.groups.map((group) => [idOf(group), group]));
  const groups = tree?.groups ?? gang.groups;
  if (groups.length === 0) return null;
  const known = new Set(groups.map(idOf));
  const isTop = (group) => !known.has(parentOf(group));
  const top = groups.find(isTop);
  const rows = groups.filter((group) => group === top || !isTop(group));
  const placed = d3.group(gang.members, (member) => member.group);
  const hierarchy = d3.stratify().id(idOf).parentId((group) => (group === top ? "" : parentOf(group)))(rows);
  return hierarchy.eachAfter((level) => fillLevel(level, recorded.get(level.id), placed.get(level.data.name) ?? []));
}

// a PodGroup and a CompositePodGroup may have the same name
const idOf = (group) => `${group.kind}/${group.name}`;
const parentOf = (group) => `CompositePodGroup/${group.parent}`;

/** Set what a level has and needs, from its members or from the levels below it. */
function fillLevel(level, recorded, placed) {
  const group = level.data;
  const children = level.children ?? [];
  const leaf = group.kind === "PodGroup";
  level.domain = recorded?.domain ?? {};
  level.wishes = recorded?.wishes ?? [];
  level.members = leaf ? membersOf(group, placed) : [];
  const total = (part) => d3.sum(children, (child) => child[part]);
  level.bound = leaf ? placed.filter((member) => member.state === "bound").length : total("bound");
  level.reserved = leaf ? placed.filter((member) => member.state === "reserved").length : total("reserved");
  level.waiting = leaf ? level.members.filter((member) => member.state === "waits").length : total("waiting");
  const running = leaf ? level.bound : children.filter((child) => child.word === "bound").length;
  level.held = leaf ? level.bound + level.reserved : children.filter((child) => ["bound", "reserved"].includes(child.word)).length;
  const needed = Math.max(1, group.minimum);
  if (running >= needed) level.word = "bound";
  else if (level.held >= needed) level.word = "reserved";
  else level.word = level.bound + level.reserved > 0 ? "partly" : "waits";
}

function membersOf(group, placed) {
  const there = new Set(placed.map((member) => member.uid));
  const others = (group.members?.filter?.((member) => !there.has(member.uid)) ?? []).map((member) => ({
    pod: member.pod,
    uid: member.uid,
    node: member.node || "",
    state: member.node ? "not in the log" : "waits",
    gates: member.gates,
  }));
  return [...placed, ...others].sort((a, b) => byName(a.pod, b.pod));
}
