// The header, the router, the theme and printing: what happens between pages.

const TITLE = document.title; // of a report, or of live pages
const shownPage = {survey: null, address: null};

/** Returns [page, parts] of an address: "#partition/orders/0". */
function parsed(hash) {
  const [page, ...parts] = hash.replace(/^#/, '').split('/').map((part) => {
    try {
      return unescaped(decodeURIComponent(part));
    } catch {
      return part;
    }
  });
  return PAGES.has(page) ? [page, parts] : ['overview', []];
}

function route({keep = false} = {}) {
  const {survey} = shownPage;
  const [page, parts] = parsed(location.hash);
  const {title, show, crumbs} = PAGES.get(page);
  const above = scrollY;
  forgetPictures();
  document.getElementById('tip').hidden = true;
  const trail = crumbs(survey, ...parts);
  const heading = trail.length ? trail.at(-1)[1] : title;
  const content = survey.unread && !PAGES.get(page).asksItself ? h('p', {class: 'empty'}, 'The directories have not been read yet.') : show(survey, ...parts);
  document.getElementById('page').replaceChildren(
    trail.length ? h('nav', {class: 'crumbs', 'aria-label': 'Breadcrumbs'}, h('ol', {},
      h('li', {}, link(address(PAGES.get(page).nav ? page : 'overview'), PAGES.get(page).nav ? title : 'Overview')),
      trail.map(([to, text], at) => h('li', {}, at === trail.length - 1 ? h('span', {'aria-current': 'page'}, name(text)) : link(to, text))))) : '',
    h('h1', {tabindex: -1}, trail.length ? h('small', {}, title) : null, name(heading)), ...[content].flat(Infinity).filter(Boolean));
  document.title = `${String(heading).slice(0, 60)} – ${TITLE}`;
  for (const each of document.querySelectorAll('#pages a')) {
    if (each.hash === address(page)) each.setAttribute('aria-current', 'page');
    else each.removeAttribute('aria-current');
  }
  if (keep) scrollTo(0, above);
  else {
    scrollTo(0, 0);
    if (shownPage.address !== null) document.querySelector('h1').focus({preventScroll: true});
  }
  shownPage.address = location.hash;
}

/** Shows a newer survey on the same page, at the same place. */
function refresh(survey) {
  shownPage.survey = survey;
  route({keep: true});
}

function choices(survey) {
  const {topics, partitions, groups} = survey.tables;
  const found = topics.where().map((row) => ['topic', topics.columns.topic[row], address('topic', topics.columns.topic[row])]);
  for (const group of new Set(groups.columns.group)) found.push(['group', group, address('groups', group)]);
  for (const row of partitions.where()) {
    const [topic, number] = [partitions.columns.topic[row], partitions.columns.partition[row]];
    found.push(['partition', `${topic}-${number}`, address('partition', topic, number)]);
  }
  return found;
}

/** The search for topics, partitions and groups: a combobox, as the ARIA patterns describe it. */
function searchBox() {
  const list = h('ul', {id: 'hits', role: 'listbox', 'aria-label': 'Topics, partitions and groups', hidden: true});
  const field = h('input', {
    id: 'search', type: 'search', role: 'combobox', placeholder: 'Find a topic, partition or group', autocomplete: 'off',
    'aria-label': 'Find a topic, partition or group', 'aria-expanded': 'false', 'aria-controls': 'hits', 'aria-autocomplete': 'list',
  });
  let at = -1;
  const close = () => {
    list.hidden = true;
    field.setAttribute('aria-expanded', 'false');
    field.removeAttribute('aria-activedescendant');
  };
  const mark = (place) => {
    const options = [...list.children];
    if (options.length === 0) return;
    at = (place + options.length) % options.length;
    options.forEach((option, number) => option.setAttribute('aria-selected', String(number === at)));
    field.setAttribute('aria-activedescendant', options[at].id);
    options[at].scrollIntoView({block: 'nearest'});
  };
  const take = (to) => {
    location.hash = to;
    field.value = '';
    close();
    field.blur();
  };
  field.addEventListener('input', () => {
    const wanted = field.value.trim().toLowerCase();
    at = -1;
    if (!wanted) return close();
    const hits = choices(shownPage.survey).filter(([, text]) => String(text).toLowerCase().includes(wanted)).slice(0, 12);
    list.replaceChildren(...(hits.length ? hits.map(([kind, text, to], number) => h(
      'li', {id: `hit-${number}`, role: 'option', 'data-to': to, on: {mousedown: (event) => { event.preventDefault(); take(to); }}},
      name(String(text).slice(0, LONG)), h('small', {}, kind))) : [h('li', {role: 'option', 'aria-disabled': 'true'}, 'Nothing has this name.')]));
    list.hidden = false;
    field.setAttribute('aria-expanded', 'true');
    if (hits.length) mark(0);
  });
  field.addEventListener('keydown', (event) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault();
      mark(at + (event.key === 'ArrowDown' ? 1 : -1));
    } else if (event.key === 'Enter' && list.children[at]?.dataset.to) take(list.children[at].dataset.to);
    else if (event.key === 'Escape') close();
  });
  field.addEventListener('blur', close);
  return h('div', {class: 'search', role: 'search'}, field, list);
}

