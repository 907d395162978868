// The browser of records: a question, its answer page by page, and each record opened on a click.
//
// The question is in the page's address (#records/topic/partition/question), so that it can be kept and sent.  A search
// that takes long stops and says up to where it came.  New records are asked for once a second while "Follow" is on.

const FOLLOW_EVERY = 1000;
const FOLLOWED_MAX = 1000;
const TOPICS_SHOWN = 50;
const FILTERS = [
  ['key', 'Key', 'text, hex:00ff or base64:AP8='], ['key-prefix', 'Key begins with', ''],
  ['header', 'Header', 'name or name=value'], ['grep', 'Value matches', 'a pattern of RE2'],
  ['where', 'Condition', 'offset >= 100 and value is not null'],
];
const COUNTS = ['25', '50', '100', '250', '500'];

/** Stops what the last shown question started: its requests and its timer. */
let ask = {stop: () => {}};

registerPage('records', {
  asksItself: true,  // the page needs no survey, and a new one does not change it
  title: 'Records',
  nav: 5,
  crumbs: (survey, topic) => (topic ? [[address('records', topic), topic]] : []),
  show(survey, topic = '', partition = '', question = '') {
    ask.stop();
    const query = new URLSearchParams(question);
    const answer = h('div', {id: 'answer'});
    const form = questionForm(survey, topic, partition, query);
    if (topic) ask = new Asking(topic, partition, query, answer);
    else add(answer, [h('p', {class: 'empty'}, 'Choose a topic.'), h('ul', {class: 'topics'}, survey.tables.topics.columns.topic.slice().sort().slice(0, TOPICS_SHOWN).map((each) => h('li', {}, link(recordsAddress(each, '', query), each))))]);
    return [h('section', {'aria-label': 'Question', class: 'question'}, form), answer];
  },
});

function recordsAddress(topic, partition, query) {
  const text = query.toString();
  return text ? address('records', topic, partition, text) : partition === '' ? address('records', topic) : address('records', topic, partition);
}

function questionForm(survey, topic, partition, query) {
  const topics = survey.tables.topics.columns.topic;
  const names = h('datalist', {id: 'topic-names'}, topics.slice(0, 5000).map((each) => h('option', {value: each})));
  const known = survey.tables.partitions.where({topic}).map((row) => survey.tables.partitions.columns.partition[row]);
  if (partition !== '' && !known.includes(Number(partition))) known.push(Number(partition));
  const labelled = (label, control, more = null) => h('label', {}, h('span', {}, label), control, more);
  const text = (key, label, hint, value = query.get(key) ?? '') => labelled(label, h('input', {name: key, value, placeholder: hint, autocomplete: 'off', spellcheck: 'false'}));
  const where = query.get('before') || query.get('last') ? 'last' : query.get('from') ? 'from' : query.has('start') || query.get('at') ? 'start' : 'last';
  const place = h('select', {name: 'place'}, [['last', 'The newest'], ['start', 'From the start'], ['from', 'From an offset or a time']].map(
    ([value, words]) => h('option', {value, selected: value === where}, words)));
  const from = text('from', 'Offset or time', '42, 2026-11-21 or @ms');
  const showFrom = () => { from.hidden = place.value !== 'from'; };
  place.addEventListener('change', showFrom);
  showFrom();
  const partitions = h('select', {name: 'partition'}, h('option', {value: ''}, 'all'), known.sort((a, b) => a - b).map((number) => h('option', {value: number, selected: String(number) === partition}, number)));
  const isFiltered = FILTERS.some(([key]) => query.get(key)) || query.get('until') || query.get('committed');
  const form = h('form', {class: 'ask', autocomplete: 'off'},
    labelled('Topic', h('input', {name: 'topic', list: 'topic-names', value: topic, required: true, spellcheck: 'false'}), names),
    labelled('Partition', partitions), labelled('Records', place), from,
    labelled('At a time', h('select', {name: 'count'}, COUNTS.map((each) => h('option', {value: each, selected: each === (query.get('count') ?? '50')}, each)))),
    h('details', {class: 'filters', open: Boolean(isFiltered)}, h('summary', {}, 'Filters'), h('div', {class: 'ask'},
      FILTERS.map(([key, label, hint]) => text(key, label, hint)), text('until', 'Until (offset or time)', ''),
      h('label', {class: 'check'}, h('input', {type: 'checkbox', name: 'committed', checked: Boolean(query.get('committed'))}), h('span', {}, 'Committed only')))),
    h('button', {class: 'primary'}, 'Show'));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const given = new FormData(form);
    const next = new URLSearchParams();
    if (given.get('place') === 'start') next.set('start', '1');
    else if (given.get('place') === 'from' && given.get('from')) next.set('from', given.get('from').trim());
    else if (given.get('place') === 'last') next.set('last', '1');
    if (given.get('count') !== '50') next.set('count', given.get('count'));
    for (const key of [...FILTERS.map(([each]) => each), 'until']) if (given.get(key)) next.set(key, given.get(key));
    if (given.get('committed')) next.set('committed', '1');
    const to = recordsAddress(given.get('topic'), given.get('topic') === topic ? given.get('partition') : '', next);
    if (to === location.hash) route();
    else location.hash = to;
  });
  return form;
}

