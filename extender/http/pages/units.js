// Amounts and times as people read them. Amounts arrive in the units of requests: CPU in millicores, memory and
// storage in bytes, the rest in units. Times arrive in RFC 3339, UTC.

const GIB = 2 ** 30;
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

const isBytes = (resource) => /^(memory|ephemeral-storage|hugepages-.*)$/.test(resource);

/** The unit in which `amount` writes a resource. */
export function unit(resource) {
  if (resource === "cpu") return "cores";
  return isBytes(resource) ? "GiB" : "units";
}

/** Write an amount without its unit. */
export function amount(resource, value) {
  if (resource === "cpu") return number.format(value / 1000);
  return number.format(isBytes(resource) ? value / GIB : value);
}

export const count = (value, one, many = `${one}s`) => `${number.format(value)} ${value === 1 ? one : many}`;

const localForm = new Intl.DateTimeFormat("en-GB", {
  dateStyle: "medium", timeStyle: "medium",
});
const localClock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** "2026-11-20 03:12:00.123 UTC": cut to milliseconds. */
export const utc = (time) => `${time.slice(0, 10)} ${time.slice(11, 23).replace(/Z$/, "")} UTC`;

/** "03:12 UTC", for charts. */
export const clock = (time) => `${time.slice(11, 16)} UTC`;

/** "20 Nov 2026, 04:12:00 (Europe/Berlin)" */
export const local = (time) => `${localForm.format(new Date(time))} (${zone})`;

/** The same for columns: without the zone, and without the date where it is that of `today`. */
export const stamp = (time, today) => utc(time).slice(time.slice(0, 10) === today.slice(0, 10) ? 11 : 0, -4);

/** "04:12:00 (Europe/Berlin)" */
export const localTime = (time) => `${localClock.format(new Date(time))} (${zone})`;

/** Names are compared as people count: node-9 before node-10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

const PARTS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** Seconds as the two largest units: "2 d 4 h", "3 min 12 s", "0.4 s". */
export function duration(seconds) {
  if (seconds < 1) return `${Number(Math.max(0, seconds).toFixed(1))} s`;
  const first = PARTS.findIndex(([, size]) => seconds >= size);
  let left = Math.floor(seconds);
  const words = PARTS.slice(first, first + 2).map(([name, size]) => {
    const whole = Math.floor(left / size);
    left -= whole * size;
    return whole ? `${whole} ${name}` : "";
  });
  return words.filter(Boolean).join(" ");
}

/** The time since a time of the service, as `duration` writes it. */
export const age = (time, now = Date.now()) => duration((now - Date.parse(time)) / 1000);
