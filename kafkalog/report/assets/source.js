// The survey, wherever it comes from.  A report's file contains it; a live page replaces `source.survey`.
//
// A table is kept column by column, as tables.py has it.  Rows are numbers into the columns, and the rows of a topic or
// a partition are found through an index that is made once.

/** Reads a block of the file: gzip in base64, which no content can end early. */
async function unpacked(id) {
  const octets = Uint8Array.from(atob(document.getElementById(id).textContent), (char) => char.charCodeAt(0));
  return new Response(new Blob([octets]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
}

const source = {
  /** Returns what the page shows: `toSurvey` of the data that page.py makes. */
  survey: async () => toSurvey(JSON.parse(await unpacked('survey'))),
};

/** Undoes the column encodings of page.py. */
function plain(column) {
  if (Array.isArray(column)) return column;
  if ('same' in column) return new Array(column.count).fill(column.same);
  if ('steps' in column) {
    let value = 0;
    return column.steps.map((step) => (value += step));
  }
  return column.at.map((place) => column.words[place]);
}

class TableData {
  constructor(kind, columns) {
    this.kind = kind;
    this.name = kind.name;
    this.columns = columns;
    this.length = columns[kind.columns[0].name].length;
    this.indexes = new Map();
  }

  /** Returns the numbers of the rows with these values, such as {topic: 'orders', partition: 0}; {} means all. */
  where(wanted = {}) {
    const names = Object.keys(wanted);
    if (names.length === 0) return Array.from({length: this.length}, (_, row) => row);
    const key = names.join();
    if (!this.indexes.has(key)) {
      const index = new Map();
      for (let row = 0; row < this.length; row++) {
        const at = JSON.stringify(names.map((column) => this.columns[column][row]));
        if (index.has(at)) index.get(at).push(row);
        else index.set(at, [row]);
      }
      this.indexes.set(key, index);
    }
    return this.indexes.get(key).get(JSON.stringify(Object.values(wanted))) ?? [];
  }

  row(number) {
    return Object.fromEntries(this.kind.columns.map((column) => [column.name, this.columns[column.name][number]]));
  }
}

/**
 * Returns a table whose rows are sums: one for each group of rows with the same values in `by`.
 *
 * Columns that are neither in `by` nor in `sums` are unknown in it.  `more(row)` returns further columns of a sum.
 */
function summed({data, rows}, by, sums, more = () => ({})) {
  const groups = new Map();
  for (const row of rows) {
    const key = JSON.stringify(by.map((column) => data.columns[column][row]));
    if (!groups.has(key)) groups.set(key, Object.fromEntries(by.map((column) => [column, data.columns[column][row]])));
    const sum = groups.get(key);
    for (const column of sums) {
      const value = data.columns[column][row];
      if (value !== null) sum[column] = (sum[column] ?? 0) + Number(value);
    }
  }
  return tableOf(data.kind, [...groups.values()].map((row) => ({...row, ...more(row)})));
}

const STRETCHES = [1, 5, 15, 60, 360, 1440, 10080, 40320, 524160].map((minutes) => minutes * 60000);  // each divides the next
const STRETCHES_MAX = 200;

/**
 * Returns rates in stretches of time that all rows share, so that they can be stacked and summed.
 *
 * A partition's stretches are as long as its own history allows.  They are joined to the longest, which is exact.  A few
 * wrong times at either end make no stretch longer.
 */
function alignedRates({data, rows}, by) {
  const {records, bytes} = data.columns;
  const [fromTime, toTime] = [data.columns.fromTime.map(Number), data.columns.toTime.map(Number)];  // those above 2^53 are text
  const longest = rows.reduce((most, row) => Math.max(most, toTime[row] - fromTime[row]), 0);
  const times = rows.map((row) => fromTime[row]).sort((a, b) => a - b);
  const whole = (times[Math.floor(times.length * 0.99)] ?? 0) - (times[Math.floor(times.length * 0.01)] ?? 0);
  const length = STRETCHES.find((each) => each >= longest && whole / each <= STRETCHES_MAX) ?? Math.max(longest, STRETCHES.at(-1));
  const groups = new Map();
  for (const row of rows) {
    const from = Math.floor(fromTime[row] / length) * length;
    const key = JSON.stringify([from, ...by.map((column) => data.columns[column][row])]);
    const sum = groups.get(key) ?? {from, row, records: 0, bytes: 0};
    sum.records += records[row] ?? 0;
    sum.bytes += bytes[row] ?? 0;
    groups.set(key, sum);
  }
  const hours = length / 3600000;
  const found = [...groups.values()].map((sum) => ({
    ...Object.fromEntries(by.map((column) => [column, data.columns[column][sum.row]])), fromTime: sum.from, toTime: sum.from + length,
    records: sum.records, bytes: sum.bytes, recordsPerHour: sum.records / hours, bytesPerHour: sum.bytes / hours,
  }));
  return tableOf(data.kind, found);
}

/** Returns a table with all its rows, made from rows as objects. */
function tableOf(kind, found) {
  const made = new TableData(kind, Object.fromEntries(kind.columns.map(({name}) => [name, found.map((row) => row[name] ?? null)])));
  return {data: made, rows: made.where()};
}

/** Returns the survey of the page's data: {logDirs, nowMs, deep, facts, tables: name -> TableData, pictures}. */
function toSurvey(data) {
  const tables = {};
  for (const kind of data.kinds) {
    const columns = Object.fromEntries(
      Object.entries(data.tables[kind.name]).map(([column, values]) => [column, plain(values)]));
    tables[kind.name] = new TableData(kind, columns);
  }
  return {...data, tables};
}
