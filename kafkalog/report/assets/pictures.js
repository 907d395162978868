// Pictures: Vega-Lite specifications over rows of a table, drawn when they come into view.
//
// Vega is loaded with the first picture.  Its script runs as an inline script whose hash the page's policy allows, so
// that a blob: or eval may run nothing.  Expressions are interpreted (`ast: true`).  Colours are variables of the style
// sheet: the theme and paper change them without drawing anew.  Tooltips are made by `h`, not from HTML.

const pictures = {loading: null, drawn: new Set(), waiting: new Map()};

/** Loads Vega once, and returns its `embed`. */
function drawer() {
  pictures.loading ??= (async () => {
    await source.vega();
    if (!window.vegaEmbed) throw new Error('Vega did not load');
    return window.vegaEmbed;
  })();
  return pictures.loading;
}

/** Runs the library of this file; a live page loads it from its server instead. */
source.vega = async () => {
  document.head.append(Object.assign(document.createElement('script'), {textContent: await unpacked('vega')}));
};

const inView = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) pictures.waiting.get(entry.target)?.();
}, {rootMargin: '300px'});

/** Returns the specification for this page's time zone. */
function zoned(spec) {
  if (!clock.local) return spec;
  const text = JSON.stringify(spec).replaceAll('"utc"', '"time"').replaceAll('utcFormat(', 'timeFormat(').replaceAll('(UTC)', '(local)');
  return JSON.parse(text);
}

/**
 * Returns a row that Vega can group by: it keeps groups in plain objects, where `constructor` and `__proto__`, which are
 * legal names of topics, mean something else.  These get a character that is not seen; `told` removes it.
 */
const UNSEEN = '\u200b';
function harmless(row) {
  for (const [column, value] of Object.entries(row)) if (typeof value === 'string' && value in {}) row[column] = value + UNSEEN;
  return row;
}

function told(datum) {
  return Object.fromEntries(Object.entries(datum).map(
    ([column, value]) => [column, typeof value === 'string' && value.endsWith(UNSEEN) ? value.slice(0, -1) : value]));
}

/**
 * Returns a figure.
 *
 * about: one of the survey's pictures {name, title, about, spec, table}; rows: its rows as objects;
 * choose: called with the row whose mark is clicked; title, text: replace those of the picture.
 */
function picture(about, rows, {choose = null, title = about.title, text = about.about} = {}) {
  const place = h('div', {class: 'canvas', 'aria-busy': true});
  const figure = h('figure', {class: 'picture', 'data-picture': about.name}, h('figcaption', {}, h('h3', {}, title), h('p', {}, text)), place);
  let started = null;
  const draw = () => {
    started ??= drawPicture(place, about, rows, choose).catch((error) => {
      place.replaceChildren(h('p', {class: 'empty'}, `This picture cannot be drawn: ${error.message}`));
      console.error(error);
    }).finally(() => {
      place.removeAttribute('aria-busy');
      pictures.waiting.delete(place);
      inView.unobserve(place);
    });
    return started;
  };
  pictures.waiting.set(place, draw);
  inView.observe(place);
  return figure;
}

async function drawPicture(place, about, rows, choose) {
  const embed = await drawer();
  if (!place.isConnected) return;
  const spec = {...zoned(about.spec), description: `${about.title}. ${about.about} The table next to it has the numbers.`};
  const result = await embed(place, {...spec, datasets: {[about.table]: rows.map(harmless)}}, {
    ast: true, actions: false, renderer: 'svg', defaultStyle: false, config: source.config, tooltip: showTip, logLevel: 1,
  });
  pictures.drawn.add(result.view);
  place.kafkalogView = result.view;
  if (choose) {
    place.classList.add('choices');
    result.view.addEventListener('click', (event, item) => { if (item?.datum) choose(told(item.datum)); });
  }
}

/** Draws all pictures of the page that are not drawn yet, such as before printing. */
function drawAll() {
  return Promise.all([...pictures.waiting.values()].map((draw) => draw()));
}

/** Frees the pictures of the page that is left. */
function forgetPictures() {
  for (const view of pictures.drawn) view.finalize();
  for (const place of pictures.waiting.keys()) inView.unobserve(place);
  pictures.drawn.clear();
  pictures.waiting.clear();
}

// --- the tooltip -----------------------------------------------------------------------------------------------

function showTip(handler, event, item, value) {
  const tip = document.getElementById('tip');
  if (value === null || value === undefined || value === '') {
    tip.hidden = true;
    return;
  }
  const lines = typeof value === 'object' ? Object.entries(value) : [['', String(value)]];
  tip.replaceChildren(h('dl', {}, lines.filter(([, text]) => text !== '' && text !== null && text !== undefined).map(
    ([title, text]) => [h('dt', {}, title), h('dd', {}, name(String(text).slice(0, LONG)))])));
  tip.hidden = false;
  const gap = 14;
  const left = Math.min(event.clientX + gap, innerWidth - tip.offsetWidth - gap);
  const below = event.clientY + gap;
  const top = below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - gap : below;
  tip.setAttribute('data-at', '');
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${Math.max(0, top)}px`;
}