function chooser(label, id, options, current, chosen) {
  const field = h('select', {id, 'aria-label': label, on: {change: () => chosen(field.value)}},
    options.map(([value, text]) => h('option', {value, selected: value === current}, text)));
  return field;
}

/** A setting of the reader; a page from a disk may not be allowed to keep it. */
function kept(key, value) {
  try {
    if (value !== undefined) localStorage.setItem(key, value);
    return localStorage.getItem(key);
  } catch {
    return value ?? null;
  }
}

function setTheme(theme) {
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

async function printPage() {
  await drawAll();
  window.print();
}

function header() {
  const theme = kept('kafkalog.theme') ?? 'auto';
  setTheme(theme);
  clock.local = kept('kafkalog.clock') === 'local';
  const pages = [...PAGES].filter(([, page]) => page.nav).sort((a, b) => a[1].nav - b[1].nav);
  document.getElementById('controls').replaceChildren(
    h('nav', {id: 'pages', 'aria-label': 'Pages'}, pages.map(([page, {title}]) => h('a', {href: address(page)}, title))),
    searchBox(),
    h('div', {class: 'settings'},
      chooser('Times', 'clock', [['utc', 'UTC'], ['local', 'Local time']], clock.local ? 'local' : 'utc', (value) => {
        clock.local = kept('kafkalog.clock', value) === 'local' || value === 'local';
        route({keep: true});
      }),
      chooser('Theme', 'theme', [['auto', 'Auto'], ['light', 'Light'], ['dark', 'Dark']], theme, (value) => { kept('kafkalog.theme', value); setTheme(value); }),
      h('button', {type: 'button', id: 'print', on: {click: printPage}}, 'Print')),
  );
}

/** Draws what is not in view too, when there is time, so that the browser's own printing finds it. */
function drawLater() {
  const soon = window.requestIdleCallback ?? ((call) => setTimeout(call, 500));
  if (pictures.waiting.size > 0 && pictures.waiting.size <= 16) soon(() => [...pictures.waiting.values()][0]?.().then(drawLater));
}

async function start() {
  header();
  document.querySelector('.skip')?.addEventListener('click', (event) => {
    event.preventDefault();
    document.getElementById('page').focus();
  });
  shownPage.survey = await source.survey();
  source.config = shownPage.survey.config;
  route();
  document.documentElement.dataset.ready = '';
  addEventListener('hashchange', () => route());
  addEventListener('beforeprint', () => document.querySelectorAll('.table').forEach((box) => box.print?.(true)));
  addEventListener('afterprint', () => document.querySelectorAll('.table').forEach((box) => box.print?.(false)));
}

document.addEventListener('DOMContentLoaded', () => {
  start().catch((error) => {
    console.error(error);
    document.getElementById('page').replaceChildren(h('p', {class: 'empty'}, `The report cannot be shown: ${error.message}`));
  });
});