/** One question that is being answered. */
class Asking {
  constructor(topic, partition, query, place) {
    Object.assign(this, {topic, partition, query, place, rows: [], cursor: null, timer: null, stopped: false});
    if (!['from', 'at', 'start', 'before', 'last'].some((key) => query.has(key))) query.set('last', '1');
    this.newestFirst = query.has('last') || query.has('before');
    this.abort = new AbortController();
    this.line = h('p', {class: 'note', role: 'status'}, 'Reading...');
    this.wrong = h('div', {});
    this.list = h('div', {});
    this.below = h('div', {class: 'tools below'});
    add(place, [h('h2', {class: 'unseen'}, 'Answer'), this.tools(), this.line, this.wrong, this.list, this.below]);
    this.load(new URLSearchParams());
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.abort.abort();
  }

  /** Returns the address to ask, with `more` in place of the question's own place. */
  path(endpoint, more) {
    const query = new URLSearchParams(this.query);
    query.delete('start');
    if ([...more.keys()].some((key) => ['at', 'before', 'new'].includes(key))) for (const key of ['at', 'before', 'last']) query.delete(key);
    for (const [key, value] of more) query.set(key, value);
    query.set('topic', this.topic);
    if (this.partition !== '') query.set('partition', this.partition);
    return `${endpoint}?${query}`;
  }

  async load(more) {
    this.list.setAttribute('aria-busy', 'true');
    try {
      const found = await wanted(this.path('/api/records', more), {signal: this.abort.signal});
      if (this.stopped) return;
      this.take(found);
    } catch (error) {
      if (error.name === 'AbortError') return;
      this.line.textContent = '';
      this.wrong.replaceChildren(h('p', {class: 'alarm'}, h('span', {class: 'badge error'}, 'error'), ' ', name(error.message)));
    } finally {
      this.list.removeAttribute('aria-busy');
    }
  }

  take(found) {
    this.rows = this.newestFirst ? [...found.rows.slice().reverse(), ...this.rows] : [...this.rows, ...found.rows];
    if (this.newestFirst && this.found) this.rows = [...this.found.shown, ...found.rows.slice().reverse()];
    this.found = {...found, shown: this.rows};
    this.cursor ??= this.newestFirst ? found.next : found.ended === 'end' ? found.next : null;
    this.draw();
    if (this.follow?.checked) this.following();
  }

  draw() {
    this.list.replaceChildren(this.rows.length ? recordTable(this) : h('p', {class: 'empty'}, this.found.ended === 'searched' ? 'Nothing was found so far.' : 'No records.'));
    this.line.textContent = this.words();
    this.wrong.replaceChildren(...this.damage());
    this.below.replaceChildren(...this.steps());
    if (this.follow) this.follow.disabled = this.cursor === null;
  }

  words() {
    const {ended, bounds, searchedBytes, rows} = this.found;
    const range = Object.entries(bounds).map(([number, each]) => `${this.topic}-${number} ${each.start === each.end ? 'is empty' : `has offsets ${count(each.start)} to ${count(String(BigInt(each.end) - 1n))}`}${each.stable !== null && each.stable < each.end ? `, of which an open transaction holds back those from ${count(each.stable)} on` : ''}`);
    const parts = [counted(this.rows.filter((row) => row.kind === 'record').length, 'record')];
    if (ended === 'searched') {
      const [number, offset] = Object.entries(this.found.before ?? this.found.next)[0];
      parts.push(`searched ${this.newestFirst ? 'back to' : 'up to'} offset ${count(offset)} of ${this.topic}-${number} (${size(searchedBytes)} read)`);
    }
    if (range.length && range.length <= 3) parts.push(range.join('; '));
    return `${parts.join('; ')}.`;
  }

