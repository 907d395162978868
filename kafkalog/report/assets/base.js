'use strict';
// Elements, words and the registry of pages: what every other file of the page builds on.
//
// Names and records of a log are hostile.  So there is one way to make an element, `h`, and text becomes nothing but
// text.  Numbers are shown in the words of the command line: `size` is _shown.size, `span` is toolbox.words.span,
// `moment` is _shown.moment.  Knows nothing of tables and pictures.

const TIME_MAX = 253402300799999;  // the last ms of the year 9999, after which Python's datetime ends
const NONE = '–';

const SVG = 'http://www.w3.org/2000/svg';

/** Returns an element.  `properties` are attributes; `on` is {event: function}; a child is text, an element or a list. */
function h(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === 'on') {
      for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    } else if (value === false || value === null || value === undefined) {
      continue;
    } else if (/^(on|style$|srcdoc$)/i.test(name) || (/^(href|src)$/i.test(name) && !/^(#|\/[a-z]|blob:)/.test(value))) {
      throw new Error(`h: found ${name}, expected a harmless attribute`);
    } else {
      node.setAttribute(name, value === true ? '' : String(value));
    }
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
}

/** Returns an icon: a path in a box of 16 by 16. */
function icon(path) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('aria-hidden', 'true');
  svg.classList.add('icon');
  const line = document.createElementNS(SVG, 'path');
  line.setAttribute('d', path);
  svg.append(line);
  return svg;
}

// --- words ---------------------------------------------------------------------------------------------------

/** One digit after the point, as Python's ".1f": exact halves go to the even digit. */
function fixed(value) {
  return Math.abs(value * 4) % 4 === 1 ? (value > 0 ? value - 0.01 : value + 0.01).toFixed(1) : value.toFixed(1);
}

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let value = Number(bytes), unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return unit === 0 ? `${Math.trunc(value)} B` : `${fixed(value)} ${units[unit]}`;
}

function span(ms) {
  for (const [unit, length] of [['d', 86400000], ['h', 3600000], ['min', 60000], ['s', 1000]]) {
    if (Math.abs(ms) >= length) return `${fixed(ms / length)} ${unit}`;
  }
  return `${ms} ms`;
}

/** A whole number with commas.  Numbers above 2^53 come as text. */
function count(number) {
  return typeof number === 'string' ? number.replace(/\B(?=(\d{3})+$)/g, ',') : number.toLocaleString('en-US');
}

/** A count with its noun, as toolbox.words.counted: "1 batch", "2 batches", "2 entries". */
function counted(number, noun) {
  if (number === 1) return `1 ${noun}`;
  if (/[rtc]y$/.test(noun)) return `${count(number)} ${noun.slice(0, -1)}ies`;
  return `${count(number)} ${noun}${/(ch|x)$/.test(noun) ? 'es' : 's'}`;
}

function ratio(number) {
  if (Number.isInteger(number)) return count(number);
  const digits = Math.abs(number) >= 100 ? 0 : Math.abs(number) >= 10 ? 1 : 2;
  return number.toLocaleString('en-US', {minimumFractionDigits: digits, maximumFractionDigits: digits});
}

const clock = {local: false};

function iso(ms) {
  return ms > TIME_MAX ? `@${ms}` : new Date(ms).toISOString();
}

/** A time as ISO 8601: in UTC with Z, or in local time with its offset if the reader asked for that. */
function moment(ms) {
  if (ms === null || ms < 0) return NONE;
  if (!clock.local || ms > TIME_MAX) return iso(ms);
  const ahead = -new Date(ms).getTimezoneOffset();
  const two = (value) => String(Math.trunc(Math.abs(value))).padStart(2, '0');
  const zone = `${ahead < 0 ? '-' : '+'}${two(ahead / 60)}:${two(ahead % 60)}`;
  return new Date(ms + ahead * 60000).toISOString().replace('Z', zone);
}

/** A time relative to another, as the command line's tables show it: "2.3 d ago". */
function ago(ms, now) {
  if (ms === null || ms < 0) return NONE;
  const age = now - ms;
  if (Math.abs(age) < 1000) return 'now';
  return age > 0 ? `${span(age)} ago` : `in ${span(-age)}`;
}

/** How a kind of column is shown as text.  tables.py names the kinds. */
const WORDS = {
  text: String,
  count,
  bytes: size,
  offset: count,
  time: moment,
  duration: span,
  share: (value) => `${fixed(value * 100)} %`,
  ratio,
  flag: (value) => (value ? 'yes' : 'no'),
  command: String,
};
const NUMBERS = new Set(['count', 'bytes', 'offset', 'time', 'duration', 'share', 'ratio']);

function shown(value, kind) {
  return value === null || value === undefined ? NONE : WORDS[kind](value);
}

// --- places --------------------------------------------------------------------------------------------------

/** Returns the address of a page: address('topic', 'orders') is "#topic/orders". */
function address(...parts) {
  return `#${parts.map((part) => encodeURIComponent(escaped(String(part)))).join('/')}`;
}

/** Escapes half of a surrogate pair, which may be in a file's name, but not in an address. */
function escaped(text) {
  const half = (found) => `~${found.charCodeAt(0).toString(16)}`;
  return text.replaceAll('~', '~~').replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, half);
}

function unescaped(text) {
  return text.replace(/~(~|[0-9a-f]{4})/g, (_, found) => (found === '~' ? '~' : String.fromCharCode(parseInt(found, 16))));
}

/** Returns a link with a text; long names are shortened by the style sheet and whole in the title. */
function link(to, text) {
  return h('a', {href: to, title: String(text).length > 40 ? text : null, class: 'name'}, name(text));
}

/** Returns a name that keeps its own direction of writing, and cannot turn the text around it. */
function name(text) {
  return h('bdi', {}, text === '' ? '(empty)' : String(text));
}

/** Pages by name: {title, nav, show(survey, ...parts) -> elements}.  `nav` is its place in the header, if it has one. */
const PAGES = new Map();

/** Adds a page, or replaces the page of that name. */
function registerPage(page, {title, nav = null, show, crumbs = () => []}) {
  PAGES.set(page, {title, nav, show, crumbs});
}
