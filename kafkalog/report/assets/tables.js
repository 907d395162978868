// Tables: sorted by any column, searched, paged, and copied as CSV.
//
// A table shows rows of a TableData.  Only one page of rows is in the document, so a table of a hundred thousand rows
// opens at once.  Raw numbers are sorted and copied, not their words.

const ROWS_SHOWN = 25;
const ROWS_PRINTED = 50;
const FILTER_FROM = 8;  // rows; a smaller table needs no search
const LONG = 400;  // characters of a cell that are shown; the rest is in its title

/** How a column is shown as an element; others are text.  A page may add to it: CELLS.topic is for columns `topic`. */
const CELLS = {
  topic: (value) => link(address('topic', value), value),
  partition: (value, row) => (row.topic == null ? count(value) : link(address('partition', row.topic, value), count(value))),
  group: (value) => link(address('groups', value), value),
  retentionMs: (value) => (value < 0 ? 'no limit' : span(value)),
  retentionBytes: (value) => (value < 0 ? 'no limit' : size(value)),
  command: (value) => command(value),
  severity: (value) => h('span', {class: `badge ${value}`}, value),
  state: (value) => h('span', {class: `badge ${value}`}, value),
};

/** Returns a command line with a button that copies it. */
function command(text) {
  return h('span', {class: 'command'}, h('code', {}, text), copyButton('Copy', () => text, 'Copy this command'));
}

