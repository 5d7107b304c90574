// Spans of time that end now, as `24h` or `7d`; an empty one has no begin.

/** That of an address without one. */
export const SPAN = "24h";

const UNITS_MS = { h: 3600e3, d: 86400e3 };

/** Return the begin of a span in RFC 3339; undefined for `all`, and for what is no span. */
export function sinceOf(span) {
  const [, number, unit] = /^(\d{1,4})([hd])$/.exec(span) ?? [];
  return number === undefined ? undefined : new Date(Date.now() - Number(number) * UNITS_MS[unit]).toISOString();
}
