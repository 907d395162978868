// A record's place in its file: the bytes of each field in colour, with its name, its value and what it means.
//
// A field is twice on the page, as bytes and as a row.  Pointing at one, or focusing it, marks the other.

const FIELD_BYTES = 48;
const COLOURS = 8;

function placeAddress(topic, partition, place) {
  return address('place', topic, partition, new URLSearchParams(place).toString());
}

registerPage('place', {
  asksItself: true,  // the page needs no survey, and a new one does not change it
  title: 'Place in the file',
  crumbs: (survey, topic, partition, question = '') => [
    [address('records', topic), topic], [address('records', topic, partition, 'last=1'), `${topic}-${partition}`],
    [address('place', topic, partition, question), placeTitle(new URLSearchParams(question))]],
  show(survey, topic, partition, question = '') {
    ask.stop();
    const place = h('div', {'aria-busy': 'true'}, h('p', {class: 'empty'}, 'Reading...'));
    const query = new URLSearchParams(question);
    query.set('topic', topic);
    query.set('partition', partition);
    wanted(`/api/place?${query}`).then((found) => place.replaceChildren(...placeElements(topic, partition, found)),
      (error) => place.replaceChildren(h('p', {class: 'alarm'}, h('span', {class: 'badge error'}, 'error'), ' ', name(error.message))),
    ).finally(() => place.removeAttribute('aria-busy'));
    return place;
  },
});

function placeTitle(query) {
  return query.get('offset') ? `offset ${query.get('offset')}` : `position ${query.get('position')}`;
}

/** A size in bytes, if `size` rounds it. */
function exactly(bytes) {
  return bytes >= 1024 ? counted(bytes, 'byte') : null;
}

function placeElements(topic, partition, found) {
  const {record, crc} = found;
  const at = {segment: found.segment, position: found.position};
  const go_ = (label, place) => link(placeAddress(topic, partition, place), label);
  const steps = [
    record && record.index > 0 ? go_('‹ Previous record', {...at, index: record.index - 1}) : null,
    record && record.index < found.count - 1 ? go_('Next record ›', {...at, index: record.index + 1}) : null,
    found.nextPosition ? go_('Next batch ›', {segment: found.segment, position: found.nextPosition}) : null,
  ].filter(Boolean);
  const groups = new Map();
  found.fields.forEach((field, number) => {
    if (!groups.has(field.group)) groups.set(field.group, []);
    groups.get(field.group).push([field, number]);
  });
  const titles = {batch: found.magic === 2 ? 'Batch header' : 'Entry', records: found.decompressed === undefined ? 'Other records' : 'Records', record: `Record${record ? ` at offset ${record.offset}` : ''}`};
  const made = [
    facts(
      ['Position', count(found.position), `of ${counted(found.fileSize, 'byte')}`],
      ['Size of the batch', found.size === undefined ? null : size(found.size), exactly(found.size)],
      ['Format', found.magic === undefined ? null : `magic ${found.magic}`, found.codec ? `codec ${found.codec}` : null],
      ['Records', found.count === undefined ? null : count(found.count), record ? `this is number ${count(record.index + 1)}` : null],
      ['Decompressed', found.decompressed === undefined ? null : size(found.decompressed), exactly(found.decompressed)],
      ['Checksum', crc === null ? null : crc.matches ? 'right' : 'wrong', crc === null ? null : `${crc.kind}: stored ${crc.stored}, computed ${crc.computed}`]),
    h('p', {class: 'note'}, 'File ', name(found.path), record?.control ? `. This is a control record: ${record.control}.` : '.'),
    found.problems.length ? h('ul', {class: 'alarm'}, found.problems.map((text) => h('li', {}, h('span', {class: 'badge error'}, 'problem'), ' ', name(text)))) : null,
    steps.length ? h('p', {class: 'tools'}, steps) : null,
  ];
  for (const [group, fields] of groups) {
    const title = titles[group] ?? group.replace(/^header /, 'Header ');
    const space = fields[0][0].space === 'records' ? 'Positions count from the start of the decompressed records.' : null;
    made.push(part(title, space ? h('p', {class: 'note'}, space) : null, bytesOf(title, fields), fieldTable(title, fields)));
  }
  linkFields(made);
  return made.filter(Boolean);
}

