// The SQL pane: a statement, or the explanation of a stream table.

import { get, post } from './api.js';
import { h, number, problem, show, table } from './dom.js';

let kept = '';

function result(data) {
  const cell = (place) => (row) => (row[place] === null ? h('span', { class: 'null' }, 'NULL') : row[place]);
  const left = data.count - data.rows.length;
  return [
    data.notices.map((each) =>
      h(
        'div',
        { class: 'notice' },
        `${each.severity}: ${each.message}`,
        each.detail && h('div', {}, `DETAIL: ${each.detail}`),
        each.hint && h('div', {}, `HINT: ${each.hint}`),
      ),
    ),
    data.error ? problem(data.error, data.error.position) : null,
    h(
      'p',
      { class: 'quiet', id: 'tag' },
      [
        data.tag,
        `${Math.round(data.ms)} ms`,
        left > 0 && `${number(data.rows.length)} of ${number(data.count)} rows are shown`,
      ]
        .filter(Boolean)
        .join(' · '),
    ),
    data.columns.length
      ? table(
          'Result',
          data.columns.map((name, place) => [name, cell(place), 'data']),
          data.rows,
          'No rows.',
        )
      : null,
  ];
}

export function sqlPage(content) {
  const output = h('div', { id: 'result', 'aria-live': 'polite' });
  const text = h('textarea', {
    class: 'sql',
    'aria-label': 'Statement',
    spellcheck: 'false',
    autocapitalize: 'none',
    oninput: () => {
      kept = text.value;
    },
    onkeydown: (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        run(text.value);
      }
    },
  });
  text.value = kept;
  const buttons = [
    h('button', { class: 'main', type: 'button', onclick: () => run(text.value) }, 'Run'),
    h('button', { type: 'button', onclick: () => run(`EXPLAIN ${text.value}`) }, 'EXPLAIN'),
  ];
  const tables = h('select', { 'aria-label': 'Stream table', id: 'explained' });
  const explain = h(
    'button',
    {
      type: 'button',
      onclick: () => run(`SELECT property, value FROM pgtrickle.explain_st('${tables.value.replaceAll("'", "''")}')`),
    },
    'Explain stream table',
  );
  const chosen = h('span', { class: 'row' }, tables, explain);
  chosen.hidden = true;
  show(
    content,
    h('h1', {}, 'SQL'),
    h(
      'p',
      { class: 'quiet' },
      'One statement, with your rights, in a session of its own; it may take 30 seconds, and 1 000 rows are shown. Ctrl+Enter runs it.',
    ),
    text,
    h('div', { class: 'row' }, buttons, chosen),
    output,
  );
  async function run(statement) {
    for (const button of buttons) button.disabled = true;
    show(output, h('p', { class: 'quiet' }, 'Running …'));
    try {
      show(output, result(await post('sql', { statement })));
    } catch (failure) {
      show(output, problem(failure.error));
    }
    for (const button of buttons) button.disabled = false;
  }
  get('stream-tables')
    .then(({ stream_tables: rows }) => {
      const quoted = (word) => `"${word.replaceAll('"', '""')}"`;
      show(
        tables,
        rows.map((row) =>
          h('option', { value: `${quoted(row.schema)}.${quoted(row.name)}` }, `${row.schema}.${row.name}`),
        ),
      );
      chosen.hidden = !rows.length;
    })
    .catch(() => {});
  text.focus();
  return null;
}