  damage() {
    const {damage} = this.found;
    if (!damage) return [];
    const segment = damage.path?.split('/').at(-1);
    const number = this.partition !== '' ? this.partition : Object.keys(this.found.before ?? this.found.next)[0];
    const query = new URLSearchParams(this.query);
    query.set('skip-damage', '1');
    if (!this.newestFirst) query.set('at', `${number}:${this.found.next[number]}`);
    return [h('div', {class: 'alarm'}, h('p', {}, h('span', {class: 'badge error'}, 'damage'), ' ', name(damage.what)),
      h('p', {class: 'note'}, name(damage.path ?? ''), damage.position === null ? '' : `, position ${count(damage.position)}`),
      h('p', {}, link(recordsAddress(this.topic, this.partition, query), 'Continue after the damage'), ' ',
        segment && damage.position !== null ? link(placeAddress(this.topic, number, {segment, position: damage.position}), 'See the bytes') : ''))];
  }

  steps() {
    const made = [];
    const {ended, next, before} = this.found;
    const at = (found) => Object.entries(found).map((pair) => pair.join(':')).join();
    const onward = this.newestFirst ? {before: at(before ?? {})} : {at: at(next)};
    if (ended === 'searched') made.push(h('button', {type: 'button', class: 'primary', on: {click: () => { this.line.textContent = 'Reading...'; this.load(new URLSearchParams(onward)); }}}, 'Continue the search'));
    if (ended === 'full') {
      const query = new URLSearchParams(this.query);
      for (const key of ['at', 'before', 'last']) query.delete(key);
      for (const [key, value] of Object.entries(onward)) query.set(key, value);
      made.push(link(recordsAddress(this.topic, this.partition, query), this.newestFirst ? 'Older records ›' : 'Next records ›'));
    }
    return made;
  }

  // --- following and downloads ---

  tools() {
    this.follow = h('input', {type: 'checkbox', on: {change: () => this.following()}});
    this.download = h('span', {class: 'note', role: 'status'});
    const isOpenEnd = !this.query.get('until');
    return h('div', {class: 'tools'},
      isOpenEnd ? h('label', {class: 'check'}, this.follow, h('span', {}, 'Follow')) : null,
      h('span', {class: 'push'}),
      ...[['jsonl', 'Download JSON lines'], ['parquet', 'Download Parquet']].map(([format, label]) => h('button', {type: 'button', class: 'small', on: {click: () => this.save(format)}}, label)),
      this.download);
  }

  following() {
    clearTimeout(this.timer);
    if (this.stopped || !this.follow.checked || this.cursor === null) return;
    this.timer = setTimeout(async () => {
      try {
        if (!document.hidden) await this.fresh();
      } catch (error) {
        if (error.name === 'AbortError') return;
        this.line.textContent = error.message;
      }
      this.following();
    }, FOLLOW_EVERY);
  }

  async fresh() {
    const cursor = Object.entries(this.cursor).map((pair) => pair.join(':')).join();
    const found = await wanted(this.path('/api/records', new URLSearchParams({new: cursor})), {signal: this.abort.signal});
    if (this.stopped) return;
    this.cursor = found.next;
    this.found.bounds = {...this.found.bounds, ...found.bounds};
    if (found.damage) this.found.damage = found.damage;
    if (found.rows.length) {
      this.rows = this.newestFirst ? [...found.rows.slice().reverse(), ...this.rows].slice(0, FOLLOWED_MAX) : [...this.rows, ...found.rows].slice(-FOLLOWED_MAX);
      this.found.shown = this.rows;
      addRows(this, found.rows);
    }
    this.line.textContent = this.words();
    this.wrong.replaceChildren(...this.damage());
  }

