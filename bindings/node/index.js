'use strict';
// Watches the event loop of the main thread: how late its timers run, and in which system calls it sleeps meanwhile.
// A timer of the loop beats; a second thread (sampler.js) looks at the loop's thread when a beat is late.

const path = require('node:path');
const { performance } = require('node:perf_hooks');
const { Worker, isMainThread } = require('node:worker_threads');

const BEAT_MS = 20;
// Powers of two: 16 µs to 17 s, as in `headway serve`.
const FIRST_LIMIT_US = 16;
const BUCKETS = 21;

const LAG = 'headway_loop_lag_seconds';
const BLOCKED = 'headway_loop_blocked_total';
const BLOCKED_SECONDS = 'headway_loop_blocked_seconds_total';
const LEVEL = 'headway_trace_level';

class LoopWatch {
  #beats = new Int32Array(new SharedArrayBuffer(8));
  #buckets = new Array(BUCKETS + 1).fill(0);
  #lagSeconds = 0;
  // The first series has no labels and is always 0, so that an alert on the sum has data before anything has blocked.
  #blocked = new Map([['call="",resource="",site=""', { count: 0, seconds: 0 }]]);
  #level = 1;
  #due = performance.now() + BEAT_MS;
  #timer = setInterval(() => this.#beat(), BEAT_MS).unref();
  #sampler;

  constructor() {
    const workerData = { beats: this.#beats, beatMs: BEAT_MS, thread: process.pid };
    this.#sampler = new Worker(path.join(__dirname, 'sampler.js'), { workerData });
    this.#sampler.unref();
    this.#sampler.on('message', (seen) => this.#add(seen));
    this.#sampler.on('error', () => { this.#level = 0; });
  }

  /** What keeps calls from being seen; undefined if nothing does. */
  missing;

  /** The metrics in the Prometheus text format, with the names of `headway serve`. */
  metrics() {
    const lines = [];
    const head = (name, kind, help) => lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${kind}`);
    head(LAG, 'histogram', 'How much later than due a timer of the event loop ran. It is set fifty times per second.');
    let below = 0;
    this.#buckets.forEach((count, bucket) => {
      below += count;
      const limit = bucket < BUCKETS ? (FIRST_LIMIT_US * 2 ** bucket) / 1e6 : '+Inf';
      lines.push(`${LAG}_bucket{le="${limit}"} ${below}`);
    });
    lines.push(`${LAG}_sum ${this.#lagSeconds}`, `${LAG}_count ${below}`);
    head(BLOCKED, 'counter', 'Times that a late timer found the event loop asleep, by system call, resource and kernel function.');
    for (const [labels, sum] of this.#blocked) lines.push(`${BLOCKED}{${labels}} ${sum.count}`);
    head(BLOCKED_SECONDS, 'counter', 'Time that the event loop slept while a timer was late, by system call, resource and kernel function.');
    for (const [labels, sum] of this.#blocked) lines.push(`${BLOCKED_SECONDS}{${labels}} ${sum.seconds}`);
    head(LEVEL, 'gauge', 'What is seen of the event loop: 1 is sleeps while a timer is late, 0 is nothing.');
    lines.push(`${LEVEL} ${this.#level}`);
    return lines.join('\n') + '\n';
  }

  /** Ends the watch. The metrics stay. */
  close() {
    clearInterval(this.#timer);
    Atomics.store(this.#beats, 1, 1);
    Atomics.notify(this.#beats, 1);
  }

  #beat() {
    const now = performance.now();
    const late = Math.max(0, now - this.#due) * 1e3;
    let bucket = 0;
    while (bucket < BUCKETS && late > FIRST_LIMIT_US * 2 ** bucket) bucket++;
    this.#buckets[bucket] += 1;
    this.#lagSeconds += late / 1e6;
    this.#due = now + BEAT_MS;
    Atomics.add(this.#beats, 0, 1);
  }

  #add({ call, site, seconds, missing }) {
    if (missing !== undefined) {
      this.missing = missing;
      this.#level = 0;
      return;
    }
    const labels = `call="${call}",resource="unknown",site="${site}"`;
    const sum = this.#blocked.get(labels) ?? { count: 0, seconds: 0 };
    this.#blocked.set(labels, { count: sum.count + 1, seconds: sum.seconds + seconds });
  }
}

/** Watches the event loop of the main thread. */
function watchLoop() {
  if (!isMainThread) throw new Error('watchLoop: only the loop of the main thread can be watched; this one is not');
  return new LoopWatch();
}

module.exports = { LoopWatch, watchLoop };
