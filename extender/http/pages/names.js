// Names of objects as /v1 writes them: Kind/namespace/name, of a node Kind/name; and keys of labels.

/** "Kind namespace/name" of what is written Kind/namespace/name. */
export const spaced = (name) => name.replace("/", " ");

/** Split Kind/namespace/name into the kind and the rest. What stands for a name that the reader does not see has no kind. */
export const apart = (name) => (name.includes("/") ? [name.slice(0, name.indexOf("/")), name.slice(name.indexOf("/") + 1)] : ["", name]);

/** The last part of the key of a label or of a kind: "rack" of topology.example.com/rack. */
export const short = (key) => key.slice(key.lastIndexOf("/") + 1);