function copyButton(label, text, title) {
  const button = h('button', {type: 'button', class: 'small', title, 'aria-label': title}, label);
  button.addEventListener('click', async () => {
    const done = await copied(text());
    button.textContent = done ? 'Copied' : 'Not copied';
    say(done ? 'Copied.' : 'The browser did not allow to copy.');
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}

/** Copies a text.  A page from a disk may lack the clipboard API; then a hidden field is copied. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h('textarea', {class: 'unseen', 'aria-hidden': 'true'});
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand('copy');
    field.remove();
    return done;
  }
}

/** Tells a screen reader what happened. */
function say(text) {
  document.getElementById('said').textContent = text;
}

/**
 * Returns rows as CSV: raw numbers, times as ISO 8601 in UTC, an empty field for an unknown value.
 *
 * Text that a spreadsheet would take for a formula gets an apostrophe before it.
 */
function toCsv(data, rows, columns) {
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const field = (column, row) => {
    const value = data.columns[column.name][row];
    if (value === null || value === undefined) return '';
    if (column.kind === 'time') return value < 0 ? '' : iso(value);
    return quoted(!NUMBERS.has(column.kind) && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value));
  };
  const lines = [columns.map((column) => column.name).join(',')];
  for (const row of rows) lines.push(columns.map((column) => field(column, row)).join(','));
  return `${lines.join('\r\n')}\r\n`;
}

function compare(a, b) {
  const none = (value) => value === null || value === undefined;
  if (none(a) || none(b)) return none(a) - none(b);  // unknown values are last in both directions
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return Number(a) - Number(b) || String(a).localeCompare(String(b));
}

/**
 * Returns an element with a table.
 *
 * data: the TableData; rows: the numbers of its rows; title: its caption; hide: names of columns that are not shown;
 * only: the names that are shown, in their order; first: names that are shown before the others; cells: element makers by column, before those of CELLS; sort: {column, down};
 * sums: names of columns whose sums are shown below; empty: the sentence for no rows; note: a sentence below;
 * size: rows of a page; choose: called with a row that is clicked or entered.
 */
function table({
  data, rows = data.where(), title = data.kind.title, hide = [], only = null, first = [], cells = {}, sort = null, sums = [],
  empty = null, note = null, size: shownRows = ROWS_SHOWN, choose = null,
}) {
  const known = only === null ? data.kind.columns : only.map((each) => data.kind.columns.find((column) => column.name === each));
  const rest = data.kind.columns.filter((column) => first.length > 0 && !first.includes(column.name));
  const ordered = first.length > 0 ? [...first.map((each) => known.find((column) => column.name === each)), ...rest] : known;
  const columns = ordered.filter((column) => !hide.includes(column.name) && !/^[xy]2?$/.test(column.name));
  const box = h('div', {class: 'table'});
  if (rows.length === 0) {
    add(box, [h('p', {class: 'empty'}, empty ?? 'None.')]);
    return box;
  }
  const left = shownPage.survey?.facts.leftOut?.[data.name];
  const state = {sort, wanted: '', page: 0, rows};
  const body = h('tbody', {});
  const foot = h('tfoot', {});
  const place = h('span', {class: 'place', 'aria-live': 'polite'});
  const heads = columns.map((column) => {
    const button = h('button', {type: 'button', on: {click: () => sortBy(column.name)}}, column.title, h('span', {class: 'arrow', 'aria-hidden': 'true'}));
    return h('th', {scope: 'col', class: NUMBERS.has(column.kind) ? 'number' : null}, button);
  });

  function cell(column, number, row) {
    const value = data.columns[column.name][number];
    const make = cells[column.name] ?? CELLS[column.name];
    const number_ = NUMBERS.has(column.kind) ? 'number' : null;
    if (value === null || value === undefined) return h('td', {class: number_}, h('span', {class: 'none'}, NONE));
    if (make) return h('td', {class: number_}, make(value, row));
    const text = shown(value, column.kind);
    if (column.kind === 'time') return h('td', {class: 'number time'}, text);
    if (number_) return h('td', {class: number_, title: column.kind === 'bytes' ? `${count(value)} bytes` : null}, text);
    if (column.kind === 'text') return h('td', {class: text.length > 40 ? 'text long' : 'text', title: text.length > 40 ? text.slice(0, 2000) : null}, name(text.length > LONG ? `${text.slice(0, LONG)}…` : text));
    return h('td', {}, text);
  }

  function fill(from, upTo) {
    body.replaceChildren(...state.rows.slice(from, upTo).map((number) => {
      const row = data.row(number);
      const line = h('tr', {}, columns.map((column) => cell(column, number, row)));
      if (choose) {
        line.classList.add('choice');
        line.addEventListener('click', (event) => { if (!event.target.closest('a, button')) choose(row, number); });
      }
      return line;
    }));
  }

  function show() {
    const pages = Math.max(1, Math.ceil(state.rows.length / shownRows));
    state.page = Math.min(state.page, pages - 1);
    const from = state.page * shownRows;
    fill(from, from + shownRows);
    const upTo = Math.min(from + shownRows, state.rows.length);
    place.textContent = state.rows.length === 0 ? 'No row has this text.' : pages === 1 && state.rows.length === rows.length
      ? counted(rows.length, 'row') : `${count(from + 1)}–${count(upTo)} of ${counted(state.rows.length, 'row')}`;
    before.disabled = state.page === 0;
    after.disabled = state.page === pages - 1;
    before.hidden = after.hidden = pages === 1;
    heads.forEach((head, at) => {
      if (state.sort?.column === columns[at].name) head.setAttribute('aria-sort', state.sort.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    foot.replaceChildren(...(sums.length === 0 || state.rows.length < 2 ? [] : [h('tr', {}, columns.map((column, at) => {
      if (!sums.includes(column.name)) return at === 0 ? h('th', {scope: 'row'}, 'Sum') : h('td', {});
      const sum = state.rows.reduce((total, row) => total + Number(data.columns[column.name][row] ?? 0), 0);
      return h('td', {class: 'number'}, shown(sum, column.kind));
    }))]));
  }

  function arrange() {
    const wanted = state.wanted.toLowerCase();
    const has = (row) => columns.some((column) => {
      const value = data.columns[column.name][row];
      if (value === null || value === undefined) return false;
      return String(value).toLowerCase().includes(wanted) || shown(value, column.kind).toLowerCase().includes(wanted);
    });
    state.rows = wanted ? rows.filter(has) : rows.slice();
    if (state.sort) {
      const values = data.columns[state.sort.column];
      const way = state.sort.down ? -1 : 1;
      const none = (row) => values[row] === null || values[row] === undefined;
      state.rows.sort((a, b) => (none(a) || none(b) ? none(a) - none(b) : way * compare(values[a], values[b])));
    }
    state.page = 0;
    show();
  }

  function sortBy(column) {
    const isNumber = NUMBERS.has(columns.find((each) => each.name === column).kind);
    state.sort = {column, down: state.sort?.column === column ? !state.sort.down : isNumber};
    arrange();
    say(`Sorted by ${columns.find((each) => each.name === column).title}, ${state.sort.down ? 'descending' : 'ascending'}.`);
  }

  function turn(by) {
    state.page += by;
    show();
  }

  const before = h('button', {type: 'button', class: 'small', 'aria-label': 'Previous rows', on: {click: () => turn(-1)}}, '‹');
  const after = h('button', {type: 'button', class: 'small', 'aria-label': 'Next rows', on: {click: () => turn(1)}}, '›');
  const search = rows.length < FILTER_FROM ? null : h('input', {
    type: 'search', placeholder: 'Search', 'aria-label': `Search in ${title}`,
    on: {input: (event) => { state.wanted = event.target.value; arrange(); }},
  });
  add(box, [
    h('div', {class: 'tools'}, search, copyButton('Copy as CSV', () => toCsv(data, state.rows, columns), `Copy ${title} as CSV`)),
    h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': title},
      h('table', {class: columns.length > 12 ? 'many' : null}, h('caption', {class: 'unseen'}, title), h('thead', {}, h('tr', {}, heads)), body, foot)),
    h('div', {class: 'tools below'}, place, before, after),
    note && h('p', {class: 'note'}, note),
    left && h('p', {class: 'note'}, `${counted(left, 'row')} of this table ${left === 1 ? 'is' : 'are'} left out; a report of fewer topics has them.`),
  ]);
  box.print = (starts) => {
    if (starts) fill(0, ROWS_PRINTED);
    else show();
    box.classList.toggle('cut', starts && state.rows.length > ROWS_PRINTED);
  };
  // A live page makes the table anew, and then gives it back what the reader had done to it.
  box.kept = () => ({sort: state.sort, wanted: state.wanted, page: state.page});
  box.keep = (kept_) => {
    Object.assign(state, {sort: kept_.sort, wanted: kept_.wanted});
    if (search) search.value = kept_.wanted;
    arrange();
    turn(kept_.page);
  };
  arrange();
  return box;
}
