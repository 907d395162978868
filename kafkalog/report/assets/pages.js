// The pages of a report: what each shows, and in which order.
//
// A page is a function from the survey to elements.  Its parts are blocks: pictures with their table beside them.

/** Returns a section with a heading. */
function part(title, ...children) {
  const id = `part-${title.toLowerCase().replace(/[^a-z0-9]+/g, '-')}`;
  return h('section', {'aria-labelledby': id}, h('h2', {id}, title), children);
}

/** Returns pictures with the table that they are drawn from; `given` is for `table`. */
function block(survey, pictureNames, given, {choose = null} = {}) {
  const drawn = pictureNames.flatMap((each) => {
    const about = survey.pictures[each];
    const columns = given.data.columns;
    const found = given.rows.filter((row) => about.needs.every((column) => columns[column][row] !== null && columns[column][row] !== -1));
    return found.length === 0 ? [] : [picture(about, found.map((row) => given.data.row(row)), {choose})];
  });
  return h('div', {class: drawn.length ? 'block' : 'block alone'}, drawn.length ? h('div', {class: 'pictures'}, drawn) : null, table(given));
}

/** Returns facts as large numbers. */
function facts(...pairs) {
  return h('dl', {class: 'facts'}, pairs.filter(([, value]) => value !== null && value !== undefined).map(
    ([title, value, more]) => h('div', {}, h('dt', {}, title), h('dd', {class: String(value.textContent ?? value).length > 12 ? 'words' : null}, value, more ? h('small', {}, more) : null))));
}

/** Says what was not read, where the numbers are shown. */
function readPart({facts: known, deep}) {
  if (deep || !known.sampled) return null;
  return h('p', {class: 'note'}, `Read of the logs: the headers of ${size(known.headerBytes ?? 0)} of ${size(known.logBytes ?? 0)}`
    + `${known.sampledHeaders ? `, and ${count(known.sampledHeaders)} headers of the rest` : ''}. Rates, codecs and batches are scaled up from these;`
    + ' `kafkalog report --deep` reads everything.');
}

const LOG_END = 'the log after the newest producer snapshot is too long to be read without `--deep`';
const UNKNOWN = {
  transactionsUnknown: (number) => `The transactions of ${counted(number, 'partition')} are unknown: ${LOG_END}.`,
  transactionsReadInPart: (number) => `Of ${counted(number, 'partition')} only the newest part of the log was read: older transactions that ended are missing.`,
  producersKnownInPart: (number) => `Of ${counted(number, 'partition')} the producers are those of an older moment: ${LOG_END}, or has damage.`,
  lagsReadInPart: () => 'Only the newest commits were read: `kafkalog report --deep` reads all.',
  damagedNotVerified: (number) => `Too large to be read without \`--deep\`: ${counted(number, 'partition')} with findings. More may be damaged in these.`,
  recoveriesUnknown: (why) => `What a recovery would do is unknown: ${why}`,
  undecodedBatches: (number) => `Keys do not count the records of ${counted(number, 'batch')} that could not be decoded.`,
  keysInexact: () => 'There are very many keys: the numbers are lower bounds.',
};

/** Says what is unknown of all partitions together, by the names of facts. */
function unknown({facts: known}, ...wanted) {
  const told = {...known, keysInexact: known.keysAreExact === false};
  return wanted.filter((each) => told[each]).map((each) => h('p', {class: 'note'}, UNKNOWN[each](told[each])));
}

function closedCleanly({facts: known}) {
  const open = Object.entries(known.cleanShutdown ?? {}).filter(([, isClean]) => !isClean).map(([logDir]) => logDir);
  if (known.cleanShutdown === undefined) return null;
  return open.length === 0 ? 'The last shutdown was clean.' : `Not closed cleanly, or in use now: ${open.join(', ').slice(0, LONG)}.`;
}

function deepOnly(survey, what) {
  return survey.deep ? `${what}: none.` : `${what}: not looked for. To see them, run \`kafkalog report --deep\`.`;
}

function only(survey, tableName, wanted) {
  const data = survey.tables[tableName];
  return {data, rows: data.where(wanted)};
}

/** The rows of rates, codecs: of a topic only sums if there are any, so that nothing is counted twice. */
function sumsFirst(survey, tableName, wanted = {}) {
  const {data, rows} = only(survey, tableName, wanted);
  const {topic, partition} = data.columns;
  const summed = new Set(rows.filter((row) => partition[row] === null).map((row) => topic[row]));
  return {data, rows: rows.filter((row) => partition[row] === null || !summed.has(topic[row]))};
}

