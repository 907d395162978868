// What makes the page alive: the survey comes from the server, again and again, and replaces the one that is shown.
//
// A new survey keeps what the reader does: scroll positions, sorting, searches and the focus.  Errors are words above the
// page; it recovers by itself.  Nothing is asked while the page is hidden.

const SURVEY_EVERY = 2000;
const live = {tag: null, timer: null, isFirst: true};

/** Asks the server.  Returns {status, tag, data}; an answer that is no JSON is an error in words. */
async function asked(path, {tag = null, signal = undefined} = {}) {
  let answer;
  try {
    answer = await fetch(path, {headers: tag ? {'If-None-Match': tag} : {}, cache: 'no-store', signal});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error('The server does not answer. Is `kafkalog ui` still running?');
  }
  if (answer.status === 304) return {status: 304, tag, data: null};
  if (!(answer.headers.get('content-type') ?? '').includes('json')) throw new Error((await answer.text()).trim().slice(0, 500));
  return {status: answer.status, tag: answer.headers.get('etag'), data: await answer.json()};
}

/** Asks for something of which an error is words: {error, hint}. */
async function wanted(path, options) {
  const {data} = await asked(path, options);
  if (data.error) throw new Error([data.error, data.hint].filter(Boolean).join(': '));
  return data;
}

function tell(text, isWrong = false) {
  const place = document.getElementById('live');
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle('wrong', isWrong);
}

/** Asks for the survey; returns it, or null if it has not changed or cannot be made. */
async function newSurvey() {
  const {status, tag, data} = await asked('/api/survey', {tag: live.tag});
  if (status === 304) {
    tell('');
    return null;
  }
  if (data.error) {
    tell(data.error, true);
    return data.empty ? {...toSurvey(data.empty), unread: true} : null;
  }
  if (data.reading) {
    tell('Reading the directories. Records can be looked at already.');
    return {...toSurvey(data.empty), unread: true};
  }
  live.tag = tag;
  live.isFirst = false;
  tell('');
  return toSurvey(data);
}

source.survey = async () => {
  const found = await newSurvey();
  again();
  document.addEventListener('visibilitychange', () => { if (!document.hidden) again(0); });
  return found;
};

source.vega = () => new Promise((resolve, reject) => {
  const script = document.createElement('script');
  script.src = '/page/vega.js';
  script.addEventListener('load', resolve);
  script.addEventListener('error', () => reject(new Error('the drawing library was not loaded')));
  document.head.append(script);
});

function again(wait = SURVEY_EVERY) {
  clearTimeout(live.timer);
  live.timer = setTimeout(async () => {
    if (document.hidden) return;
    try {
      const found = await newSurvey();
      if (found && (!live.isFirst || shownPage.survey === null)) renewed(found);
    } catch (error) {
      tell(error.message, true);
    }
    again();
  }, wait);
}

/** Returns the current page's name. */
function pageNow() {
  return parsed(location.hash)[0];
}

/** Shows a newer survey, and keeps what the reader has done to the page. */
function renewed(survey) {
  if (PAGES.get(pageNow()).asksItself) {
    shownPage.survey = survey;
    return;
  }
  const main = document.getElementById('page');
  const tables = [...main.querySelectorAll('.table')].map((box) => box.kept?.());
  const scrolls = [...main.querySelectorAll('.scroll')].map((box) => [box.scrollLeft, box.scrollTop]);
  const heights = [...main.querySelectorAll('.canvas')].map((box) => box.offsetHeight);
  const above = [scrollX, scrollY];
  const focus = focusPlace(main);
  const focused = document.activeElement;
  const selection = focused?.selectionStart ?? null;
  refresh(survey);
  main.querySelectorAll('.canvas').forEach((box, at) => { if (heights[at]) box.style.minHeight = `${heights[at]}px`; });
  main.querySelectorAll('.table').forEach((box, at) => { if (tables[at]) box.keep?.(tables[at]); });
  main.querySelectorAll('.scroll').forEach((box, at) => { if (scrolls[at]) [box.scrollLeft, box.scrollTop] = scrolls[at]; });
  if (focus !== null) {
    const next = focusable(main)[focus];
    next?.focus({preventScroll: true});
    if (selection !== null && next?.setSelectionRange) next.setSelectionRange(selection, selection);
  }
  scrollTo(...above);
}

function focusable(main) {
  return [...main.querySelectorAll('a[href], button, input, select, [tabindex]')];
}

function focusPlace(main) {
  const place = focusable(main).indexOf(document.activeElement);
  return place < 0 ? null : place;
}