function bytesOf(title, fields) {
  return h('div', {class: 'octets', role: 'group', 'aria-label': `Bytes of ${title}`}, fields.map(([field, number]) => {
    const octets = octetsOf(field.shown);
    const length = field.to - field.from;
    const rest = length - Math.min(octets.length, FIELD_BYTES);
    return h('button', {type: 'button', class: `octet c${number % COLOURS}`, 'data-field': number, title: field.name,
      'aria-label': `${field.name}, ${counted(length, 'byte')} from ${field.from}`}, hexOf(octets.subarray(0, FIELD_BYTES)), rest > 0 ? h('small', {}, ` … ${count(rest)} more`) : null);
  }));
}

function fieldTable(title, fields) {
  return h('div', {class: 'scroll full', tabindex: 0, role: 'region', 'aria-label': `Fields of ${title}`}, h('table', {class: 'fields'},
    h('caption', {class: 'unseen'}, `Fields of ${title}`),
    h('thead', {}, h('tr', {}, ['Bytes', 'Field', 'Type', 'Value', 'Meaning'].map((head) => h('th', {scope: 'col'}, h('span', {class: 'head'}, head))))),
    h('tbody', {}, fields.map(([field, number]) => h('tr', {'data-field': number},
      h('td', {class: 'number'}, field.to - field.from > 1 ? `${field.from}–${field.to - 1}` : field.from), h('th', {scope: 'row'}, h('span', {class: `swatch c${number % COLOURS}`}), name(field.name)),
      h('td', {}, field.kind), h('td', {class: 'text'}, valueOf(field)), h('td', {class: 'text'}, field.meaning))))));
}

function valueOf(field) {
  if (field.text) return [name(field.text), field.words ? h('small', {class: 'words'}, field.words) : null];
  const octets = octetsOf(field.shown);
  const row = {base64: field.shown, size: field.to - field.from};
  return octets.length ? preview(row) : null;
}

function linkFields(made) {
  const all = made.filter(Boolean).flatMap((each) => [...each.querySelectorAll('[data-field]')]);
  const byField = new Map();
  for (const each of all) byField.set(each.dataset.field, [...(byField.get(each.dataset.field) ?? []), each]);
  for (const each of all) {
    const mark = (on) => () => byField.get(each.dataset.field).forEach((other) => other.classList.toggle('marked', on));
    each.addEventListener('pointerenter', mark(true));
    each.addEventListener('pointerleave', mark(false));
    each.addEventListener('focusin', mark(true));
    each.addEventListener('focusout', mark(false));
    if (each.matches('button')) each.addEventListener('click', () => {
      const row = byField.get(each.dataset.field).find((other) => other.matches('tr'));
      row?.scrollIntoView({block: 'nearest'});
      say(row?.textContent ?? '');
    });
  }
}

// --- ways here from the report's pages ---------------------------------------------------------------------------

/** Puts a link above a page of the report. */
function withLink(page, to) {
  const known = PAGES.get(page);
  registerPage(page, {...known, show: (survey, ...parts) => [h('p', {class: 'tools'}, link(to(...parts), 'Look at the records')), known.show(survey, ...parts)]});
}
withLink('topic', (topic) => address('records', topic));
withLink('partition', (topic, number) => address('records', topic, number));

/** Shows a number of a file as a link to its bytes. */
function toBytes(value, row) {
  const segment = row.path?.split('/').at(-1);
  if (row.partition == null || !/^\d{20}\.log$/.test(segment ?? '')) return count(value);
  return link(placeAddress(row.topic, row.partition, {segment, position: value}), count(value));
}
CELLS.position = toBytes;
CELLS.fromByte = toBytes;
CELLS.baseOffset = (value, row) => toBytes_(row, value, {segment: `${String(value).padStart(20, '0')}.log`, position: 0});
CELLS.firstOffset = (value, row) => (row.partition == null || Number(value) < 0 ? count(value) : link(address('records', row.topic, row.partition, `from=${value}`), count(value)));

function toBytes_(row, value, place) {
  return row.partition == null ? count(value) : link(placeAddress(row.topic, row.partition, place), count(value));
}