/** The rates, in stretches of time that all have, summed by topic or partition. */
function rates(survey, by, wanted = {}) {
  return {hide: by === 'topic' ? ['partition'] : ['topic'], first: [by, 'fromTime', 'records', 'bytes'], sort: {column: 'fromTime', down: true},
    ...alignedRates(sumsFirst(survey, 'rates', wanted), by === 'topic' ? ['topic'] : ['topic', 'partition'])};
}

/** The codecs by codec; a sum over partitions of which some were sampled is sampled. */
function byCodec(survey, wanted = {}) {
  const found = sumsFirst(survey, 'codecs', wanted);
  const {codec, sampled} = found.data.columns;
  const guessed = new Set(found.rows.filter((row) => sampled[row]).map((row) => codec[row]));
  return {hide: ['topic', 'partition'], sort: {column: 'bytes', down: true},
    ...summed(found, ['codec'], ['batches', 'records', 'bytes', 'rawBytes', 'savedBytes'], (row) => ({sampled: guessed.has(row.codec)}))};
}

/** A time as an age, and as it is below. */
function aged(survey, ms) {
  return ms === null || ms === undefined || ms < 0 ? [NONE] : [ago(ms, survey.nowMs), moment(ms)];
}

function go(...parts) {
  location.hash = address(...parts);
}

registerPage('overview', {
  title: 'Overview',
  nav: 1,
  show(survey) {
    const {facts: known, tables} = survey;
    const odd = tables.odd;
    return [
      facts(
        ['Topics', count(known.topics ?? tables.topics.length)],
        ['Partitions', count(known.partitions ?? tables.partitions.length)],
        ['Segments', known.segments == null ? null : count(known.segments)],
        ['Offsets', known.records == null ? null : count(known.records)],
        ['Size of logs', known.size == null ? null : size(known.size), known.allocated == null ? null : `${size(known.allocated)} on disk`],
        ['Oldest record', ...aged(survey, known.firstTime)],
        ['Newest record', ...aged(survey, known.lastTime)],
      ),
      readPart(survey),
      part('What is odd', table({data: odd, empty: 'Nothing is odd.'})),
      part('Topics', block(survey, ['topics'], {data: tables.topics, rows: tables.topics.where(), first: ['topic', 'size', 'records', 'partitions'], sort: {column: 'size', down: true},
        sums: ['partitions', 'segments', 'records', 'size', 'files', 'allocated'], empty: 'No topics.'}, {choose: (row) => row.topic && go('topic', row.topic)})),
      part('Records and bytes over time', block(survey, ['rateBytes', 'rateRecords'], {...rates(survey, 'topic'), empty: 'No times were found.'})),
      part('Codecs', block(survey, ['codecs'], {...byCodec(survey), sums: ['batches', 'records', 'bytes', 'rawBytes', 'savedBytes'], empty: 'No batches.'})),
      part('Ages', block(survey, ['ages'], {data: tables.topics, rows: tables.topics.where(), only: ['topic', 'firstTime', 'lastTime', 'retentionMs'], sort: {column: 'firstTime', down: false}, empty: 'No topics.'},
        {choose: (row) => row.topic && go('topic', row.topic)})),
      part('Disks', block(survey, ['disks'], {data: tables.disks, rows: tables.disks.where(), note: closedCleanly(survey), empty: 'No log directory could be read.'})),
      part('Kinds of files', block(survey, ['kinds'], {data: tables.kinds, rows: tables.kinds.where(), sums: ['files', 'size', 'allocated']})),
    ];
  },
});

