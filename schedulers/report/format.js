// Formats times and numbers, and selects round values for axes.

const MINUTE = 60, HOUR = 3600, DAY = 86400;

// Formats a duration in at most two units.
function formatSpan(seconds) {
  if (!Number.isFinite(seconds)) return "-";
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${+(seconds * 1000).toPrecision(3)} ms`;
  if (seconds < MINUTE) return `${+seconds.toPrecision(3)} s`;
  const twoUnits = (big, small, a, b) => {
    const units = Math.round(seconds / small);
    const [count, rest] = [Math.floor(units / (big / small)), units % (big / small)];
    return rest ? `${count.toLocaleString("en")} ${a} ${rest} ${b}` : `${count.toLocaleString("en")} ${a}`;
  };
  if (seconds < HOUR) return twoUnits(MINUTE, 1, "min", "s");
  if (seconds < DAY) return twoUnits(HOUR, MINUTE, "h", "min");
  return twoUnits(DAY, HOUR, "d", "h");
}

const pad = (n) => String(n).padStart(2, "0");

// Formats a time as days and clock time, with the precision of `step`.
function formatTime(seconds, step = 1) {
  const fine = step < 1 ? Math.min(3, Math.ceil(-Math.log10(step))) : 0;
  const rounded = Math.round(seconds * 10 ** fine) / 10 ** fine;
  const day = Math.floor(rounded / DAY), rest = rounded - day * DAY;
  const days = `${day.toLocaleString("en")} d`;
  if (step >= DAY) return days;
  const clock = `${pad(Math.floor(rest / HOUR))}:${pad(Math.floor((rest % HOUR) / MINUTE))}`;
  const s = rest % MINUTE;
  const full = step >= MINUTE ? clock : `${clock}:${pad(Math.floor(s))}${fine ? (s % 1).toFixed(fine).slice(1) : ""}`;
  return `${days} ${full}`;
}

const TIME_STEPS = [
  0.001, 0.01, 0.1, 1, 2, 5, 10, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR,
  3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 60 * DAY, 180 * DAY,
  365 * DAY, 1000 * DAY, 1e4 * DAY,
];

function timeTicks(from, until, maxTicks) {
  const step = TIME_STEPS.find((s) => (until - from) / s <= maxTicks) ?? (until - from);
  const ticks = [];
  for (let i = Math.ceil(from / step); i * step <= until; i++) ticks.push(i * step);
  return [ticks, step];
}

function numberTicks(limit) {
  const power = 10 ** Math.floor(Math.log10(limit));
  const step = [power / 5, power / 2, power, 2 * power].find((s) => limit / s <= 5);
  const ticks = [];
  for (let i = 0; i * step <= limit * 1.0001; i++) ticks.push(i * step);
  return ticks;
}

const LOG_MARKS = [
  [0.001, "1 ms"], [0.01, "10 ms"], [0.1, "0.1 s"], [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"],
  [HOUR, "1 h"], [6 * HOUR, "6 h"], [DAY, "1 d"], [7 * DAY, "7 d"], [30 * DAY, "30 d"], [365 * DAY, "1 year"],
];

const MORE_LOG_MARKS = [
  [3, "3 s"], [30, "30 s"], [3 * MINUTE, "3 min"], [30 * MINUTE, "30 min"], [2 * HOUR, "2 h"], [12 * HOUR, "12 h"],
  [3 * DAY, "3 d"],
];

// Marks of a logarithmic axis; a short axis has additional ones.
function logMarks(low, high) {
  if (high - low > Math.log(300)) return LOG_MARKS;
  return [...LOG_MARKS, ...MORE_LOG_MARKS].sort(([a], [b]) => a - b);
}

const escapeHtml = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const formatCount = (n) => Math.round(n).toLocaleString("en");
const rows = (pairs) => `<dl>${pairs.map(([a, b]) => `<dt>${a}</dt><dd>${b}</dd>`).join("")}</dl>`;