  async save(format) {
    const called = `d${Math.random().toString(36).slice(2)}`;
    const more = new URLSearchParams({format, name: called});
    if (this.query.has('last') && !this.query.has('before')) more.set('last-records', this.query.get('count') ?? '50');
    const path = new URLSearchParams(this.path('', more).slice(1));
    for (const key of ['at', 'before', 'last', 'count']) path.delete(key);
    const frame = h('a', {href: `/download/records?${path}`, download: ''});
    document.body.append(frame);
    frame.click();
    frame.remove();
    this.download.textContent = 'Downloading...';
    for (let turn = 0; turn < 3600 && !this.stopped; turn++) {
      await new Promise((resolve) => { setTimeout(resolve, 500); });
      const state = await wanted(`/api/download?${new URLSearchParams({name: called})}`).catch((error) => ({state: 'failed', said: error.message}));
      const done = `${counted(state.records ?? 0, 'record')}, ${size(state.bytes ?? 0)}`;
      this.download.textContent = {running: `Downloading: ${done}.`, done: `Downloaded ${done}.`, cut: `Downloaded ${done}. ${state.said}`, failed: `The download failed: ${state.said}`, cancelled: 'The download was cancelled.', unknown: 'The download has not begun.'}[state.state];
      if (!['running', 'unknown'].includes(state.state) || (state.state === 'unknown' && turn > 10)) return;
    }
  }
}

// --- rows --------------------------------------------------------------------------------------------------------

function recordTable(asking) {
  const body = h('tbody', {});
  asking.body = body;
  for (const row of asking.rows) body.append(...rowElements(asking, row));
  const heads = [asking.partition === '' ? 'Partition' : null, 'Offset', 'Time', 'Key', 'Value'].filter(Boolean);
  return h('div', {class: 'scroll tall', tabindex: 0, role: 'region', 'aria-label': 'Records'}, h('table', {class: 'records'},
    h('caption', {class: 'unseen'}, `Records of ${asking.topic}`),
    h('thead', {}, h('tr', {}, heads.map((title) => h('th', {scope: 'col', class: ['Offset', 'Partition', 'Time'].includes(title) ? 'number' : null}, h('span', {class: 'head'}, title))))), body));
}

/** Puts new rows into the table that is there, and drops the oldest ones above the limit. */
function addRows(asking, rows) {
  if (!asking.body?.isConnected) return asking.draw();
  const made = rows.map((row) => rowElements(asking, row));
  if (asking.newestFirst) asking.body.prepend(...made.reverse().flat());
  else asking.body.append(...made.flat());
  const heads = [...asking.body.querySelectorAll('tr.row')];
  const extra = heads.length - FOLLOWED_MAX;
  for (const old of extra > 0 ? (asking.newestFirst ? heads.slice(-extra) : heads.slice(0, extra)) : []) {
    if (old.nextElementSibling?.classList.contains('open')) old.nextElementSibling.remove();
    old.remove();
  }
  say(`${counted(rows.length, 'new record')}.`);
}

