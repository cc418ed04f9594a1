'use strict';
// The second thread of a watch: while a beat of the loop is late, it looks in which system call the loop's thread is.

const fs = require('node:fs');
const { performance } = require('node:perf_hooks');
const { parentPort, workerData } = require('node:worker_threads');
const { nameOf } = require('./calls.js');

const LATE_MS = 50;
const LOOK_MS = 5;
const { beats, beatMs, thread } = workerData;
const place = `/proc/self/task/${thread}`;

/** The call and the kernel function in which the thread sleeps; undefined if it runs (proc_pid_syscall(5)). */
function look() {
  const call = fs.readFileSync(`${place}/syscall`, 'latin1').trim();
  if (call === 'running') return undefined;
  const number = Number(call.split(' ')[0]);
  let site = 'unknown';
  try {
    site = fs.readFileSync(`${place}/wchan`, 'latin1');
  } catch {
    // Not every kernel has it, and the call is known.
  }
  return { call: number < 0 ? 'page-fault' : nameOf(number), site: site === '0' ? 'unknown' : site };
}

/** Looks until the loop beats again, and reports each call in which it was found. */
function follow(beat, since) {
  const found = new Map();
  // The first look speaks for all the time before it.
  let before = since;
  while (Atomics.load(beats, 0) === beat && Atomics.load(beats, 1) === 0) {
    const seen = look();
    const now = performance.now();
    if (seen) {
      const key = `${seen.call} ${seen.site}`;
      const sum = found.get(key) ?? { ...seen, seconds: 0 };
      sum.seconds += (now - before) / 1e3;
      found.set(key, sum);
    }
    before = now;
    Atomics.wait(beats, 1, 0, LOOK_MS);
  }
  for (const sum of found.values()) parentPort.postMessage(sum);
}

try {
  look();
  let beat = Atomics.load(beats, 0);
  let seenAt = performance.now();
  while (Atomics.load(beats, 1) === 0) {
    Atomics.wait(beats, 1, 0, LATE_MS / 2);
    const now = performance.now();
    const last = Atomics.load(beats, 0);
    if (last !== beat) {
      beat = last;
      seenAt = now;
    } else if (now - seenAt > beatMs + LATE_MS) {
      follow(beat, seenAt + beatMs);
      seenAt = performance.now();
    }
  }
} catch (error) {
  parentPort.postMessage({ missing: `${error.message}; calls that block the loop are not seen` });
}
