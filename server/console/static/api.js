// The server's answers. What a page fetches by itself, since something has changed, does not keep the session alive.

export class Failure extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.error = error;
  }
}

async function answered(response) {
  let body;
  try {
    body = await response.json();
  } catch {
    body = {};
  }
  if (response.ok) return body;
  if (response.status === 401 && !response.url.endsWith('/api/login')) window.dispatchEvent(new Event('logged-out'));
  throw new Failure(response.status, body.error || { message: `the server answers ${response.status}` });
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(`/api/${path}`, options);
  } catch {
    throw new Failure(0, { message: 'the console does not answer; is the server still running?' });
  }
  return answered(response);
}

export const query = (words) => new URLSearchParams(words).toString();

export const get = (path, byItself = false) => asked(path, { headers: byItself ? { 'X-By-Itself': '1' } : {} });

export const post = (path, body) =>
  asked(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });

// Server-sent events while the page is visible. Returns what ends it.
export function follow(path, handlers) {
  let source = null;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(`/api/${path}`);
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
    source.addEventListener('ended', () => {
      close();
      get('session', true)
        .then((who) => who.user || window.dispatchEvent(new Event('logged-out')))
        .catch(() => {});
    });
    source.addEventListener('failed', () => close());
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 2000);
      }
    };
  };
  const close = () => {
    if (source) {
      source.close();
      source = null;
    }
  };
  const seen = () => (document.hidden ? close() : open());
  document.addEventListener('visibilitychange', seen);
  open();
  return () => {
    document.removeEventListener('visibilitychange', seen);
    close();
  };
}

// A page that fetches and draws itself, and again when something of this kind has changed; never two at once, and
// never more than a fifth of the time. Returns what ends it.
export function live(kind, draw) {
  let ended = false,
    busy = false,
    again = false,
    timer = null;
  const update = async (byItself) => {
    if (ended) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const began = performance.now();
    try {
      await draw(byItself, () => ended);
    } finally {
      const rest = Math.max(150, 4 * (performance.now() - began));
      timer = setTimeout(() => {
        busy = false;
        if (again) {
          again = false;
          update(true);
        }
      }, rest);
    }
  };
  const stop = follow(`changes?${query({ of: kind })}`, { changed: () => update(true), ready: () => update(true) });
  const first = update(false);
  return {
    first,
    update: () => update(false),
    stop: () => {
      ended = true;
      clearTimeout(timer);
      stop();
    },
  };
}
