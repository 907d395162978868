// Bytes as people read them: text, JSON that can be folded, and hex.
//
// JSON is parsed here, because JSON.parse rounds numbers: every number keeps its digits.  Branches are made when they are
// opened, and long ones in steps, so that a large value costs little until it is looked at.

const BRANCHES = 100;
const OPEN_DEPTH = 8;  // a browser takes long to lay out boxes in boxes
const HEX_STEP = 1024;
const TEXT_STEP = 20000;

function octetsOf(base64) {
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

/** Returns the bytes as text, or null if they are not UTF-8.  The last character of cut bytes may be incomplete. */
function utf8(octets, isCut = false) {
  try {
    return new TextDecoder('utf-8', {fatal: true, ignoreBOM: true}).decode(octets, {stream: isCut});
  } catch {
    return null;
  }
}

function hexOf(octets) {
  return Array.from(octets, (byte) => byte.toString(16).padStart(2, '0')).join(' ');
}

// --- JSON ------------------------------------------------------------------------------------------------------

/** Returns a tree {kind, text | items | pairs} in which numbers are text; throws an Error for what is not JSON. */
function parseJson(text) {
  const first = text.search(/[^ \t\r\n]/);
  if (first < 0 || !'{["-0123456789tfn'.includes(text[first])) throw new SyntaxError('not JSON');
  JSON.parse(text);  // the rules of the grammar; what follows only needs to find the parts
  const token = /"[^"\\]*(?:\\.[^"\\]*)*"|[-0-9][-+.eE0-9]*|true|false|null|[{}[\]:,]/gy;
  const space = /[ \t\r\n]*/gy;
  let at = 0;
  const next = () => {
    space.lastIndex = at;
    space.exec(text);
    token.lastIndex = space.lastIndex;
    const [found] = token.exec(text);
    at = token.lastIndex;
    return found;
  };
  const root = {kind: 'array', items: []};
  const open = [root];
  let name = null;
  let word;
  const put = (node) => {
    const top = open.at(-1);
    if (top.kind === 'array') top.items.push(node);
    else {
      top.pairs.push([name, node]);
      name = null;
    }
    return node;
  };
  do {
    word = next();
    if (word === '{') open.push(put({kind: 'object', pairs: []}));
    else if (word === '[') open.push(put({kind: 'array', items: []}));
    else if (word === '}' || word === ']') open.pop();
    else if (word === ':' || word === ',') continue;
    else if (word[0] === '"') {
      const string = JSON.parse(word);
      if (open.at(-1).kind === 'object' && name === null) name = string;
      else put({kind: 'string', text: string});
    } else put({kind: /[tfn]/.test(word[0]) ? 'word' : 'number', text: word});
  } while (open.length > 1);
  return root.items[0];
}

/** Returns a tree as elements; branches are <details>, made when they are opened. */
function jsonTree(node, isOpen = true, before = null, depth = 0) {
  if (node.kind !== 'object' && node.kind !== 'array') {
    const text = node.kind === 'string' ? `"${node.text}"` : node.text;
    return h('div', {class: 'leaf'}, before, long(text, `json-${node.kind}`));
  }
  const branches = node.kind === 'object' ? node.pairs : node.items.map((item, at) => [at, item]);
  const [left, right] = node.kind === 'object' ? '{}' : '[]';
  if (branches.length === 0) return h('div', {class: 'leaf'}, before, `${left}${right}`);
  const words = node.kind === 'object' ? counted(branches.length, 'field') : counted(branches.length, 'item');
  const inside = h('div', {class: 'branches'});
  const box = h('details', {class: 'json', open: isOpen}, h('summary', {}, before, `${left} `, h('small', {}, words), ` ${right}`), inside);
  const fill = (from) => {
    for (const [label, item] of branches.slice(from, from + BRANCHES)) {
      const isBranch = item.kind === 'object' || item.kind === 'array';
      inside.append(jsonTree(item, isBranch && branches.length <= 10 && from === 0 && depth < OPEN_DEPTH, [h('span', {class: 'json-name'}, name(label)), ': '], depth + 1));
    }
    const left_ = branches.length - from - BRANCHES;
    if (left_ > 0) inside.append(more(`Show ${count(Math.min(left_, BRANCHES))} of ${count(left_)} more`, () => fill(from + BRANCHES)));
  };
  const once = () => { if (box.open && inside.childElementCount === 0) fill(0); };
  box.addEventListener('toggle', once);
  once();
  return box;
}

function more(label, call) {
  const button = h('button', {type: 'button', class: 'small'}, label);
  button.addEventListener('click', () => {
    const before = button.previousElementSibling;
    button.remove();
    call();
    (before?.nextElementSibling ?? before)?.querySelector?.('summary')?.focus();
  });
  return button;
}

/** Returns text of which a long one is shown in steps. */
function long(text, kind) {
  if (text.length <= TEXT_STEP) return h('span', {class: kind}, name(text));
  const box = h('span', {class: kind}, name(text.slice(0, TEXT_STEP)));
  const grow = (from) => {
    const rest = text.length - from;
    box.append(more(`Show ${count(Math.min(rest, TEXT_STEP))} of ${count(rest)} more characters`, () => {
      box.append(name(text.slice(from, from + TEXT_STEP)));
      if (from + TEXT_STEP < text.length) grow(from + TEXT_STEP);
    }));
  };
  grow(TEXT_STEP);
  return box;
}

// --- views -----------------------------------------------------------------------------------------------------

function hexView(octets) {
  const box = h('div', {class: 'hex'});
  const lines = (from) => {
    const text = [];
    for (let at = from; at < Math.min(from + HEX_STEP, octets.length); at += 16) {
      const row = octets.subarray(at, at + 16);
      const signs = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
      text.push(`${at.toString(16).padStart(8, '0')}  ${hexOf(row).padEnd(47)}  ${signs}`);
    }
    box.append(h('pre', {tabindex: 0}, text.join('\n')));
    const rest = octets.length - from - HEX_STEP;
    if (rest > 0) box.append(more(`Show ${count(Math.min(rest, HEX_STEP))} of ${count(rest)} more bytes`, () => lines(from + HEX_STEP)));
  };
  lines(0);
  return box;
}

/** Returns the ways to show bytes: [label, make] with the best one first; `decoded` is what a schema made of them. */
function viewsOf(octets, isCut, decoded) {
  const views = [];
  const text = utf8(octets, isCut);
  if (decoded) {
    views.push([`Decoded (${decoded.format})`, () => {
      if (decoded.error) return h('p', {class: 'alarm'}, h('span', {class: 'badge error'}, 'not decoded'), ' ', name(decoded.error), ' ', h('small', {}, name(decoded.schema)));
      if (decoded.json === null) return h('p', {class: 'empty'}, `${count(decoded.characters)} characters. Load more of the value to see them.`);
      return h('div', {}, h('p', {class: 'note'}, name(decoded.schema), decoded.id === null ? '' : `, schema ${decoded.id}`), jsonTree(parseJson(decoded.json)));
    }]);
  }
  if (text !== null && !isCut) {
    try {
      const tree = parseJson(text);
      views.push(['JSON', () => jsonTree(tree)]);
    } catch {
      // not JSON: there are the other views
    }
  }
  if (text !== null) views.push(['Text', () => h('pre', {class: 'text', tabindex: 0}, long(text, 'plain'))]);
  views.push(['Hex', () => hexView(octets)]);
  if (text === null) views.push(['Text', () => h('pre', {class: 'text', tabindex: 0}, long(new TextDecoder().decode(octets), 'plain'))]);
  return views;
}

/** Returns an element that shows bytes in one of several ways. */
function bytesView(label, octets, {isCut = false, decoded = null} = {}) {
  const views = viewsOf(octets, isCut, decoded);
  const place = h('div', {class: 'view'});
  const buttons = views.map(([title, make], at) => h('button', {type: 'button', class: 'small', 'aria-pressed': String(at === 0), on: {click: () => choose(at)}}, title));
  function choose(at) {
    buttons.forEach((button, number) => button.setAttribute('aria-pressed', String(number === at)));
    try {
      place.replaceChildren(views[at][1]());
    } catch (error) {
      place.replaceChildren(h('p', {class: 'empty'}, `This cannot be shown: ${error.message}`));
    }
  }
  choose(decoded?.error && views.length > 1 ? 0 : 0);
  return h('div', {class: 'bytes-view'}, h('div', {class: 'tools', role: 'group', 'aria-label': `Ways to show the ${label}`}, buttons), place);
}

/** Returns one line for bytes in a list. */
function preview(row) {
  if (row === null || row === undefined) return h('span', {class: 'none'}, 'null');
  const octets = octetsOf(row.base64).subarray(0, 600);
  const text = utf8(octets, octets.length < row.size);
  if (text === null) return h('code', {class: 'binary'}, `${hexOf(octets.subarray(0, 24))}${row.size > 24 ? ' …' : ''}`);
  const flat = text.replace(/\s+/g, ' ');
  return name(flat.length > 160 || row.size > octets.length ? `${flat.slice(0, 160)}…` : flat);
}