registerPage('topic', {
  title: 'Topic',
  crumbs: (survey, topic) => [[address('topic', topic), topic]],
  show(survey, topic) {
    const {data, rows} = only(survey, 'topics', {topic});
    if (rows.length === 0) return missing(`topic ${topic}`);
    const found = data.row(rows[0]);
    const parts = only(survey, 'partitions', {topic});
    const keys = only(survey, 'keys', {topic});
    return [
      facts(
        ['Partitions', count(found.partitions ?? parts.rows.length)], ['Segments', shown(found.segments, 'count')],
        ['Offsets', shown(found.records, 'count')], ['Size of logs', shown(found.size, 'bytes'), found.allocated == null ? null : `${size(found.allocated)} on disk`],
        ['Oldest record', ...aged(survey, found.firstTime)], ['Newest record', ...aged(survey, found.lastTime)],
        ['cleanup.policy', found.cleanupPolicy], ['retention.ms', found.retentionMs == null ? null : found.retentionMs < 0 ? 'no limit' : span(found.retentionMs)],
        ['retention.bytes', found.retentionBytes == null ? null : found.retentionBytes < 0 ? 'no limit' : size(found.retentionBytes)],
      ),
      readPart(survey),
      part('Partitions', block(survey, ['skewBytes', 'skewRecords'], {...parts, hide: ['topic'], first: ['partition', 'size', 'records', 'segments'], sort: {column: 'partition', down: false},
        sums: ['records', 'segments', 'size', 'dueBytes', 'cleanBytes', 'dirtyBytes', 'gainBytes']}, {choose: (row) => row.partition != null && go('partition', topic, row.partition)})),
      part('Records and bytes over time', block(survey, ['topicRateBytes', 'topicRateRecords'], {...rates(survey, 'partition', {topic}), empty: 'No times were found.'})),
      part('Codecs', block(survey, ['codecs'], {...only(survey, 'codecs', {topic}), hide: ['topic'], sums: ['batches', 'records', 'bytes', 'rawBytes', 'savedBytes'], empty: 'No batches.'})),
      part('Keys', block(survey, ['keys'], {...keys, hide: ['topic'], empty: deepOnly(survey, 'Keys')}), keys.rows.length ? unknown(survey, 'undecodedBatches', 'keysInexact') : null),
      part('Groups', block(survey, [], {...only(survey, 'groups', {topic}), hide: ['topic'], empty: 'No group has committed offsets of this topic.'})),
    ];
  },
});

registerPage('partition', {
  title: 'Partition',
  crumbs: (survey, topic, partition) => [[address('topic', topic), topic], [address('partition', topic, partition), `${topic}-${partition}`]],
  show(survey, topic, number) {
    const wanted = {topic, partition: Number(number)};
    const {data, rows} = only(survey, 'partitions', wanted);
    if (rows.length === 0) return missing(`partition ${topic}-${number}`);
    const found = data.row(rows[0]);
    const hide = ['topic', 'partition'];
    const of = (tableName) => ({...only(survey, tableName, wanted), hide});
    const segments = of('segments');
    const policies = survey.tables.topics.columns.cleanupPolicy;
    const isCompacted = only(survey, 'topics', {topic}).rows.some((row) => (policies[row] ?? '').includes('compact'));
    return [
      facts(
        ['Start', shown(found.logStartOffset, 'offset')], ['End', shown(found.logEndOffset, 'offset')],
        ['High watermark', shown(found.highWatermark, 'offset')], ['Last stable', shown(found.lastStableOffset, 'offset')],
        ['Segments', shown(found.segments, 'count')], ['Size', shown(found.size, 'bytes')],
        ['Oldest record', ...aged(survey, found.firstTime)], ['Newest record', ...aged(survey, found.lastTime)],
        ['Log directory', found.logDir === null ? null : name(found.logDir)],
      ),
      found.damage ? h('p', {class: 'alarm'}, h('span', {class: 'badge error'}, 'damaged'), ' ', name(found.damage), ' ', link('#damage', 'See the damage')) : null,
      readPart(survey),
      part('Segments', block(survey, ['segments'], {...segments, sort: {column: 'baseOffset', down: false}, sums: ['size', 'indexBytes', 'batches', 'records'], empty: 'No segments.'})),
      part('Records and bytes over time', block(survey, ['partitionRateBytes', 'partitionRateRecords'], {...of('rates'), first: ['fromTime', 'records', 'bytes'], empty: `Rates are summed by topic in a large directory. See the topic.`})),
      part('Batches', block(survey, ['batchSizes', 'batchRatios'], {...of('batches'), sums: ['batches', 'records', 'bytes'], empty: 'No batches.'})),
      part('Gaps', block(survey, ['gaps'], {...of('gaps'), sums: ['offsets'], empty: 'No gaps.'})),
      part('Retention', block(survey, ['retention'], {...segments, only: ['baseOffset', 'size', 'goesAtMs', 'held', 'endOffset', 'maxTimestamp'], sums: ['size'], empty: 'No segments.'})),
      part('Compaction', found.cleanBytes === null && found.dirtyBytes === null ? h('p', {class: 'empty'}, isCompacted ? `It is unknown how far the partition is compacted: ${LOG_END}.` : 'This topic is not compacted.')
        : block(survey, ['compaction'], {data, rows, only: ['cleanBytes', 'dirtyBytes', 'gainBytes'], note: survey.deep ? null : deepOnly(survey, 'The gain')})),
      part('Transactions', block(survey, ['transactions'], {...of('transactions'), empty: found.openTransactions === null ? `Transactions are unknown: ${LOG_END}, or it cannot be read.` : 'No transactions.'})),
      part('Producers', block(survey, [], {...of('producers'), empty: 'No producers with an id.'})),
      part('Groups', block(survey, [], {...of('groups'), empty: 'No group has committed offsets of this partition.'})),
    ];
  },
});