function rowElements(asking, row) {
  const columns = asking.partition === '' ? 5 : 4;
  const where = asking.partition === '' ? h('td', {class: 'number'}, row.partition) : null;
  if (row.kind === 'lost') {
    const offsets = row.lastOffset >= row.firstOffset ? `, offsets ${count(row.firstOffset)} to ${count(row.lastOffset)}` : '';
    return [h('tr', {class: 'row lost'}, h('td', {colspan: columns}, h('span', {class: 'badge error'}, 'damage'), ` ${size(row.length)} left out${offsets}: `, name(row.what), ' ',
      link(placeAddress(asking.topic, row.partition, {segment: row.path.split('/').at(-1), position: row.position}), 'See the bytes')))];
  }
  const time = h('td', {class: 'number time'}, moment(row.timestamp));
  if (row.kind === 'control') {
    return [h('tr', {class: 'row control'}, where, h('td', {class: 'number'}, link(placeAddress(asking.topic, row.partition, {offset: row.offset, segment: row.segment, position: row.position}), count(row.offset))), time,
      h('td', {colspan: 2}, h('span', {class: `badge ${row.control === 'COMMIT' ? 'committed' : row.control === 'ABORT' ? 'error' : 'note'}`}, row.control.toLowerCase()), ` by producer ${row.producerId}, epoch ${row.producerEpoch}`))];
  }
  const badges = [
    row.aborted ? h('span', {class: 'badge error'}, 'aborted') : null,
    row.aborted === null ? h('span', {class: 'badge warning'}, 'transaction unknown') : null,
    row.value === null ? h('span', {class: 'badge note'}, 'tombstone') : null,
    row.valueDecoded?.error ? h('span', {class: 'badge error'}, 'not decoded') : null,
  ];
  const line = h('tr', {class: `row${row.aborted ? ' aborted' : ''}`});
  const opener = h('button', {type: 'button', class: 'opener', 'aria-expanded': 'false', 'aria-label': `Record ${row.offset}${asking.partition === '' ? ` of partition ${row.partition}` : ''}`}, count(row.offset));
  const toggle = () => {
    if (line.nextElementSibling?.classList.contains('open')) {
      line.nextElementSibling.remove();
      opener.setAttribute('aria-expanded', 'false');
      return;
    }
    line.after(h('tr', {class: 'open'}, h('td', {colspan: columns}, recordDetails(asking, row))));
    opener.setAttribute('aria-expanded', 'true');
  };
  opener.addEventListener('click', toggle);
  line.addEventListener('click', (event) => { if (!event.target.closest('button, a') && String(getSelection()) === '') toggle(); });
  const value = row.valueDecoded?.json ? name(row.valueDecoded.json.length > 160 ? `${row.valueDecoded.json.slice(0, 160)}…` : row.valueDecoded.json) : preview(row.value);
  add(line, [where, h('td', {class: 'number'}, opener), time, h('td', {class: 'bytes'}, preview(row.key)), h('td', {class: 'bytes'}, badges, row.value === null ? null : value)]);
  return [line];
}

function recordDetails(asking, row) {
  const box = h('div', {class: 'details'});
  const at = {topic: asking.topic, partition: row.partition, offset: row.offset};
  const bytesLink = (of) => h('a', {href: `/download/bytes?${new URLSearchParams({...at, of})}`, download: ''}, 'Download all');
  const fill = (shownRow) => {
    const section = (label, of, data, decoded) => {
      if (data === null) return h('div', {class: 'detail'}, h('h3', {}, label), h('p', {class: 'empty'}, 'null'));
      const octets = octetsOf(data.base64);
      const isCut = octets.length < data.size;
      return h('div', {class: 'detail'}, h('h3', {}, label, ' ', h('small', {}, size(data.size))),
        isCut || decoded?.json === null ? h('p', {class: 'note'}, isCut ? `The first ${size(octets.length)} of ${size(data.size)} are shown. ` : '', shownRow === row ? h('button', {type: 'button', class: 'small', on: {click: load}}, 'Load more') : null, ' ', bytesLink(of)) : null,
        bytesView(label.toLowerCase(), octets, {isCut, decoded}));
    };
    const left = shownRow.headerCount - shownRow.headers.length;
    box.replaceChildren(...[
      h('p', {class: 'tools'}, link(placeAddress(asking.topic, row.partition, {offset: row.offset, ...(row.segment ? {segment: row.segment, position: row.position} : {})}), 'Place in the file'), bytesLink('value')),
      section('Value', 'value', shownRow.value, shownRow.valueDecoded), section('Key', 'key', shownRow.key, shownRow.keyDecoded),
      shownRow.headers.length ? h('div', {class: 'detail'}, h('h3', {}, 'Headers'), h('dl', {class: 'headers'}, shownRow.headers.map((each) => [h('dt', {}, name(each.name)), h('dd', {}, preview(each.value))])),
        left > 0 ? h('p', {class: 'note'}, `${count(left)} more headers.`) : null) : null,
      h('p', {class: 'note'}, [`${moment(row.timestamp)} (${['none', 'create', 'append'][row.timestampType + 1] ?? 'unknown'} time)`, `leader epoch ${row.leaderEpoch}`, row.codec && `codec ${row.codec}`, row.magic !== undefined && `format ${row.magic}`,
        row.producerId !== undefined && String(row.producerId) !== '-1' && `producer ${row.producerId}, epoch ${row.producerEpoch}`, row.transactional && 'transactional'].filter(Boolean).join(', ')),
    ].filter(Boolean));
  };
  const load = async () => {
    try {
      fill(await wanted(`/api/record?${new URLSearchParams(at)}`));
    } catch (error) {
      box.append(h('p', {class: 'alarm'}, name(error.message)));
    }
  };
  fill(row);
  return box;
}
