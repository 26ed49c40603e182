// Queues, their consumers and dead letters.

import { get, live, post, query } from './api.js';
import { duration, h, moment, number, problem, redraw, show, state, table, tell } from './dom.js';

export function queuesPage(content) {
  return live('queues', async (byItself, ended) => {
    try {
      const { queues } = await get('queues', byItself);
      if (ended()) return;
      redraw(
        content,
        h('h1', {}, 'Queues'),
        table(
          'Queues',
          [
            ['Name', (row) => h('a', { href: `#/queue/${encodeURIComponent(row.name)}` }, row.name)],
            ['Clock', (row) => state(row.paused ? 'paused' : 'ACTIVE')],
            ['Events a second', (row) => (row.per_second === null ? '–' : row.per_second.toFixed(1)), 'number'],
            ['Not in a batch yet', (row) => number(row.new), 'number'],
            ['Last tick', (row) => `${duration(row.tick_age)} ago`, 'number'],
            ['Consumers', (row) => number(row.consumers), 'number'],
            ['Dead letters', (row) => number(row.dead), 'number'],
          ],
          queues,
          'There is no queue.',
        ),
      );
    } catch (failure) {
      if (!ended()) show(content, h('h1', {}, 'Queues'), problem(failure.error));
    }
  }).stop;
}

export function queuePage(content, name) {
  const said = h('div', {});
  const body = h('div', {}, h('p', { class: 'quiet' }, 'Loading …'));
  const open = new Set();
  show(content, h('h1', {}, name), said, body);
  async function replay(event, words, done) {
    const button = event.currentTarget;
    button.disabled = true;
    try {
      const result = await post('replay', words);
      show(said);
      tell(done(result));
    } catch (failure) {
      show(said, problem(failure.error));
    }
    button.disabled = false;
    page.update();
  }
  const one = (row) =>
    h(
      'button',
      {
        type: 'button',
        'aria-label': `Replay dead letter ${row.id}`,
        onclick: (event) => replay(event, { id: row.id }, (result) => `Replayed as event ${result.event}.`),
      },
      'Replay',
    );
  const all = () =>
    h(
      'button',
      {
        type: 'button',
        onclick: (event) =>
          replay(
            event,
            { queue: name },
            (result) =>
              `${result.replayed} replayed, ${result.failed} failed${result.first_error ? `: ${result.first_error}` : ''}.`,
          ),
      },
      'Replay all',
    );
  const inspect = (row) => {
    const extra = ['extra1', 'extra2', 'extra3', 'extra4'].filter((each) => row[each] !== null);
    return h(
      'details',
      {
        open: open.has(row.id),
        ontoggle: (event) => (event.currentTarget.open ? open.add(row.id) : open.delete(row.id)),
      },
      h('summary', {}, `event ${row.event}, ${row.type}`),
      h('pre', {}, row.data ?? 'NULL', row.data_is_cut ? '\n… (the first 20 000 characters)' : ''),
      extra.map((each) => h('pre', {}, `${each}: ${row[each]}`)),
    );
  };
  const page = live('queues', async (byItself, ended) => {
    try {
      const data = await get(`queue?${query({ name })}`, byItself);
      if (ended()) return;
      redraw(
        body,
        h('h2', {}, 'Consumers'),
        table(
          'Consumers',
          [
            ['Consumer', (row) => row.consumer],
            ['Lag', (row) => duration(row.pending ? row.lag : 0), 'number'],
            ['Events that wait', (row) => number(row.pending), 'number'],
            ['Batch', (row) => row.batch ?? '–', 'number'],
            ['Last seen', (row) => `${duration(row.last_seen)} ago`, 'number'],
          ],
          data.consumers,
        ),
        h('h2', {}, 'Dead letters'),
        data.dead_letters.length ? h('div', { class: 'row' }, all()) : null,
        table(
          'Dead letters',
          [
            ['', one],
            ['Since', (row) => moment(row.at)],
            ['Consumer', (row) => row.consumer || '–'],
            ['Retries', (row) => number(row.retries), 'number'],
            ['Reason', (row) => row.reason || '–', 'text'],
            ['Event', inspect, 'text'],
          ],
          data.dead_letters,
        ),
      );
    } catch (failure) {
      if (!ended()) show(body, problem(failure.error));
    }
  });
  return page.stop;
}