registerPage('transactions', {
  title: 'Transactions',
  nav: 2,
  show(survey) {
    const {data} = only(survey, 'transactions');
    const states = data.columns.state;
    const held = data.where().filter((row) => states[row] === 'open' || states[row] === 'hanging');
    const others = data.where().filter((row) => !held.includes(row));
    return [
      unknown(survey, 'transactionsUnknown', 'transactionsReadInPart', 'producersKnownInPart'),
      part('Open and hanging', block(survey, ['transactions', 'transactionTimes'], {data, rows: held, first: ['state', 'topic', 'partition', 'ageMs', 'heldRecords'], sort: {column: 'ageMs', down: true}, sums: ['records', 'heldRecords'], empty: 'No open transactions.'})),
      part('Ended', block(survey, ['transactions', 'transactionTimes'], {data, rows: others, empty: 'No ended transactions were found.'})),
      part('Producers', block(survey, [], {...only(survey, 'producers'), empty: 'No producers with an id.'})),
    ];
  },
});

registerPage('groups', {
  title: 'Groups',
  nav: 3,
  crumbs: (survey, group) => (group === undefined ? [] : [[address('groups', group), group]]),
  show(survey, group) {
    const wanted = group === undefined ? {} : {group};
    const hide = group === undefined ? [] : ['group'];
    const found = only(survey, 'groups', wanted);
    const byGroup = group === undefined ? summed(found, ['group', 'state'], ['lag']) : {rows: []};
    return [
      byGroup.rows.length > 1 ? part('Groups', table({...byGroup, title: 'Lag by group', only: ['group', 'state', 'lag'], sort: {column: 'lag', down: true}})) : null,
      part('Lag', block(survey, ['lag'], {...found, hide, first: ['group', 'topic', 'partition', 'lag'], sort: {column: 'lag', down: true}, sums: ['lag'], empty: 'No groups.'})),
      part('Lag over time', block(survey, ['lagOverTime'], {...only(survey, 'lags', wanted), hide, empty: 'No old commits were found.'}), unknown(survey, 'lagsReadInPart')),
    ];
  },
});

const MAPS_MAX = 40;
const NOT_READ = 'Records were not read, so damage inside of them is not looked for. `kafkalog report --deep` reads them.';
const isLog = (path) => path.endsWith('.log');

registerPage('damage', {
  title: 'Damage',
  nav: 4,
  show(survey) {
    const findings = survey.tables.findings;
    const {data} = only(survey, 'damage');
    const paths = [...new Set(data.columns.path)].sort((a, b) => isLog(b) - isLog(a));
    const drawn = paths.slice(0, MAPS_MAX);
    return [
      part('Findings', table({data: findings, empty: survey.deep ? 'No damage was found.' : `No damage was found. ${NOT_READ}`}), unknown(survey, 'damagedNotVerified', 'recoveriesUnknown')),
      findings.length && !survey.deep ? h('p', {class: 'note'}, NOT_READ) : null,
      ...drawn.map((path) => part(path, block(survey, ['damage'], {...only(survey, 'damage', {path}), hide: ['path', 'size'], first: ['way', 'state', 'fromByte', 'toByte', 'bytes', 'records']}))),
      paths.length > drawn.length ? part('Other damaged files', table({data, rows: data.where().filter((row) => !drawn.includes(data.columns.path[row]))})) : null,
    ];
  },
});

function missing(what) {
  return [h('p', {class: 'empty'}, 'This survey has no ', name(what), '.')];
}
