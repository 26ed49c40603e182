// Stream tables: all of them, and one.

import { follow, get, live, post, query } from './api.js';
import { timeline } from './charts.js';
import { bytes, duration, facts, h, moment, ms, number, problem, redraw, show, state, table, tell } from './dom.js';

export const link = (row) =>
  h(
    'a',
    { href: `#/stream-table/${encodeURIComponent(row.schema)}/${encodeURIComponent(row.name)}` },
    row.schema === 'public' ? row.name : `${row.schema}.${row.name}`,
  );

export function streamTablesPage(content) {
  return live('stream tables', async (byItself, ended) => {
    try {
      const { stream_tables: rows } = await get('stream-tables', byItself);
      if (ended()) return;
      redraw(
        content,
        h('h1', {}, 'Stream tables'),
        table(
          'Stream tables',
          [
            ['Name', link],
            ['Status', (row) => state(row.status)],
            ['Mode', (row) => row.refresh_mode],
            ['Schedule', (row) => row.schedule || 'at once'],
            ['Rows as of', (row) => asOf(row.age, row.stale === false), 'number'],
            ['Refreshes', (row) => number(row.refreshes), 'number'],
            ['Failed', (row) => number(row.failed), 'number'],
            ['Mean time', (row) => ms(row.avg_duration_ms), 'number'],
            ['Errors in a row', (row) => number(row.errors), 'number'],
          ],
          rows,
          'There is no stream table that you may read.',
        ),
      );
    } catch (failure) {
      if (!ended()) show(content, h('h1', {}, 'Stream tables'), problem(failure.error));
    }
  }).stop;
}

// Where no change waits the rows are those of now, however long ago something has changed.
const asOf = (age, current) => (age === null ? 'not populated yet' : current ? 'now' : `${duration(age)} ago`);

const LONG = [
  'Defining Query',
  'Original Query',
  'Rewritten Query',
  'Operator Tree',
  'Delta SQL',
  'Spark SQL',
  'Spark Delta SQL',
];

function executor(properties) {
  const wanted = ['Last Executor', 'Last Refresh', 'Executor Costs', 'Fallback Reason', 'Rewrites', 'Lock', 'TopK'];
  const shown = properties.filter(({ property }) => wanted.includes(property) || property.startsWith('Strategy: '));
  return h(
    'dl',
    { class: 'list' },
    shown.map(({ property, value }) => [h('dt', {}, property), h('dd', {}, value)]),
  );
}

const plan = (operators) =>
  table(
    'Plan',
    [
      ['Operator', (row) => h('div', { class: `operator indent-${Math.min(6, row.depth)}` }, row.operator)],
      ['Delta rule', (row) => row.rule || '–', 'text'],
      ['Rows below', (row) => number(row.rows), 'number'],
      ['Changes that wait', (row) => number(row.pending), 'number'],
    ],
    operators,
    'It has no plan: it is always computed as a whole.',
  );

const refreshes = (history) =>
  table(
    'Last refreshes',
    [
      ['Began', (row) => moment(row.began)],
      ['Action', (row) => row.action],
      ['Status', (row) => state(row.status)],
      ['By', (row) => row.initiated_by],
      ['Took', (row) => ms(row.ms), 'number'],
      ['Changes', (row) => number(row.changes), 'number'],
      ['+', (row) => number(row.inserted), 'number'],
      ['~', (row) => number(row.updated), 'number'],
      ['−', (row) => number(row.deleted), 'number'],
      ['Executor', (row) => row.executor],
      ['Why', (row) => row.executor_reason || '', 'text'],
    ],
    history.slice(0, 20),
  );

function parts(data) {
  const row = data.stream_table;
  return [
    facts([
      ['Status', state(row.status)],
      [
        'Mode',
        row.requested_mode && row.requested_mode !== row.refresh_mode
          ? `${row.refresh_mode} (${row.requested_mode} was asked for)`
          : row.refresh_mode,
      ],
      ['Schedule', row.schedule || 'at once'],
      [
        'Rows as of',
        asOf(
          row.age,
          data.sources.every((each) => each.pending === 0),
        ),
      ],
      ['Rows, estimated', number(row.estimated_rows)],
      ['Size with indexes', bytes(row.bytes)],
      ['Of it indexes', bytes(row.index_bytes)],
      ['Owner', row.owner],
      ['Created', moment(row.created_at)],
    ]),
    h('h2', {}, 'Query'),
    h('pre', {}, row.query || 'You may not see it.'),
    h('h2', {}, 'Refreshes'),
    timeline(data.history),
    refreshes(data.history),
    h('h2', {}, 'Last errors'),
    table(
      'Last errors',
      [
        ['At', (each) => moment(each.at)],
        ['Action', (each) => each.action],
        ['Error', (each) => each.error || '(of which you may not see the text)', 'text'],
      ],
      data.errors,
    ),
    h('h2', {}, 'Plan'),
    h(
      'p',
      { class: 'quiet' },
      'What each operator costs: the rows of the tables below it, which computing it anew reads, and the changes that wait for the next differential refresh.',
    ),
    plan(data.plan),
    h('h2', {}, 'Executor, and why'),
    executor(data.properties),
    h('h2', {}, 'Sources'),
    table(
      'Sources',
      [
        [
          'Table',
          (each) =>
            each.name === null
              ? '(dropped)'
              : each.kind === 'stream_table'
                ? link(each)
                : `${each.schema}.${each.name}`,
        ],
        ['Kind', (each) => each.kind],
        ['Capture', (each) => each.capture || '–'],
        ['Rows, estimated', (each) => number(each.rows), 'number'],
        ['Changes that wait', (each) => number(each.pending), 'number'],
      ],
      data.sources,
    ),
    h('h2', {}, 'Indexes'),
    table(
      'Indexes',
      [
        ['Name', (each) => each.name],
        ['Definition', (each) => each.definition, 'data'],
        ['Size', (each) => bytes(each.bytes), 'number'],
        ['Scans', (each) => number(each.scans), 'number'],
        ['Valid', (each) => (each.valid ? 'yes' : 'no')],
      ],
      data.indexes,
    ),
  ];
}

export function streamTablePage(content, schema, name) {
  const said = h('div', {});
  const body = h('div', {}, h('p', { class: 'quiet' }, 'Loading …'));
  const texts = h('div', {});
  const buttons = {};
  const act = (action, title) => {
    buttons[action] = h(
      'button',
      {
        type: 'button',
        onclick: async () => {
          buttons[action].disabled = true;
          try {
            await post('act', { schema, name, action });
            show(said);
            tell(`${title}: done.`);
          } catch (failure) {
            show(said, problem(failure.error));
          }
          buttons[action].disabled = false;
          page.update();
        },
      },
      title,
    );
    return buttons[action];
  };
  show(
    content,
    h('h1', {}, schema === 'public' ? name : `${schema}.${name}`),
    h('div', { class: 'row' }, act('refresh', 'Refresh'), act('suspend', 'Suspend'), act('resume', 'Resume')),
    said,
    body,
    rowsOf(schema, name),
    texts,
  );
  let shown = null;
  const page = live('stream tables', async (byItself, ended) => {
    try {
      const data = await get(`stream-table?${query({ schema, name })}`, byItself);
      if (ended()) return;
      redraw(body, parts(data));
      buttons.suspend.hidden = data.stream_table.status === 'SUSPENDED';
      buttons.resume.hidden = data.stream_table.status !== 'SUSPENDED';
      const long = data.properties.filter(
        ({ property }) => LONG.includes(property) || property.startsWith('Function '),
      );
      if (JSON.stringify(long) !== shown) {
        // else what somebody has opened would close
        shown = JSON.stringify(long);
        show(
          texts,
          h('h2', {}, 'What explain_st says'),
          long.map(({ property, value }) => h('details', {}, h('summary', {}, property), h('pre', {}, value))),
        );
      }
    } catch (failure) {
      if (!ended()) show(body, problem(failure.error));
    }
  });
  return () => {
    page.stop();
    content.dispatchEvent(new Event('leave'));
  };
}

// The rows of a table as they come and go: a SUBSCRIBE, once somebody asks for it.
function rowsOf(schema, name) {
  const list = h('div', {});
  let stop = null,
    rows = [];
  const button = h('button', { type: 'button', onclick: toggle }, 'Follow rows');
  function toggle() {
    if (stop) {
      stop();
      stop = null;
      button.textContent = 'Follow rows';
      return;
    }
    rows = [];
    button.textContent = 'Stop';
    show(list, h('p', { class: 'quiet' }, 'Nothing has changed yet.'));
    stop = follow(`rows?${query({ schema, name })}`, {
      rows: (batch) => {
        rows = [...batch.rows.reverse(), ...rows].slice(0, 100);
        const columns = batch.columns.map((column, place) => [
          column,
          (row) => (row.values[place] === null ? h('span', { class: 'null' }, 'NULL') : row.values[place]),
          'data',
        ]);
        redraw(
          list,
          batch.left_out ? h('p', { class: 'quiet' }, `${number(batch.left_out)} more at that moment`) : null,
          table(
            'Rows that came and went',
            [
              ['', (row) => (row.diff > 0 ? `+${row.diff}` : `−${-row.diff}`), 'number'],
              ['Time', (row) => new Date(Number(row.at)).toLocaleTimeString('sv-SE')],
              ...columns,
            ],
            rows,
          ),
        );
      },
      failed: (error) => {
        show(list, problem(error));
        if (stop) toggle();
      },
    });
  }
  document.getElementById('content').addEventListener(
    'leave',
    () => {
      if (stop) stop();
    },
    { once: true },
  );
  return h(
    'section',
    {},
    h('h2', {}, 'Rows, live'),
    h('p', { class: 'quiet' }, 'By SUBSCRIBE, with your rights: what comes and goes from now on.'),
    button,
    list,
  );
}
